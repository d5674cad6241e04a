"""Graphs while they are made, with what ONNX Runtime computes for each node alone."""

import pathlib
import sys

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

sys.path.append(str(pathlib.Path(__file__).parent.parent / "contrib"))
from case import saturates

FLOAT, INTEGER, BOOL = np.float32, np.int64, np.bool_
HALF, DOUBLE = np.float16, np.float64
# Operator sets of graphs: most are of one that exporters write, the newest is the last that ONNX Runtime takes.
OPSETS = [21, 21, 21, 17, 17, 13, 7, 8, 9, 10, 11, 12, 14, 15, 16, 18, 19, 20, 22, 23, 24, 25, 26]
NARROW = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.uint64]
SHAPES = [(2, 3, 4), (1, 3, 4), (4,), (2, 1, 4), (3, 4), (2, 4, 6, 5), (1, 2, 7, 6), (), (1,), (5, 4), (4, 3)]

# Products of codes, and whether those with i8 are wrong in ONNX Runtime on this processor.
PRODUCTS_OF_CODES = {
    "ConvInteger", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "MatMulInteger", "MatMulIntegerToFloat", "QAttention",
    "QGemm", "QLinearConv", "QLinearMatMul",
}  # fmt: skip
SATURATES = saturates()


class Graph:
    """A graph while it is made: values by name with what ONNX Runtime computes for them, so that shapes are known."""

    def __init__(self, random):
        self.random, self.nodes, self.inputs, self.weights, self.values = random, [], {}, {}, {}
        # Names of values that graphs read, that nodes gave, and that no further node may read.
        self.captured, self.computed, self.closed = set(), set(), set()
        self.opset, self.learning = self.pick(*OPSETS), self.pick(1, 2, 3, 4, 5)

    def pick(self, *choices):
        return choices[int(self.random.integers(len(choices)))]

    def tensor(self, dtype, shape):
        if np.issubdtype(dtype, np.floating):
            return self.random.standard_normal(shape).astype(dtype)
        if dtype == BOOL:
            return self.random.integers(0, 2, shape).astype(bool)
        return self.random.integers(0 if np.issubdtype(dtype, np.unsignedinteger) else -3, 4, shape).astype(dtype)

    def new(self, dtype=FLOAT, shape=None):
        """A new input or stored tensor."""
        shape = self.pick(*SHAPES) if shape is None else shape
        kind = self.inputs if self.random.random() < 0.6 else self.weights
        name = f"v{len(self.values)}"
        kind[name] = self.values[name] = np.asarray(self.tensor(dtype, shape), dtype)
        return name

    def constant(self, value):
        name = f"v{len(self.values)}"
        self.weights[name] = self.values[name] = np.asarray(value)
        return name

    def value(self, dtype=FLOAT, ranks=range(9)):
        """A value that is there, or a new one."""
        fits = [name for name, value in self.tensors() if value.dtype == dtype and value.ndim in ranks]
        if fits and self.random.random() < 0.8:
            return self.pick(*fits)
        return self.new(dtype, self.pick(*[shape for shape in SHAPES if len(shape) in ranks]))

    def tensors(self):
        return [(name, value) for name, value in self.values.items() if isinstance(value, np.ndarray) and name not in self.closed]

    def like(self, name):
        """A value that broadcasts with another, or the same one."""
        value = self.values[name]
        shape = tuple(1 if self.random.random() < 0.3 else extent for extent in value.shape)
        fits = [other for other, found in self.tensors() if found.dtype == value.dtype and broadcasts(found, value)]
        if fits and self.random.random() < 0.5:
            return self.pick(*fits)
        return self.new(value.dtype.type, shape[int(self.random.integers(len(shape) + 1)) :])

    def given(self, value):
        """An input or stored tensor with this value; texts are stored or given, too."""
        name = f"v{len(self.values)}"
        kind = self.inputs if self.random.random() < 0.6 else self.weights
        kind[name] = self.values[name] = value
        return name

    def emit(self, operator, operands, outputs=1, captures=(), **attributes):
        """Append a node, whose graphs read `captures`; whether ONNX Runtime runs it on the values at hand."""
        names = [f"v{len(self.values) + index}" for index in range(outputs)]
        return self.append([helper.make_node(operator, operands, names, **attributes)], names, captures)

    def append(self, nodes, results, captures=()):
        """Append nodes that compute `results` of values that are there; whether ONNX Runtime runs them."""
        made = {name for node in nodes for name in node.output}
        read = [name for node in nodes for name in node.input if name and name not in made]
        given = {name: self.values[name] for name in [*read, *captures]}
        operator = nodes[0].op_type
        arrays = [value for value in given.values() if isinstance(value, np.ndarray)]
        if SATURATES and any(node.op_type in PRODUCTS_OF_CODES for node in nodes) and any(value.dtype == np.int8 for value in arrays):
            return False  # Sums of products of codes are wrong in ONNX Runtime on this processor.
        if operator == "ReduceMean" and not all(value.size for value in arrays):
            return False  # The mean of nothing is undefined.
        if operator in COMPARISONS and len(arrays) == 2 and nearly_equal(*arrays):
            return False  # A rounding decides.
        if operator == "QuantizeLinear" and (arrays[0].dtype == HALF or not np.isfinite(arrays[0].astype(np.float64)).all()):
            return False  # No code stands for NaN; quotients of f16 are often in the middle between two codes.
        if operator in ["ReduceLogSumExp", "ReduceLogSum"] and arrays[0].dtype.kind != "f":
            return False  # ONNX Runtime truncates each exponential.
        if operator == "Cast" and arrays and arrays[0].dtype.kind == "f" and (abs(arrays[0].astype(np.float64)) > 2e9).any():
            return False  # No integer stands for it.
        if operator in STEPS and any(near_a_step(value) for name, value in given.items() if name in self.computed):
            return False
        if operator in CHOICES and arrays and nearly_tied(arrays[0]):
            return False
        outputs = [name for name in results if name]
        graph = helper.make_graph(nodes, "one", ports(given), [helper.make_empty_tensor_value_info(name) for name in outputs])
        found = run(self.model_of(graph), given, outputs)
        if found is None or not all(plain(value) for value in found):
            return False
        self.captured.update(captures)
        self.nodes += nodes
        self.computed.update(outputs)
        self.values.update(zip(outputs, found))
        return True

    def model_of(self, graph):
        sets = {"": self.opset, "com.microsoft": 1, "ai.onnx.ml": self.learning}
        imports = [helper.make_opsetid(domain, version) for domain, version in sets.items()]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)

    def model(self):
        used = {name for node in self.nodes for name in node.input} | self.captured
        made = [name for node in self.nodes for name in node.output if name]
        # Values between the nodes of one step were not looked at.
        known = [name for name in made if name in self.values]
        outputs = [name for name in known if name not in used] + [name for name in known if name in used][:1]
        inputs = {name: value for name, value in self.inputs.items() if name in used}
        weights = [numpy_helper.from_array(value, name) for name, value in self.weights.items() if name in used]
        results = [helper.make_tensor_value_info(name, element_type(self.values[name]), None) for name in outputs]
        given = ports(inputs)
        for port in given:
            if self.random.random() < 0.25:
                open_extents(port, self.random)
        return self.model_of(helper.make_graph(self.nodes, "random", given, results, weights)), inputs, outputs


