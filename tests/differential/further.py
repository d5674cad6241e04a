"""Further operators of random graphs: places and pieces, images, spectra, attention, and those that ONNX Runtime has beside ONNX."""

import numpy as np
from graph import BOOL, FLOAT, INTEGER  # noqa: F401
from onnx import TensorProto, helper

MICROSOFT = {"domain": "com.microsoft"}


def integers(graph, *list_):
    return graph.constant(np.array(list_, np.int64))


def arithmetic(graph):
    operator = graph.pick("Pow", "Mod", "BitShift", "Clip", "IsNaN", "IsInf", "Sum", "Max", "BitwiseAnd")
    if operator == "Pow":
        x = graph.value()
        return graph.emit(operator, [x, graph.constant(np.array(graph.pick(2.0, 3.0, 1.0, 0.0), FLOAT))])
    if operator == "Mod":
        dtype = graph.pick(FLOAT, INTEGER)
        x = graph.value(dtype)
        divisor = graph.constant(np.array(graph.pick(-3, 2, 5), dtype))
        return graph.emit(operator, [x, divisor], fmod=1 if dtype == FLOAT else graph.pick(0, 1))
    if operator == "BitShift":
        x = graph.constant(graph.random.integers(0, 200, graph.pick((3,), (2, 3))).astype(graph.pick(np.uint8, np.uint32)))
        by = graph.constant(graph.random.integers(0, 5, (3,)).astype(graph.values[x].dtype))
        return graph.emit(operator, [x, by], direction=graph.pick("LEFT", "RIGHT"))
    if operator == "Clip":
        x = graph.value()
        if graph.opset < 11:
            return graph.emit(operator, [x], **graph.pick({"min": -0.5, "max": 0.7}, {"min": -0.5}, {"max": 0.7}, {}))
        bounds = [graph.constant(np.array(bound, FLOAT)) for bound in (-0.5, 0.7)]
        return graph.emit(operator, [x, *graph.pick(bounds, bounds[:1], ["", bounds[1]])])
    if operator.startswith("Is"):
        return graph.emit(operator, [graph.value()])
    if operator == "BitwiseAnd":
        x = graph.value(INTEGER)
        return graph.emit(operator, [x, graph.like(x)])
    x = graph.value()
    return graph.emit(operator, [x, graph.like(x), graph.like(x)])


