"""Operators of random graphs: arithmetic, pieces, products, windows, normalizations, in the forms of several operator sets."""

import numpy as np
from graph import BOOL, DOUBLE, FLOAT, HALF, INTEGER, NARROW
from onnx import TensorProto

UNARY = {
    FLOAT: "Abs Ceil Cos Elu Erf Exp Floor HardSigmoid HardSwish LeakyRelu Mish Neg Relu Round Selu Sigmoid Sign Sin Softplus "
    "Softsign Sqrt Tanh ThresholdedRelu Celu Atan Gelu Identity Reciprocal Shrink Swish Sinh Cosh Asin Acos Asinh Acosh Atanh Tan Log IsNaN".split(),
    INTEGER: "Abs Neg Sign Identity BitwiseNot".split(),
    BOOL: ["Not", "Identity"],
}
BINARY = {
    FLOAT: "Add Sub Mul Div Min Max PRelu Less Greater Equal LessOrEqual GreaterOrEqual Sum Mean".split(),
    INTEGER: "Add Sub Mul Min Max Less Greater Equal BitwiseAnd BitwiseOr BitwiseXor".split(),
    BOOL: "And Or Xor Equal".split(),
}
REDUCE = "ReduceSum ReduceMean ReduceMax ReduceMin ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSumExp ReduceProd".split()


def kind_of(dtype):
    """Which list of functions an element type takes."""
    if np.issubdtype(dtype, np.floating):
        return FLOAT
    return BOOL if dtype == BOOL else INTEGER


def element(graph):
    """An element type: mostly those of models, now and then any."""
    common = (FLOAT, FLOAT, FLOAT, FLOAT, INTEGER, BOOL)
    return graph.pick(*common) if graph.random.random() < 0.7 else graph.pick(HALF, DOUBLE, *NARROW)


def numeric(graph):
    return graph.pick(FLOAT, FLOAT, FLOAT, FLOAT, DOUBLE, HALF, INTEGER, np.int32, np.int8, np.uint8)


def axes_of(graph, rank):
    return sorted({int(graph.random.integers(-rank, rank)) % rank for _ in range(int(graph.random.integers(1, rank + 1)))})


def unary(graph):
    dtype = element(graph)
    operator, attributes = graph.pick(*UNARY[kind_of(dtype)]), {}
    if operator in ["Elu", "LeakyRelu", "ThresholdedRelu", "Celu"] and graph.random.random() < 0.5:
        attributes["alpha"] = float(graph.random.random() + 0.1)
    if operator == "Shrink":
        attributes = {"lambd": float(graph.random.random()), "bias": float(graph.random.random())}
    if operator == "Gelu" and graph.random.random() < 0.5:
        attributes["approximate"] = "tanh"
    return graph.emit(operator, [graph.value(dtype)], **attributes)


def binary(graph):
    dtype = element(graph)
    left = graph.value(dtype)
    right, operator = graph.like(left), graph.pick(*BINARY[kind_of(dtype)])
    if operator == "PRelu" and np.broadcast_shapes(graph.values[left].shape, graph.values[right].shape) != graph.values[left].shape:
        return False
    return graph.emit(operator, [left, right])


def select(graph):
    left = graph.value(element(graph))
    condition = graph.new(BOOL, graph.values[left].shape)
    return graph.emit("Where", [condition, left, graph.like(left)])


def reduce(graph):
    x = graph.value(numeric(graph), range(1, 9))
    operator, axes = graph.pick(*REDUCE), axes_of(graph, graph.values[x].ndim)
    # Axes are an attribute in older operator sets.
    if graph.opset < (13 if operator == "ReduceSum" else 18):
        return graph.emit(operator, [x], keepdims=graph.pick(0, 1), axes=axes)
    return graph.emit(operator, [x, graph.constant(np.array(axes, np.int64))], keepdims=graph.pick(0, 1))


def index_of(graph):
    x = graph.value(numeric(graph), range(1, 9))
    axis = int(graph.random.integers(graph.values[x].ndim))
    kind = graph.pick("ArgMax", "ArgMin")
    last = {"select_last_index": graph.pick(0, 1)} if graph.opset >= 12 else {}
    return graph.emit(kind, [x], axis=axis, keepdims=graph.pick(0, 1), **last)


def scan(graph):
    x = graph.value(graph.pick(FLOAT, FLOAT, DOUBLE, HALF), range(1, 9))
    axis = int(graph.random.integers(graph.values[x].ndim))
    operator = graph.pick("Softmax", "LogSoftmax", "Hardmax", "CumSum", "LpNormalization")
    if operator == "CumSum":
        return graph.emit(operator, [x, graph.constant(np.array(axis))], exclusive=graph.pick(0, 1), reverse=graph.pick(0, 1))
    return graph.emit(operator, [x], axis=axis)