COMPARISONS = "Less Greater Equal LessOrEqual GreaterOrEqual".split()
# What jumps where a rounding moves a value over a step, and what chooses among values.
STEPS = "Floor Ceil Round Sign Cast Mod Hardmax ThresholdedRelu Shrink Binarizer".split()
CHOICES = "ArgMax ArgMin TopK Hardmax Unique NonMaxSuppression MaxPool".split()


def near_a_step(value):
    """Whether computed floats are close to multiples of 1/2, where they may fall to either side."""
    if not np.issubdtype(value.dtype, np.floating):
        return False
    near = 2e-2 if value.dtype == HALF else 1e-4
    wide = value.astype(np.float64)
    return bool((abs(wide - np.round(wide * 2) / 2) <= near).any())


def nearly_tied(value):
    """Whether two floats are close and not the same."""
    if not np.issubdtype(value.dtype, np.floating):
        return False
    distances = np.diff(np.sort(value.astype(np.float64).ravel()))
    near = 2e-3 if value.dtype == HALF else 1e-5
    return bool(((distances > 0) & (distances <= near)).any())


def plain(value):
    """A tensor of moderate size without infinities."""
    if not isinstance(value, np.ndarray) or value.size > 5000:
        return False
    return not np.issubdtype(value.dtype, np.inexact) or bool(np.isfinite(value).all())


def open_extents(port, random):
    """Leave extents of an input open."""
    for axis, dim in enumerate(port.type.tensor_type.shape.dim):
        if random.random() < 0.6:
            dim.dim_param = f"{port.name}_{axis}"


def nearly_equal(left, right=None):
    """Whether floats are close and not the same; one operand alone is compared with itself."""
    if right is None or not np.issubdtype(left.dtype, np.floating):
        return False
    distance, size = abs(left - right), np.maximum(abs(left), abs(right))
    near = 2e-3 if left.dtype == HALF else 1e-5
    return bool(((distance > 0) & (distance <= near * size)).any())


def broadcasts(left, right):
    try:
        np.broadcast_shapes(left.shape, right.shape)
        return True
    except ValueError:
        return False


def element_type(value):
    if value.dtype.kind in "OU":
        return TensorProto.STRING
    return helper.np_dtype_to_tensor_dtype(value.dtype)


def ports(values):
    return [helper.make_tensor_value_info(name, element_type(value), value.shape) for name, value in values.items()]


def run(model, inputs, outputs=None):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return session.run(outputs, inputs)
    except Exception:  # noqa: BLE001
        return None
