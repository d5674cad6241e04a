"""Nodes of the cases of the ONNX backend suite and of tests/contrib, with other data, attributes, element types and operator sets."""

import collections
import pathlib
import warnings

import numpy as np
import onnx
from graph import DOUBLE, FLOAT, HALF
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

CONTRIB = pathlib.Path(__file__).parent.parent / "contrib"

# What draws at random or trains, what searches for texts (a rounding decides which), and files of images.
LEFT_OUT = set(
    "RandomNormal RandomNormalLike RandomUniform RandomUniformLike Bernoulli Multinomial Dropout ImageDecoder Gradient Adagrad Adam "
    "Momentum BeamSearch WhisperBeamSearch GreedySearch Sampling SampleOp Constant BiasDropout".split()
)


def load():
    """Templates by operator: node, and values of its inputs."""
    templates = collections.defaultdict(list)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in load_model_tests(kind="node"):
            if case.model is not None and len(case.model.graph.node) == 1 and case.data_sets:
                names = [port.name for port in case.model.graph.input]
                add(templates, case.model, dict(zip(names, case.data_sets[0][0])))
    for path in sorted(CONTRIB.glob("*.onnx")):
        data = onnx.GraphProto.FromString(path.with_suffix(".data").read_bytes())
        values = {tensor.name: numpy_helper.to_array(tensor) for tensor in data.initializer if tensor.name.startswith("0.in.")}
        add(templates, onnx.load(path), {name[5:]: value for name, value in values.items()})
    return templates


def add(templates, model, given):
    node = model.graph.node[0]
    given = given | {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    known = all(isinstance(given.get(name), np.ndarray) for name in node.input if name)
    if known and node.op_type not in LEFT_OUT and not node.domain.startswith("ai.onnx.preview"):
        templates[node.domain, node.op_type].append((node, {name: given[name] for name in node.input if name}))


TEMPLATES = load()
OPERATORS = sorted(TEMPLATES)


def changed(graph, value):
    """Other elements of the same kind: floats are scaled, or change places; integers and texts change places now and then."""
    random = graph.random
    if value.dtype.kind == "f" and random.random() < 0.5:
        return (value * (1 + 0.3 * random.standard_normal(value.shape))).astype(value.dtype)
    if value.dtype == bool and random.random() < 0.5:
        return random.integers(0, 2, value.shape).astype(bool)
    if value.size > 1 and (value.dtype.kind == "f" or random.random() < 0.3):
        return random.permutation(value.ravel()).reshape(value.shape)
    return value


def node_of_template(graph):
    domain, operator = OPERATORS[int(graph.random.integers(len(OPERATORS)))]
    candidates = TEMPLATES[domain, operator]
    if operator in ["MaxUnpool", "WordConvEmbedding"]:
        # ONNX Runtime counts places in the extents that are asked for, the text in those of the pool; of a word that begins with
        # padding it leaves what was in memory.
        return False
    template, values = candidates[int(graph.random.integers(len(candidates)))]
    other, _ = candidates[int(graph.random.integers(len(candidates)))]
    node = onnx.NodeProto()
    node.CopyFrom(template)
    # Labels must fit `ignore_index`, and functions their parameters; with `auto_pad` ONNX Runtime forgets dilations of `LpPool`.
    whole = operator in ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss", "AttnLSTM", "LpPool"]
    if graph.random.random() < 0.4 and not whole:
        attributes = {attribute.name: attribute for attribute in node.attribute}
        attributes |= {attribute.name: attribute for attribute in other.attribute if graph.random.random() < 0.5}
        attributes = [attribute for attribute in attributes.values() if graph.random.random() < 0.8]
        del node.attribute[:]
        node.attribute.extend(attributes)
    # Of rows behind a text ONNX Runtime leaves what was in memory: lengths stay what they are, and bytes that hold floats.
    kept = operator in ["GroupQueryAttention", "SparseAttention", "MatMulFpQ4"]
    fixed = {name for name, value in values.items() if graph.random.random() > 0.7 or (kept and value.dtype.kind in "iu")}
    if operator in ["Resize", "Upsample"] and any(attribute.s == b"align_corners" for attribute in node.attribute):
        return False  # Of scales ONNX takes the product with the extent, ONNX Runtime the whole part of it.
    values = {name: value if name in fixed else changed(graph, value) for name, value in values.items()}
    if graph.random.random() < 0.15:
        to = graph.pick(DOUBLE, HALF)
        # In f16 ONNX Runtime computes other mixtures of experts than in f32.
        if operator != "MoE":
            values = {name: value.astype(to) if value.dtype == FLOAT else value for name, value in values.items()}
    if graph.random.random() < 0.2:
        values = dict(list(values.items())[: max(1, len(values) - 1)])
    names = {name: graph.given(value) for name, value in values.items()}
    results = [f"v{len(graph.values)}_{index}" if name else "" for index, name in enumerate(node.output)]
    operands = [names.get(name, "") for name in node.input]
    while operands and not operands[-1]:
        operands.pop()
    del node.input[:], node.output[:]
    node.input.extend(operands)
    node.output.extend(results)
    node.name = ""
    return graph.append([node], results)


MAKERS = [node_of_template] * 12
