"""Random graphs against ONNX Runtime with its optimizations off.

    IPUC=target/debug/ipuc python3 tests/differential/fuzz.py [--seconds 60] [--seed 1] [--keep DIR]

Each graph is a handful of nodes over a few shapes and element types, with random attributes; it is compiled and run by the
program, and its outputs are compared within the tolerances of `ipuc verify`. Graphs that ONNX Runtime does not run, or
whose outputs are not finite, do not count. A graph that differs or that ends in a panic is kept in DIR; what is refused is
counted by operator. Exit code 1 where anything differed.
"""

import argparse
import collections
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import numpy as np
import onnx
import onnxruntime as ort
from further import MAKERS as FURTHER
from onnx import TensorProto, helper, numpy_helper

OPSET = 21
FLOAT, INTEGER, BOOL = np.float32, np.int64, np.bool_
SHAPES = [(2, 3, 4), (1, 3, 4), (4,), (2, 1, 4), (3, 4), (2, 4, 6, 5), (1, 2, 7, 6), (), (1,), (5, 4), (4, 3)]

UNARY = {
    FLOAT: "Abs Ceil Cos Elu Erf Exp Floor HardSigmoid HardSwish LeakyRelu Mish Neg Relu Round Selu Sigmoid Sign Sin Softplus "
    "Softsign Sqrt Tanh ThresholdedRelu Celu Atan Gelu Identity Reciprocal Shrink".split(),
    INTEGER: "Abs Neg Sign Identity BitwiseNot".split(),
    BOOL: ["Not", "Identity"],
}
BINARY = {
    FLOAT: "Add Sub Mul Div Min Max PRelu Less Greater Equal LessOrEqual GreaterOrEqual Sum Mean".split(),
    INTEGER: "Add Sub Mul Min Max Less Greater Equal BitwiseAnd BitwiseOr BitwiseXor".split(),
    BOOL: "And Or Xor Equal".split(),
}
COMPARISONS = "Less Greater Equal LessOrEqual GreaterOrEqual".split()
REDUCE = "ReduceSum ReduceMean ReduceMax ReduceMin ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSumExp ReduceProd".split()


class Graph:
    """A graph while it is made: values by name with what ONNX Runtime computes for them, so that shapes are known."""

    def __init__(self, random):
        self.random, self.nodes, self.inputs, self.weights, self.values = random, [], {}, {}, {}
        self.captured = set()

    def pick(self, *choices):
        return choices[int(self.random.integers(len(choices)))]

    def tensor(self, dtype, shape):
        if dtype == FLOAT:
            return self.random.standard_normal(shape).astype(FLOAT)
        if dtype == BOOL:
            return self.random.integers(0, 2, shape).astype(bool)
        return self.random.integers(-3, 4, shape)

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
        fits = [name for name, value in self.values.items() if value.dtype == dtype and value.ndim in ranks]
        if fits and self.random.random() < 0.8:
            return self.pick(*fits)
        return self.new(dtype, self.pick(*[shape for shape in SHAPES if len(shape) in ranks]))

    def like(self, name):
        """A value that broadcasts with another, or the same one."""
        value = self.values[name]
        shape = tuple(1 if self.random.random() < 0.3 else extent for extent in value.shape)
        fits = [other for other, found in self.values.items() if found.dtype == value.dtype and broadcasts(found, value)]
        if fits and self.random.random() < 0.5:
            return self.pick(*fits)
        return self.new(value.dtype.type, shape[int(self.random.integers(len(shape) + 1)) :])

    def emit(self, operator, operands, outputs=1, captures=(), **attributes):
        """Append a node, whose graphs read `captures`; whether ONNX Runtime runs it on the values at hand."""
        names = [f"v{len(self.values) + index}" for index in range(outputs)]
        node = helper.make_node(operator, operands, names, **attributes)
        given = {name: self.values[name] for name in [*operands, *captures] if name}
        if operator == "ReduceMean" and not all(value.size for value in given.values()):
            return False  # The mean of nothing is undefined.
        if operator in COMPARISONS and nearly_equal(*given.values()):
            return False  # A rounding decides.
        graph = helper.make_graph([node], "one", ports(given), [helper.make_empty_tensor_value_info(name) for name in names])
        found = run(model_of(graph), given)
        if found is None or any(value.size > 5000 for value in found):
            return False
        if any(value.dtype == FLOAT and not np.isfinite(value).all() for value in found):
            return False
        self.captured.update(captures)
        self.nodes.append(node)
        self.values.update(zip(names, found))
        return True

    def model(self):
        used = {name for node in self.nodes for name in node.input} | self.captured
        made = [name for node in self.nodes for name in node.output]
        outputs = [name for name in made if name not in used] + [name for name in made if name in used][:1]
        inputs = {name: value for name, value in self.inputs.items() if name in used}
        weights = [numpy_helper.from_array(value, name) for name, value in self.weights.items() if name in used]
        results = [helper.make_tensor_value_info(name, element_type(self.values[name]), None) for name in outputs]
        return model_of(helper.make_graph(self.nodes, "random", ports(inputs), results, weights)), inputs, outputs


