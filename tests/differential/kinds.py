"""Sequences, optional values, texts, maps, scans and models of classical learning: chains of nodes from tensors to tensors."""

import numpy as np
from graph import BOOL, FLOAT, INTEGER
from onnx import TensorProto, helper

LEARNING = {"domain": "ai.onnx.ml"}
WORDS = ["a", "bc", "Das", "haus", "A-b", "", "x y", "Zoo", "12"]


def names(graph, count):
    return [f"v{len(graph.values)}_{index}" for index in range(count)]


def sequences(graph):
    x = graph.value(graph.pick(FLOAT, FLOAT, INTEGER), range(1, 4))
    value = graph.values[x]
    if graph.opset < 11 or not value.shape[0]:
        return False
    other, place = graph.new(value.dtype.type, value.shape), graph.constant(np.array(graph.pick(-1, 0, 1)))
    made, changed, result = names(graph, 3)
    node = helper.make_node
    if graph.random.random() < 0.5:
        first = [node("SequenceConstruct", [x, other, x], [made])]
    else:
        first = [node("SplitToSequence", [x], [made], axis=0, keepdims=graph.pick(0, 1))]
    middle = graph.pick(
        [node("SequenceInsert", [made, graph.pick(x, other), place], [changed])],
        [node("SequenceErase", [made, place], [changed])],
        [node("Identity", [made], [changed])],
        [node("SequenceMap", [made], [changed], body=mapping(graph, value.dtype))] if graph.opset >= 17 else [node("SequenceInsert", [made, x], [changed])],
    )
    last = graph.pick(
        node("SequenceAt", [changed, place], [result]),
        node("SequenceLength", [changed], [result]),
        node("ConcatFromSequence", [changed], [result], axis=0, new_axis=graph.pick(0, 1)),
    )
    return graph.append([*first, *middle, last], [result])


def mapping(graph, dtype):
    kind = helper.np_dtype_to_tensor_dtype(dtype)
    info = lambda name: helper.make_tensor_value_info(name, kind, None)
    return helper.make_graph([helper.make_node(graph.pick("Neg", "Abs"), ["item"], ["mapped"])], "each", [info("item")], [info("mapped")])


def optionals(graph):
    x = graph.value(graph.pick(FLOAT, INTEGER, BOOL))
    if graph.opset < 15:
        return False
    made, result = names(graph, 2)
    last = graph.pick("OptionalHasElement", "OptionalGetElement")
    return graph.append([helper.make_node("Optional", [x], [made]), helper.make_node(last, [made], [result])], [result])