def move(graph):
    dtype = element(graph)
    x = graph.value(dtype, range(1, 9))
    value = graph.values[x]
    rank, axis = value.ndim, int(graph.random.integers(value.ndim))
    operator = graph.pick("Transpose", "Reshape", "Slice", "Concat", "Gather", "Expand", "Tile", "Unsqueeze", "Flatten", "Split",
                          "Pad", "GatherElements", "TopK", "Trilu", "ReverseSequence", "Shape", "ScatterElements", "Cast", "Squeeze")  # fmt: skip
    integers = lambda *list_: graph.constant(np.array(list_, np.int64))
    if operator == "Transpose":
        return graph.emit(operator, [x], perm=[int(place) for place in graph.random.permutation(rank)])
    if operator == "Reshape":
        return graph.emit(operator, [x, graph.pick(integers(-1), integers(1, -1), integers(-1, *value.shape[-1:]))])
    if operator == "Slice":
        extent = value.shape[axis]
        bounds = [int(bound) for bound in graph.random.integers(-extent - 1, extent + 2, 2)]
        if graph.opset < 10:
            return graph.emit(operator, [x], starts=bounds[:1], ends=bounds[1:], axes=[axis])
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
        return graph.emit(operator, [x], axes=[axis]) if graph.opset < 13 else graph.emit(operator, [x, integers(axis)])
    if operator == "Squeeze":
        ones = [place for place, extent in enumerate(value.shape) if extent == 1]
        if not ones:
            return False
        return graph.emit(operator, [x], axes=ones) if graph.opset < 13 else graph.emit(operator, [x, integers(*ones)])
    if operator == "Split":
        parts = {"num_outputs": 2} if graph.opset >= 18 else {}
        return graph.emit(operator, [x], outputs=2, axis=axis, **parts)
    if operator == "Pad":
        pads, mode = graph.random.integers(0, 3, 2 * rank), graph.pick("constant", "edge", "reflect", *(["wrap"] * (graph.opset >= 19)))
        if graph.opset < 11:
            return graph.emit(operator, [x], mode=mode, pads=[int(pad) for pad in pads])
        return graph.emit(operator, [x, integers(*pads)], mode=mode)
    if operator == "TopK":
        if graph.opset < 10:
            return graph.emit(operator, [x], outputs=2, axis=axis, k=max(1, value.shape[axis] // 2))
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
        return graph.emit(operator, [x], to=graph.pick(TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.DOUBLE, TensorProto.BOOL, TensorProto.UINT8,
                          TensorProto.INT8, TensorProto.FLOAT16))
    return graph.emit(operator, [x], **({"axis": axis} if operator == "Flatten" else {}))


def product(graph):
    dtype = graph.pick(FLOAT, FLOAT, FLOAT, DOUBLE, INTEGER, np.int32)
    x = graph.value(dtype, range(2, 5))
    value, width = graph.values[x], int(graph.random.integers(1, 9))
    if value.ndim == 2 and graph.random.random() < 0.5:
        across = graph.pick(0, 1)
        shape = (width, value.shape[1]) if across else (value.shape[1], width)
        addend = graph.new(dtype, graph.pick((width,), (1, width), (value.shape[0], 1), ()))
        attributes = {"alpha": graph.pick(1.0, 0.5), "beta": graph.pick(1.0, 2.0), "transB": across}
        return graph.emit("Gemm", [x, graph.new(dtype, shape), addend], **attributes)
    return graph.emit("MatMul", [x, graph.new(dtype, (value.shape[-1], width))])


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
    operator = graph.pick("LayerNormalization", "InstanceNormalization", "BatchNormalization", "LRN", "RMSNormalization")
    if operator == "RMSNormalization":
        return graph.emit(operator, [x, graph.new(FLOAT, value.shape[-1:])], epsilon=1e-3)
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
    parts = abs(np.modf(graph.values[x] / np.float32(0.05))[0])
    if (abs(parts - 0.5) < 1e-3).any() or not graph.emit("QuantizeLinear", [x, scale, zero]):
        return False
    return graph.emit("DequantizeLinear", [graph.nodes[-1].output[0], scale, zero])


def integer_products(graph):
    """Products of codes, with sums of 32 bits or quantized again."""
    codes = lambda dtype, *shape: graph.given(graph.random.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape).astype(dtype))
    left, right = graph.pick(np.uint8, np.int8), graph.pick(np.uint8, np.int8)
    scale = lambda *shape: graph.constant((graph.random.random(shape) * 0.05 + 0.01).astype(FLOAT))
    zero = lambda dtype: graph.constant(np.array(graph.random.integers(0, 9), dtype))
    operator = graph.pick("MatMulInteger", "QLinearMatMul", "ConvInteger", "QLinearConv")
    if operator == "MatMulInteger":
        return graph.emit(operator, [codes(left, 2, 3, 4), codes(right, 4, 5), zero(left), zero(right)])
    if operator == "ConvInteger":
        return graph.emit(operator, [codes(np.uint8, 1, 2, 5, 4), codes(right, 3, 2, 2, 2), zero(np.uint8), zero(right)], pads=[1, 0, 0, 1])
    if operator == "QLinearMatMul":
        given = [codes(left, 3, 4), scale(), zero(left), codes(right, 4, 5), scale(), zero(right), scale(), zero(left)]
    else:
        weights = [codes(np.int8, 3, 2, 2, 2), scale(3), graph.constant(np.zeros(3, np.int8))]
        given = [codes(np.uint8, 1, 2, 5, 4), scale(), zero(np.uint8), *weights, scale(), zero(np.uint8)]
    if not graph.emit(operator, given):
        return False
    # A sum in the middle between two codes may be rounded either way: both are one step apart, which the scale allows, if nothing
    # follows.
    if not graph.emit("DequantizeLinear", [graph.nodes[-1].output[0], given[-2], given[-1]]):
        return False
    graph.closed.update(graph.nodes[-2].output[:] + graph.nodes[-1].output[:])
    return True


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
          quantize, integer_products, recur, resize]  # fmt: skip