def nearly_equal(left, right=None):
    """Whether floats are close and not the same; one operand alone is compared with itself."""
    if right is None or left.dtype != FLOAT:
        return False
    distance, size = abs(left - right), np.maximum(abs(left), abs(right))
    return bool(((distance > 0) & (distance <= 1e-5 * size)).any())


def broadcasts(left, right):
    try:
        np.broadcast_shapes(left.shape, right.shape)
        return True
    except ValueError:
        return False


def element_type(value):
    return helper.np_dtype_to_tensor_dtype(value.dtype)


def ports(values):
    return [helper.make_tensor_value_info(name, element_type(value), value.shape) for name, value in values.items()]


def model_of(graph):
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)], ir_version=10)


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


def axes_of(graph, rank):
    return sorted({int(graph.random.integers(-rank, rank)) % rank for _ in range(int(graph.random.integers(1, rank + 1)))})


def unary(graph):
    dtype = graph.pick(FLOAT, FLOAT, FLOAT, INTEGER, BOOL)
    operator, attributes = graph.pick(*UNARY[dtype]), {}
    if operator in ["Elu", "LeakyRelu", "ThresholdedRelu", "Celu"] and graph.random.random() < 0.5:
        attributes["alpha"] = float(graph.random.random() + 0.1)
    if operator == "Shrink":
        attributes = {"lambd": float(graph.random.random()), "bias": float(graph.random.random())}
    if operator == "Gelu" and graph.random.random() < 0.5:
        attributes["approximate"] = "tanh"
    return graph.emit(operator, [graph.value(dtype)], **attributes)


def binary(graph):
    dtype = graph.pick(FLOAT, FLOAT, FLOAT, INTEGER, BOOL)
    left = graph.value(dtype)
    right, operator = graph.like(left), graph.pick(*BINARY[dtype])
    if operator == "PRelu" and np.broadcast_shapes(graph.values[left].shape, graph.values[right].shape) != graph.values[left].shape:
        return False
    return graph.emit(operator, [left, right])


def select(graph):
    left = graph.value()
    condition = graph.new(BOOL, graph.values[left].shape)
    return graph.emit("Where", [condition, left, graph.like(left)])


def reduce(graph):
    x = graph.value(ranks=range(1, 9))
    axes = graph.constant(np.array(axes_of(graph, graph.values[x].ndim), np.int64))
    return graph.emit(graph.pick(*REDUCE), [x, axes], keepdims=graph.pick(0, 1))


def index_of(graph):
    x = graph.value(ranks=range(1, 9))
    axis = int(graph.random.integers(graph.values[x].ndim))
    kind = graph.pick("ArgMax", "ArgMin")
    return graph.emit(kind, [x], axis=axis, keepdims=graph.pick(0, 1), select_last_index=graph.pick(0, 1))


