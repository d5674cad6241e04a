"""Cases of operators of ai.onnx.ml: classifiers of trees, features, support vectors."""

import numpy as np
from case import Case, floats, random

DOMAIN = "ai.onnx.ml"


def forest(classes, votes, features=3, trees=3, **attributes):
    """Trees of depth 2 over random thresholds; `votes` gives the (class, weight) pairs of a leaf."""
    nodes = {name: [] for name in ["treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids"]}
    leaves = {name: [] for name in ["treeids", "nodeids", "ids", "weights"]}
    for tree in range(trees):
        for number in range(7):
            leaf = number > 2
            nodes["treeids"].append(tree)
            nodes["nodeids"].append(number)
            nodes["featureids"].append(0 if leaf else int(random.integers(features)))
            nodes["modes"].append("LEAF" if leaf else ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GT"][number])
            nodes["values"].append(0.0 if leaf else float(random.standard_normal()) / 2)
            nodes["truenodeids"].append(0 if leaf else 2 * number + 1)
            nodes["falsenodeids"].append(0 if leaf else 2 * number + 2)
            for label, weight in votes() if leaf else []:
                leaves["treeids"].append(tree)
                leaves["nodeids"].append(number)
                leaves["ids"].append(label)
                leaves["weights"].append(float(weight))
    made = {f"nodes_{name}": value for name, value in nodes.items()}
    return made | {f"class_{name}": value for name, value in leaves.items()} | attributes


def classifier(name, attributes, x):
    Case(f"trees_{name}", "TreeEnsembleClassifier", ["X"], ["label", "scores"], DOMAIN, **attributes).add(X=x)


def classifiers():
    x = floats(20, 3)
    several = lambda: enumerate(random.random(3))
    first = lambda: [(0, random.random() / 3)]
    signed = lambda: [(0, random.standard_normal())]
    labels, names = {"classlabels_int64s": [7, 3, 9]}, {"classlabels_strings": ["no", "yes"]}
    classifier("several", forest(3, several, **labels), x)
    classifier("several_softmax", forest(3, several, post_transform="SOFTMAX", base_values=[0.5, 0.0, -0.5], **labels), x)
    classifier("several_logistic", forest(3, several, post_transform="LOGISTIC", **labels), x)
    classifier("several_integers", forest(3, several, **labels), random.integers(-2, 3, (20, 3)))
    classifier("one_score", forest(2, first, **names), x)
    classifier("one_score_logistic", forest(2, signed, post_transform="LOGISTIC", base_values=[0.25], **names), x)
    classifier("one_score_signed", forest(2, signed, **names), x)


def features():
    x = floats(4, 3)
    x[1, 2] = x[3, 0] = np.nan
    one = lambda name, operator, operands, **attributes: Case(
        name, operator, list(operands), ["Y"], DOMAIN, **attributes
    ).add(**operands)
    one("imputer", "Imputer", {"X": x}, imputed_value_floats=[1.0, 2.0, 3.0], replaced_value_float=float("nan"))
    one("imputer_one", "Imputer", {"X": x}, imputed_value_floats=[1.0], replaced_value_float=float("nan"))
    codes = random.integers(0, 3, (4, 3))
    one("imputer_integers", "Imputer", {"X": codes}, imputed_value_int64s=[7, 8, 9], replaced_value_int64=1)
    one("one_hot", "OneHotEncoder", {"X": codes}, cats_int64s=[2, 0, 5], zeros=1)
    texts = np.array([["a", "b"], ["c", "a"]], object)
    one("one_hot_text", "OneHotEncoder", {"X": texts}, cats_strings=["b", "a"], zeros=1)
    pair = {"A": floats(4, 3), "B": floats(4, 2)}
    one("vectorizer", "FeatureVectorizer", pair, inputdimensions=[3, 2])
    vectors, weights = floats(5, 3), floats(5)
    for kernel in ["LINEAR", "POLY", "RBF", "SIGMOID"]:
        one(f"svm_{kernel.lower()}", "SVMRegressor", {"X": floats(4, 3)}, kernel_type=kernel, n_supports=5,
            kernel_params=[0.5, 0.25, 3.0], support_vectors=vectors.ravel().tolist(), coefficients=weights.tolist(),
            rho=[0.125])  # fmt: skip
    one("svm_one_class", "SVMRegressor", {"X": floats(6, 3)}, kernel_type="RBF", n_supports=5, one_class=1,
        kernel_params=[0.5, 0.0, 3.0], support_vectors=vectors.ravel().tolist(), coefficients=weights.tolist(),
        rho=[0.125])  # fmt: skip
    one("svm_without_vectors", "SVMRegressor", {"X": floats(4, 3)}, kernel_type="LINEAR",
        kernel_params=[0.5, 0.0, 3.0], coefficients=[0.5, -1.0, 2.0], rho=[0.5])  # fmt: skip


def classical():
    classifiers()
    features()