def texts(graph):
    shape = graph.pick((3,), (2, 2), (1, 4))
    words = lambda: np.array([WORDS[int(place)] for place in graph.random.integers(0, len(WORDS), shape).ravel()], object).reshape(shape)
    x = graph.given(words())
    operator = graph.pick("StringConcat", "RegexFullMatch", "StringSplit", "StringNormalizer", "Equal", "TfIdfVectorizer", "LabelEncoder",
                          "CategoryMapper", "Concat", "Gather", "Cast", "OneHotEncoder")  # fmt: skip
    if operator == "StringConcat":
        return graph.emit(operator, [x, graph.given(words())])
    if operator == "RegexFullMatch":
        return graph.emit(operator, [x], pattern=graph.pick("[a-z]+", ".*", "a|bc", "[A-Z].{2,}"))
    if operator == "StringSplit":
        # Of no characters between delimiters ONNX Runtime makes no text, and the text of ONNX an empty one.
        delimiter = "" if "" in graph.values[x] else graph.pick(" ", "-", "")
        return graph.emit(operator, [x], outputs=2, delimiter=delimiter, maxsplit=graph.pick(1, 3))
    if operator == "StringNormalizer":
        flat = graph.given(words().reshape(-1) if graph.random.random() < 0.7 else words().reshape(1, -1))
        stops = {"stopwords": ["a", "Das"]} if graph.random.random() < 0.5 else {}
        action = graph.pick("LOWER", "UPPER", "NONE")
        return graph.emit(operator, [flat], case_change_action=action, is_case_sensitive=graph.pick(0, 1), **stops)
    if operator == "Equal":
        return graph.emit(operator, [x, graph.given(words())])
    if operator == "Cast":
        numbers = graph.given(np.array(["1", "-2.5", "30"], object))
        return graph.emit(operator, [numbers], to=graph.pick(TensorProto.FLOAT, TensorProto.DOUBLE))
    if operator == "TfIdfVectorizer":
        options = {"max_gram_length": graph.pick(1, 2), "min_gram_length": 1, "max_skip_count": graph.pick(0, 1), "ngram_counts": [0, 3]}
        pool = {"pool_strings": ["a", "bc", "Das", "a", "bc", "Zoo", "a"], "ngram_indexes": [0, 1, 2, 3, 4], "mode": graph.pick("TF", "IDF", "TFIDF")}
        return graph.emit(operator, [x], weights=[1.0, 0.5, 2.0, 1.5, 1.0], **options, **pool)
    if operator == "LabelEncoder":
        values = graph.pick({"values_int64s": [5, 6], "default_int64": -1}, {"values_floats": [0.5, 1.5], "default_float": 9.0})
        return graph.emit(operator, [x], keys_strings=["a", "Das"], **values, **LEARNING)
    if operator == "CategoryMapper":
        return graph.emit(operator, [x], cats_strings=["a", "bc"], cats_int64s=[3, 4], default_int64=7, **LEARNING)
    if operator == "OneHotEncoder":
        return graph.emit(operator, [x], cats_strings=["a", "bc", "Zoo"], zeros=1, **LEARNING)
    if operator == "Concat":
        return graph.emit(operator, [x, x], axis=0)
    # Of several texts behind one index ONNX Runtime copies the first.
    return graph.emit(operator, [x, graph.constant(np.array([0, -1]))], axis=len(shape) - 1)


def learning(graph):
    random = graph.random
    rows = graph.given(random.standard_normal((4, 3)).astype(graph.pick(FLOAT, FLOAT, np.float64, INTEGER)))
    floats = lambda *shape: [float(value) for value in random.standard_normal(shape).ravel()]
    emit = lambda operator, operands=(rows,), **more: graph.emit(operator, list(operands), **more, **LEARNING)
    post = graph.pick("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")
    operator = graph.pick("Normalizer", "Scaler", "Binarizer", "Imputer", "ArrayFeatureExtractor", "FeatureVectorizer", "LinearRegressor",
                          "LinearClassifier", "SVMRegressor", "SVMClassifier", "TreeEnsembleRegressor", "TreeEnsembleClassifier",
                          "LabelEncoder", "ZipMap", "OneHotEncoder")  # fmt: skip
    if operator == "Normalizer":
        return emit(operator, norm=graph.pick("MAX", "L1", "L2"))
    if operator == "Scaler":
        return emit(operator, offset=graph.pick(floats(3), floats(1)), scale=graph.pick(floats(3), floats(1)))
    if operator == "Binarizer":
        return emit(operator, threshold=0.25)
    if operator == "Imputer":
        return emit(operator, imputed_value_floats=floats(3), replaced_value_float=0.0)
    if operator == "ArrayFeatureExtractor":
        return emit(operator, [rows, graph.constant(random.integers(0, 3, 2))])
    if operator == "FeatureVectorizer":
        return emit(operator, [rows, rows], inputdimensions=[3, 3])
    if operator == "LinearRegressor":
        return emit(operator, coefficients=floats(2, 3), intercepts=floats(2), targets=2, post_transform=post)
    if operator == "LinearClassifier":
        labels = graph.pick({"classlabels_ints": [4, 5, 6]}, {"classlabels_strings": ["a", "b", "c"]})
        return emit(operator, outputs=2, coefficients=floats(3, 3), intercepts=floats(3), post_transform=post, **labels)
    kernel = {"kernel_type": graph.pick("LINEAR", "POLY", "RBF", "SIGMOID"), "kernel_params": [0.5, 0.25, 2.0]}
    if operator == "SVMRegressor":
        return emit(operator, coefficients=floats(4), support_vectors=floats(4, 3), n_supports=4, rho=floats(1), **kernel)
    if operator == "SVMClassifier":
        counts = {"vectors_per_class": [2, 1, 2], "classlabels_ints": [0, 1, 2], "post_transform": post}
        return emit(operator, outputs=2, coefficients=floats(2, 5), support_vectors=floats(5, 3), rho=floats(3), **counts, **kernel)
    if operator.startswith("TreeEnsemble"):
        return emit(operator, outputs=1 + (operator == "TreeEnsembleClassifier"), **trees(graph, operator, floats, post))
    if operator == "LabelEncoder":
        keys = graph.given(random.integers(0, 5, (2, 3)))
        return emit(operator, [keys], keys_int64s=[1, 2, 3], values_floats=floats(3), default_float=0.5)
    if operator == "OneHotEncoder":
        return emit(operator, [graph.given(random.integers(0, 5, (2, 3)))], cats_int64s=[1, 2, 3], zeros=1)
    return False