def scan(graph):
    x = graph.value(ranks=range(1, 9))
    axis = int(graph.random.integers(graph.values[x].ndim))
    operator = graph.pick("Softmax", "LogSoftmax", "Hardmax", "CumSum", "LpNormalization")
    if operator == "CumSum":
        return graph.emit(operator, [x, graph.constant(np.array(axis))], exclusive=graph.pick(0, 1), reverse=graph.pick(0, 1))
    return graph.emit(operator, [x], axis=axis)


def move(graph):
    dtype = graph.pick(FLOAT, FLOAT, INTEGER)
    x = graph.value(dtype, range(1, 9))
    value = graph.values[x]
    rank, axis = value.ndim, int(graph.random.integers(value.ndim))
    operator = graph.pick("Transpose", "Reshape", "Slice", "Concat", "Gather", "Expand", "Tile", "Unsqueeze", "Flatten", "Split",
                          "Pad", "GatherElements", "TopK", "Trilu", "ReverseSequence", "Shape", "ScatterElements", "Cast")  # fmt: skip
    integers = lambda *list_: graph.constant(np.array(list_, np.int64))
    if operator == "Transpose":
        return graph.emit(operator, [x], perm=[int(place) for place in graph.random.permutation(rank)])
    if operator == "Reshape":
        return graph.emit(operator, [x, graph.pick(integers(-1), integers(1, -1), integers(-1, *value.shape[-1:]))])
    if operator == "Slice":
        extent = value.shape[axis]
        bounds = [int(bound) for bound in graph.random.integers(-extent - 1, extent + 2, 2)]
        return graph.emit(operator, [x, integers(bounds[0]), integers(bounds[1]), integers(axis), integers(graph.pick(1, 1, 2, -1, -2))])
    if operator == "Concat":
        return graph.emit(operator, [x, x, graph.new(dtype, value.shape)], axis=axis)
    if operator in ["Gather", "GatherElements"]:
        shape = value.shape if operator == "GatherElements" else graph.pick((), (2,), (2, 2))
        index = graph.constant(np.asarray(graph.random.integers(-value.shape[axis], value.shape[axis], shape), np.int64))
        return graph.emit(operator, [x, index], axis=axis)
    if operator == "ScatterElements":
        index = graph.constant(np.argsort(graph.random.random(value.shape), axis).astype(np.int64))
        return graph.emit(operator, [x, index, graph.new(dtype, value.shape)], axis=axis, reduction=graph.pick("none", "add", "max"))
    if operator == "Expand":
        return graph.emit(operator, [x, integers(2, *value.shape)])
    if operator == "Tile":
        return graph.emit(operator, [x, integers(*graph.random.integers(1, 3, rank))])
    if operator == "Unsqueeze":
        return graph.emit(operator, [x, integers(axis)])
    if operator == "Split":
        return graph.emit(operator, [x], outputs=2, axis=axis, num_outputs=2)
    if operator == "Pad":
        pads = integers(*graph.random.integers(0, 3, 2 * rank))
        return graph.emit(operator, [x, pads], mode=graph.pick("constant", "edge", "reflect"))
    if operator == "TopK":
        count = integers(max(1, value.shape[axis] // 2))
        return graph.emit(operator, [x, count], outputs=2, axis=axis, largest=graph.pick(0, 1))
    if operator == "Trilu":
        return rank >= 2 and graph.emit(operator, [x, graph.constant(np.array(graph.pick(-1, 0, 1)))], upper=graph.pick(0, 1))
    if operator == "ReverseSequence":
        if rank < 2 or not value.size:
            return False
        lengths = integers(*graph.random.integers(1, value.shape[0] + 1, value.shape[1]))
        return graph.emit(operator, [x, lengths], batch_axis=1, time_axis=0)
    if operator == "Cast":
        return graph.emit(operator, [x], to=graph.pick(TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.DOUBLE))
    return graph.emit(operator, [x], **({"axis": axis} if operator == "Flatten" else {}))


def product(graph):
    x = graph.value(ranks=range(2, 5))
    value, width = graph.values[x], int(graph.random.integers(1, 9))
    if value.ndim == 2 and graph.random.random() < 0.5:
        across = graph.pick(0, 1)
        shape = (width, value.shape[1]) if across else (value.shape[1], width)
        addend = graph.new(FLOAT, graph.pick((width,), (1, width), (value.shape[0], 1), ()))
        attributes = {"alpha": graph.pick(1.0, 0.5), "beta": graph.pick(1.0, 2.0), "transB": across}
        return graph.emit("Gemm", [x, graph.new(FLOAT, shape), addend], **attributes)
    return graph.emit("MatMul", [x, graph.new(FLOAT, (value.shape[-1], width))])


def window(graph):
    x = graph.value(ranks=[3, 4])
    value = graph.values[x]
    axes = value.ndim - 2
    list_ = lambda low, high: [int(item) for item in graph.random.integers(low, high, axes)]
    operator = graph.pick("Conv", "MaxPool", "AveragePool", "LpPool", "ConvTranspose")
    kernel, attributes = list_(1, 4), {"strides": list_(1, 3)}
    # ONNX Runtime does not give `ConvTranspose` the extents that the text states for SAME_UPPER and SAME_LOWER.
    if graph.random.random() < 0.3 and operator != "ConvTranspose":
        attributes["auto_pad"] = graph.pick("SAME_UPPER", "SAME_LOWER", "VALID")
    else:
        attributes["pads"] = list_(0, 2) + list_(0, 2)
        attributes["dilations"] = list_(1, 3)
    # Of a window that does not fit ONNX Runtime rounds the count towards 0, and the text down.
    gaps = attributes.get("dilations", [1] * axes)
    spans = [(taps - 1) * gap + 1 for taps, gap in zip(kernel, gaps)]
    if any(span > extent for span, extent in zip(spans, value.shape[2:])):
        return False
    channels = value.shape[1]
    if operator == "Conv":
        group = channels if graph.random.random() < 0.3 else 1
        weight = graph.new(FLOAT, (2 * group, channels // group, *kernel))
        return graph.emit(operator, [x, weight, graph.new(FLOAT, (2 * group,))], group=group, **attributes)
    if operator == "ConvTranspose":
        return graph.emit(operator, [x, graph.new(FLOAT, (channels, 2, *kernel))], **attributes)
    # With VALID the text and ONNX Runtime do not count alike where the count is rounded up.
    if operator != "LpPool" and "auto_pad" not in attributes:
        attributes["ceil_mode"] = graph.pick(0, 0, 1)
    if operator == "AveragePool":
        attributes["count_include_pad"] = graph.pick(0, 1)
    return graph.emit(operator, [x], kernel_shape=kernel, **attributes)


def normalize(graph):
    x = graph.value(ranks=[3, 4])
    value = graph.values[x]
    channels = value.shape[1]
    vector = lambda: graph.new(FLOAT, (channels,))
    operator = graph.pick("LayerNormalization", "InstanceNormalization", "BatchNormalization", "LRN")
    if operator == "LayerNormalization":
        return graph.emit(operator, [x, graph.new(FLOAT, value.shape[-1:]), graph.new(FLOAT, value.shape[-1:])], epsilon=1e-3)
    if operator == "LRN":
        return graph.emit(operator, [x], size=graph.pick(1, 3))
    if operator == "InstanceNormalization":
        return graph.emit(operator, [x, vector(), vector()], epsilon=1e-2)
    variance = graph.constant(graph.random.random(channels).astype(FLOAT) + 0.5)
    return graph.emit(operator, [x, vector(), vector(), vector(), variance])


def quantize(graph):
    x = graph.value(ranks=range(1, 5))
    dtype = graph.pick(np.uint8, np.int8)
    scale, zero = graph.constant(np.array(0.05, FLOAT)), graph.constant(np.array(3, dtype))
    if not graph.emit("QuantizeLinear", [x, scale, zero]):
        return False
    return graph.emit("DequantizeLinear", [graph.nodes[-1].output[0], scale, zero])


def recur(graph):
    x = graph.value(ranks=[3])
    (steps, batch, size), hidden = graph.values[x].shape, 3
    if size == 0:
        return False  # ONNX Runtime ends the process.
    operator, gates = graph.pick(("LSTM", 4), ("GRU", 3), ("RNN", 1))
    direction = graph.pick("forward", "reverse", "bidirectional")
    count = 2 if direction == "bidirectional" else 1
    weights = [graph.new(FLOAT, (count, gates * hidden, extent)) for extent in (size, hidden)]
    bias = graph.new(FLOAT, (count, 2 * gates * hidden))
    attributes = {"linear_before_reset": graph.pick(0, 1)} if operator == "GRU" else {}
    return graph.emit(operator, [x, *weights, bias], outputs=2, hidden_size=hidden, direction=direction, **attributes)


def resize(graph):
    x = graph.value(ranks=[4])
    scales = graph.constant(np.array([1, 1, graph.pick(0.5, 1.5, 2.0), graph.pick(0.6, 2.0)], FLOAT))
    mode = graph.pick("nearest", "linear", "cubic")
    place = graph.pick("asymmetric", "half_pixel", "align_corners", "pytorch_half_pixel")
    target = [x, "", scales]
    if place == "align_corners":
        # Of scales ONNX takes the product with the extent, ONNX Runtime the whole part of it.
        sizes = [*graph.values[x].shape[:2], *(int(extent) for extent in graph.random.integers(2, 12, 2))]
        target = [x, "", "", graph.constant(np.array(sizes, np.int64))]
    return graph.emit("Resize", target, mode=mode, coordinate_transformation_mode=place)


MAKERS = [unary, unary, binary, binary, select, reduce, index_of, scan, move, move, move, product, window, window, normalize,
          quantize, recur, resize, *FURTHER]  # fmt: skip


def random_graph(seed):
    graph = Graph(np.random.default_rng(seed))
    for _ in range(int(graph.random.integers(1, 7))):
        graph.pick(*MAKERS)(graph)
    return graph


def check(program, graph, folder):
    """`agrees`, `refused OPERATOR`, or what is wrong."""
    model, inputs, outputs = graph.model()
    expected = run(model, inputs, outputs)
    if expected is None:
        return "agrees"
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "model.onnx")
    np.savez(folder / "data.npz", **inputs, **dict(zip(outputs, expected)))
    command = [program, "verify", folder / "model.onnx", "--data", folder / "data.npz"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return "it does not end within 60 s"
    if done.returncode == 0:
        return "agrees"
    refusal = re.search(r"\((?:ai\.onnx|com\.microsoft)\.(\w+), opset \d+\): .* is not supported", done.stderr)
    return f"refused {refusal[1]}" if refusal else (done.stdout + done.stderr).strip()


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--seconds", type=float, default=60)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--keep", type=pathlib.Path, default=pathlib.Path("differential_failures"))
    given = arguments.parse_args()
    target = os.environ.get("CARGO_TARGET_DIR", "target")
    program = os.environ.get("IPUC", f"{target}/debug/ipuc")
    end, seed = time.monotonic() + given.seconds, given.seed * 1_000_000
    counts, wrong = collections.Counter(), []
    with tempfile.TemporaryDirectory() as scratch:
        while time.monotonic() < end:
            seed += 1
            graph = random_graph(seed)
            if not graph.nodes:
                continue
            result = check(program, graph, pathlib.Path(scratch))
            counts[result if result.startswith(("agrees", "refused")) else "wrong"] += 1
            if not result.startswith(("agrees", "refused")):
                wrong.append(seed)
                check(program, graph, given.keep / str(seed))
                print(f"seed {seed}: {' '.join(node.op_type for node in graph.nodes)}: {result}", flush=True)
    print(", ".join(f"{count} {result}" for result, count in counts.most_common()))
    sys.exit(1 if wrong else 0)


main()