def places(graph):
    operator = graph.pick("GatherND", "ScatterND", "OneHot", "NonZero", "Compress", "Unique", "EyeLike", "Range", "Squeeze",
                          "CenterCropPad", "DepthToSpace", "SpaceToDepth", "Size", "ConstantOfShape", "Einsum", "Dropout")  # fmt: skip
    if operator == "GatherND":
        x = graph.value(ranks=[2, 3])
        value = graph.values[x]
        index = np.stack([graph.random.integers(-extent, extent, (2, 2)) for extent in value.shape[:2] if extent], -1)
        return graph.emit(operator, [x, graph.constant(index)])
    if operator == "ScatterND":
        x = graph.value(ranks=[2, 3])
        value = graph.values[x]
        if not value.size:
            return False
        rows = graph.random.permutation(value.shape[0])[:2].reshape(-1, 1)
        updates = graph.new(FLOAT, (len(rows), *value.shape[1:]))
        return graph.emit(operator, [x, graph.constant(rows.astype(np.int64)), updates], reduction=graph.pick("none", "add", "mul", "max"))
    if operator == "OneHot":
        x = graph.value(INTEGER)
        values = graph.constant(np.array([-1.0, 2.0], FLOAT))
        return graph.emit(operator, [x, graph.constant(np.array(5)), values], axis=graph.pick(-1, 0))
    if operator == "Compress":
        x = graph.value(ranks=range(1, 5))
        axis = int(graph.random.integers(graph.values[x].ndim))
        keep = graph.constant(graph.random.integers(0, 2, graph.values[x].shape[axis]).astype(bool))
        return graph.emit(operator, [x, keep], axis=axis)
    if operator == "Unique":
        return graph.emit(operator, [graph.value(INTEGER, range(1, 5))], outputs=4, sorted=graph.pick(0, 1))
    if operator == "EyeLike":
        return graph.emit(operator, [graph.value(ranks=[2])], k=graph.pick(-1, 0, 1), dtype=graph.pick(1, 7))
    if operator == "Range":
        dtype = graph.pick(FLOAT, INTEGER)
        return graph.emit(operator, [graph.constant(np.array(number, dtype)) for number in graph.pick((0, 7, 2), (5, -3, -2), (1, 1, 1))])
    if operator == "Squeeze":
        ones = [name for name, value in graph.tensors() if 1 in value.shape]
        return bool(ones) and graph.emit(operator, [graph.pick(*ones)])
    if operator == "CenterCropPad":
        x = graph.value(ranks=[2, 3])
        return graph.emit(operator, [x, integers(graph, 3, 5)], axes=[0, 1])
    if operator in ["DepthToSpace", "SpaceToDepth"]:
        x = graph.new(FLOAT, (1, 8, 4, 2))
        mode = {"mode": graph.pick("DCR", "CRD")} if operator == "DepthToSpace" else {}
        return graph.emit(operator, [x], blocksize=2, **mode)
    if operator == "ConstantOfShape":
        value = helper.make_tensor("value", graph.pick(TensorProto.FLOAT, TensorProto.INT64), [1], [3])
        return graph.emit(operator, [integers(graph, 2, 3)], value=value)
    if operator == "Einsum":
        equation, shapes = graph.pick(("ij,jk->ik", [(3, 4), (4, 2)]), ("bij,bjk->bki", [(2, 3, 4), (2, 4, 2)]), ("ii->i", [(3, 3)]),
                                      ("ij->j", [(3, 4)]), ("...i,ij->...j", [(2, 3, 4), (4, 2)]), ("i,j->ij", [(3,), (2,)]))  # fmt: skip
        return graph.emit(operator, [graph.new(FLOAT, shape) for shape in shapes], equation=equation)
    dtype = graph.pick(FLOAT, INTEGER) if operator in ["NonZero", "Size"] else FLOAT
    return graph.emit(operator, [graph.value(dtype, range(1, 9))])