def trees(graph, operator, floats, post):
    """Two trees of three nodes, the second with equality or another comparison."""
    modes = [graph.pick("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT"), "LEAF", "LEAF"] * 2
    made = {
        "nodes_treeids": [0, 0, 0, 1, 1, 1], "nodes_nodeids": [0, 1, 2] * 2, "nodes_featureids": [graph.pick(0, 1, 2), 0, 0] * 2,
        "nodes_modes": modes, "nodes_values": floats(6), "nodes_truenodeids": [1, 0, 0] * 2, "nodes_falsenodeids": [2, 0, 0] * 2,
        "nodes_missing_value_tracks_true": [graph.pick(0, 1), 0, 0] * 2, "post_transform": post,
    }  # fmt: skip
    leaves = {"treeids": [0, 0, 1, 1], "nodeids": [1, 2, 1, 2], "ids": [0, 1, 2, 0], "weights": floats(4)}
    if operator == "TreeEnsembleRegressor":
        made |= {f"target_{key}": value for key, value in leaves.items()} | {"n_targets": 3}
        # Of a target without votes ONNX Runtime gives 0, and the text its base value.
        return made | {"aggregate_function": graph.pick("SUM", "AVERAGE", "MIN", "MAX")}
    # A class without votes has a score of 0 by the evaluator of ONNX; ONNX Runtime passes over it where all others are less.
    leaves["weights"] = [abs(weight) for weight in leaves["weights"]]
    return made | {f"class_{key}": value for key, value in leaves.items()} | {"classlabels_int64s": [7, 8, 9]}


def scans(graph):
    """A running sum, perhaps backwards, along an axis."""
    x = graph.value(ranks=[2, 3])
    value = graph.values[x]
    axis = int(graph.random.integers(value.ndim)) if graph.opset >= 9 else 0
    shape = [extent for place, extent in enumerate(value.shape) if place != axis]
    info = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    nodes = [helper.make_node("Add", ["state", "slice"], ["next"]), helper.make_node(graph.pick("Neg", "Tanh"), ["next"], ["each"])]
    body = helper.make_graph(nodes, "body", [info("state"), info("slice")], [info("next"), info("each")])
    if graph.opset < 9:
        return False
    start = graph.new(FLOAT, tuple(shape))
    options = {"scan_input_axes": [axis], "scan_input_directions": [graph.pick(0, 1)], "scan_output_directions": [graph.pick(0, 1)]}
    options["scan_output_axes"] = [int(graph.random.integers(value.ndim))]
    return graph.emit("Scan", [start, x], outputs=2, body=body, num_scan_inputs=1, **options)


MAKERS = [sequences, sequences, optionals, texts, texts, texts, learning, learning, learning, scans]