def images(graph):
    operator = graph.pick("GridSample", "RoiAlign", "MaxRoiPool", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", "AffineGrid")
    x = graph.value(ranks=[4])
    value = graph.values[x]
    if not value.size:
        return False
    if operator == "GridSample":
        grid = graph.constant((graph.random.random((value.shape[0], 3, 2, 2)) * 2.4 - 1.2).astype(FLOAT))
        # ONNX Runtime moves positions to the border before it interpolates; the text moves the neighbours.
        padding = graph.pick("zeros", "border", "reflection")
        mode = graph.pick("linear", "nearest", *(["cubic"] if padding == "zeros" else []))
        return graph.emit(operator, [x, grid], mode=mode, padding_mode=padding, align_corners=graph.pick(0, 1))
    if operator in ["RoiAlign", "MaxRoiPool"]:
        corners = np.sort(graph.random.random((3, 2, 2)), 1).reshape(3, 4) * 5
        if operator == "MaxRoiPool":
            regions = graph.constant(np.concatenate([np.zeros((3, 1)), corners.round()], 1).astype(FLOAT))
            return graph.emit(operator, [x, regions], pooled_shape=[2, 2])
        batch = integers(graph, *graph.random.integers(0, value.shape[0], 3))
        options = {"output_height": 2, "output_width": 3, "sampling_ratio": graph.pick(0, 2), "mode": graph.pick("avg", "max")}
        # Of several samples ONNX Runtime takes the largest product of a weight and a pixel, the text the largest pixel.
        options["mode"] = "avg"
        return graph.emit(operator, [x, graph.constant(corners.astype(FLOAT)), batch], **options)
    if operator == "AffineGrid":
        theta = graph.new(FLOAT, (2, 2, 3))
        return graph.emit(operator, [theta, integers(graph, 2, 3, 4, 5)], align_corners=graph.pick(0, 1))
    return graph.emit(operator, [x])


def spectra(graph):
    operator = graph.pick("DFT", "STFT", "HannWindow", "HammingWindow", "BlackmanWindow")
    if operator == "DFT":
        x = graph.new(FLOAT, (2, graph.pick(5, 8, 12), graph.pick(1, 2)))
        onesided = graph.pick(0, 1) if graph.values[x].shape[-1] == 1 else 0
        return graph.emit(operator, [x, "", graph.constant(np.array(1))], onesided=onesided, inverse=0 if onesided else graph.pick(0, 1))
    if operator == "STFT":
        x, step = graph.new(FLOAT, (1, 24, 1)), graph.constant(np.array(graph.pick(3, 4)))
        frame = graph.constant(np.array(8))
        window = graph.pick("", graph.new(FLOAT, (8,)))
        return graph.emit(operator, [x, step, window, frame], onesided=graph.pick(0, 1))
    return graph.emit(operator, [graph.constant(np.array(graph.pick(5, 8)))], periodic=graph.pick(0, 1))


def converted(graph):
    """Other element types, there and back."""
    x = graph.value()
    to = graph.pick(TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.INT8, TensorProto.UINT8, TensorProto.INT32)
    if to == TensorProto.UINT8:
        if not graph.emit("Abs", [x]):
            return False
        x = graph.nodes[-1].output[0]
    if not graph.emit("Cast", [x], to=to):
        return False
    narrow = graph.nodes[-1].output[0]
    # Sums and products of f16 ONNX Runtime leaves in f32 where a Cast follows.
    both = graph.pick("Max", "Concat") if to == TensorProto.FLOAT16 else graph.pick("Add", "Mul", "Max", "Concat")
    done = graph.emit(both, [narrow, narrow], **({"axis": 0} if both == "Concat" else {}))
    return done and graph.emit("Cast", [graph.nodes[-1].output[0]], to=TensorProto.FLOAT)


def fused(graph):
    """Of ONNX Runtime's own operators those that its optimizer and its quantizer write."""
    operator = graph.pick("FusedMatMul", "Gelu", "FastGelu", "QuickGelu", "BiasGelu", "SkipLayerNormalization", "RotaryEmbedding",
                          "SkipSimplifiedLayerNormalization", "MultiHeadAttention", "MatMulNBits", "DynamicQuantizeMatMul",
                          "FusedConv", "QLinearAdd", "GroupQueryAttention", "CDist")  # fmt: skip
    new = lambda *shape: graph.new(FLOAT, shape)
    if operator == "FusedMatMul":
        options = {name: graph.pick(0, 1) for name in ["transA", "transB"]}
        left = new(2, *((4, 3) if options["transA"] else (3, 4)))
        return graph.emit(operator, [left, new(*((5, 4) if options["transB"] else (4, 5)))], alpha=graph.pick(1.0, 0.5), **options, **MICROSOFT)
    if operator in ["Gelu", "FastGelu", "QuickGelu"]:
        return graph.emit(operator, [graph.value()], **MICROSOFT)
    if operator == "BiasGelu":
        x = graph.value(ranks=[2, 3])
        return graph.emit(operator, [x, graph.new(FLOAT, graph.values[x].shape[-1:])], **MICROSOFT)
    if operator.startswith("Skip"):
        x = graph.value(ranks=[3])
        shape = graph.values[x].shape
        vectors = [graph.new(FLOAT, shape[-1:]) for _ in range(graph.pick(1, 2))]
        return graph.emit(operator, [x, graph.new(FLOAT, shape), *vectors], epsilon=1e-3, **MICROSOFT)
    if operator == "RotaryEmbedding":
        positions = graph.constant(graph.random.integers(0, 6, (2, 3)))
        options = {"interleaved": graph.pick(0, 1)}
        return graph.emit(operator, [new(2, 2, 3, 8), positions, new(6, 4), new(6, 4)], **options, **MICROSOFT)
    if operator == "MultiHeadAttention":
        options = {"num_heads": 2, "unidirectional": graph.pick(0, 1)}
        return graph.emit(operator, [new(2, 3, 8), new(2, 3, 8), new(2, 3, 8)], **options, **MICROSOFT)
    if operator == "GroupQueryAttention":
        past = [new(1, 1, 2, 8), new(1, 1, 2, 8)]
        lengths = [graph.constant(np.array([4], np.int32)), graph.constant(np.array(5, np.int32))]
        options = {"num_heads": 2, "kv_num_heads": 1, "local_window_size": graph.pick(-1, 2)}
        return graph.emit(operator, [new(1, 3, 16), new(1, 3, 8), new(1, 3, 8), *past, *lengths], outputs=3, **options, **MICROSOFT)
    if operator == "MatMulNBits":
        codes = graph.constant(graph.random.integers(0, 256, (5, 2, 8)).astype(np.uint8))
        return graph.emit(operator, [new(3, 32), codes, new(5, 2)], K=32, N=5, bits=4, block_size=16, **MICROSOFT)
    if operator == "DynamicQuantizeMatMul":
        codes = graph.constant(graph.random.integers(-128, 128, (4, 5)).astype(np.int8))
        scale, zero = graph.constant(np.array(0.02, FLOAT)), graph.constant(np.array(3, np.int8))
        return graph.emit(operator, [new(3, 4), codes, scale, zero], **MICROSOFT)
    if operator == "FusedConv":
        return graph.emit(operator, [new(1, 3, 5, 4), new(2, 3, 2, 2), new(2)], activation=graph.pick("Relu", "Sigmoid", "Tanh"), **MICROSOFT)
    if operator == "QLinearAdd":
        codes = [graph.constant(graph.random.integers(0, 256, (2, 3)).astype(np.uint8)) for _ in range(2)]
        scale, zero = graph.constant(np.array(0.05, FLOAT)), graph.constant(np.array(120, np.uint8))
        done = graph.emit(operator, [codes[0], scale, zero, codes[1], scale, zero, scale, zero], **MICROSOFT)
        return done and graph.emit("DequantizeLinear", [graph.nodes[-1].output[0], scale, zero])
    return graph.emit(operator, [new(3, 4), new(5, 4)], metric=graph.pick("euclidean", "sqeuclidean"), **MICROSOFT)


def loops(graph):
    """A condition, and a loop that adds."""
    x = graph.value(ranks=range(1, 4))
    info = lambda name, kind=TensorProto.FLOAT: helper.make_tensor_value_info(name, kind, None)
    if graph.random.random() < 0.5:
        condition = graph.constant(np.array(graph.pick(True, False)))
        branches = [
            helper.make_graph([helper.make_node(operator, [x], [f"{operator}_result"])], operator, [], [info(f"{operator}_result")])
            for operator in ["Neg", "Abs"]
        ]
        return graph.emit("If", [condition], captures=[x], then_branch=branches[0], else_branch=branches[1])
    nodes = [
        helper.make_node("Add", ["carried", x], ["next"]),
        helper.make_node("Identity", ["go_on"], ["goes_on"]),
        helper.make_node("Identity", ["next"], ["each"]),
    ]
    inputs = [info("step", TensorProto.INT64), info("go_on", TensorProto.BOOL), info("carried")]
    body = helper.make_graph(nodes, "body", inputs, [info("goes_on", TensorProto.BOOL), info("next"), info("each")])
    count = graph.constant(np.array(graph.pick(0, 1, 3)))
    return graph.emit("Loop", [count, "", x], outputs=2, captures=[x], body=body)


MAKERS = [arithmetic, arithmetic, places, places, places, images, spectra, converted, fused, fused, loops]
