#!/usr/bin/env python3
"""Time of single operators against ONNX Runtime, in the same minutes on the same machine.

    cargo build --release
    pip install onnx onnxruntime
    python3 benches/operators.py [--only conv,topk] [--threads 1,2] [--rounds 3] [--seconds 0.15]

Each case is a model of one node at a size that networks have; what they store (weights, bounds, axes) are initializers, all
else is an input. Its names begin with what the operator does, `--only` takes parts of them, `--list` prints them.

Both sides run one after the other in each round. ONNX Runtime stays in one process that makes a new session for each round, so
that no thread of it is left while the other side runs; its results stay values of its own, as ipuc's do. Of all timed runs of
all rounds the medians are compared: a ratio below 1 says that ipuc is faster. A case that one side refuses says so.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper

# Runs before the timed ones.
WARM_RUNS = 2
OPSET = 20
# Newest form of a model that ONNX Runtime reads.
IR_VERSION = 10

random = numpy.random.default_rng(7)


def f32(*shape):
    return random.standard_normal(shape, dtype=numpy.float32)


def f16(*shape):
    return f32(*shape).astype(numpy.float16)


def f64(*shape):
    return f32(*shape).astype(numpy.float64)


def integers(dtype, low, high, *shape):
    return random.integers(low, high, shape, dtype=dtype)


def u8(*shape):
    return integers(numpy.uint8, 0, 256, *shape)


def i8(*shape):
    return integers(numpy.int8, -128, 128, *shape)


def i64(*shape, low=-1000, high=1000):
    return integers(numpy.int64, low, high, *shape)


def truths(*shape):
    return random.random(shape) < 0.5


def positive(*shape):
    return numpy.abs(f32(*shape)) + numpy.float32(0.1)


class Stored:
    """An operand that the model stores."""

    def __init__(self, array, dtype=None):
        self.array = numpy.asarray(array, dtype)


def scale(value=0.02):
    return Stored(value, numpy.float32)


def zero(dtype, value=0):
    return Stored(value, dtype)


def axes(*values):
    return Stored(values, numpy.int64)


class Case:
    """One node: operands are arrays (inputs), `Stored` arrays (initializers) or None (left out)."""

    def __init__(self, name, operator, operands, outputs=1, **attributes):
        self.name, self.operator, self.operands, self.outputs, self.attributes = (
            name,
            operator,
            operands,
            outputs,
            attributes,
        )

    def write(self, folder):
        """The model and its inputs; names and files of these."""
        folder.mkdir(parents=True, exist_ok=True)
        names, inputs, stored, files = [], [], [], []
        for index, operand in enumerate(self.operands() if callable(self.operands) else self.operands):
            name = "" if operand is None else f"x{index}"
            names.append(name)
            if operand is None:
                continue
            array = operand.array if isinstance(operand, Stored) else operand
            tensor = array if isinstance(array, TensorProto) else numpy_helper.from_array(array, name)
            tensor.name = name
            if isinstance(operand, Stored):
                stored.append(tensor)
                continue
            inputs.append(helper.make_tensor_value_info(name, tensor.data_type, tensor.dims))
            files.append((name, folder / f"{name}.pb"))
            files[-1][1].write_bytes(tensor.SerializeToString())
        results = [f"y{index}" for index in range(self.outputs)]
        node = helper.make_node(self.operator, names, results, **self.attributes)
        outputs = [onnx.ValueInfoProto(name=name) for name in results]
        graph = helper.make_graph([node], "case", inputs, outputs, stored)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        model = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        (folder / "model.onnx").write_bytes(model.SerializeToString())
        return files


def bf16(*shape):
    bits = f32(*shape).view(numpy.uint32) >> 16
    return helper.make_tensor("", TensorProto.BFLOAT16, shape, bits.astype(numpy.uint16).tobytes(), raw=True)


def boxes(count):
    corners = random.random((1, count, 2), dtype=numpy.float32) * 500
    return numpy.concatenate([corners, corners + 10 + random.random((1, count, 2), dtype=numpy.float32) * 60], 2)


def regions(count):
    return numpy.ascontiguousarray(boxes(count)[0])


def unit(*shape):
    return random.random(shape, dtype=numpy.float32) * 2 - 1


def recurrent(gates, steps, batch, width, hidden):
    return lambda: [
        f32(steps, batch, width),
        Stored(f32(1, gates * hidden, width) * 0.1),
        Stored(f32(1, gates * hidden, hidden) * 0.1),
        Stored(f32(1, 2 * gates * hidden) * 0.1),
    ]


def products():
    """Products and convolutions."""
    yield Case("einsum of two, matrices", "Einsum", lambda: [f32(8, 128, 64), f32(8, 64, 128)], equation="bij,bjk->bik")
    yield Case(
        "einsum of two, heads",
        "Einsum",
        lambda: [f32(2, 128, 8, 64), f32(2, 128, 8, 64)],
        equation="bqhd,bkhd->bhqk",
    )
    yield Case("einsum of two, outer", "Einsum", lambda: [f32(1024), f32(1024)], equation="i,j->ij")
    yield Case(
        "einsum of three", "Einsum", lambda: [f32(64, 64), f32(64, 64), f32(64, 64)], equation="ij,jk,kl->il"
    )
    quantized = [scale(), zero(numpy.uint8, 128)]
    yield Case(
        "qlinear convolution",
        "QLinearConv",
        lambda: [u8(1, 64, 56, 56), *quantized, Stored(u8(64, 64, 3, 3)), *quantized, *quantized],
        pads=[1, 1, 1, 1],
    )
    yield Case(
        "qlinear product",
        "QLinearMatMul",
        lambda: [u8(128, 768), *quantized, Stored(u8(768, 768)), *quantized, *quantized],
    )
    yield Case(
        "integer product",
        "MatMulInteger",
        lambda: [u8(128, 768), Stored(u8(768, 768)), zero(numpy.uint8, 128), zero(numpy.uint8, 128)],
    )
    yield Case(
        "integer convolution",
        "ConvInteger",
        lambda: [u8(1, 64, 56, 56), Stored(u8(64, 64, 3, 3)), zero(numpy.uint8, 128), zero(numpy.uint8, 128)],
        pads=[1, 1, 1, 1],
    )
    yield Case("product 65536x8 by 8x8", "MatMul", lambda: [f32(65536, 8), f32(8, 8)])
    yield Case("product 65536x8 by stored 8x8", "MatMul", lambda: [f32(65536, 8), Stored(f32(8, 8))])
    yield Case("product f32", "MatMul", lambda: [f32(512, 512), f32(512, 512)])
    yield Case("product of batches f32", "MatMul", lambda: [f32(96, 64, 64), f32(96, 64, 64)])
    yield Case("product f64", "MatMul", lambda: [f64(256, 256), f64(256, 256)])
    yield Case("product f16", "MatMul", lambda: [f16(256, 512), f16(512, 512)])
    yield Case("product f16 stored", "MatMul", lambda: [f16(128, 768), Stored(f16(768, 768))])
    yield Case("gemm f64", "Gemm", lambda: [f64(256, 256), f64(256, 256), f64(256)], transB=1)
    yield Case(
        "convolution f16", "Conv", lambda: [f16(1, 64, 56, 56), Stored(f16(64, 64, 3, 3) / 24)], pads=[1, 1, 1, 1]
    )
    yield Case("convolution f32", "Conv", lambda: [f32(1, 64, 56, 56), Stored(f32(64, 64, 3, 3))], pads=[1, 1, 1, 1])
    yield Case("convolution of 1 axis f32", "Conv", lambda: [f32(1, 80, 3000), Stored(f32(384, 80, 3))], pads=[1, 1])
    yield Case(
        "convolution of 3 axes f32", "Conv", lambda: [f32(1, 16, 16, 32, 32), Stored(f32(32, 16, 3, 3, 3))], pads=[1] * 6
    )
    yield Case(
        "transposed convolution",
        "ConvTranspose",
        lambda: [f32(1, 64, 64, 64), Stored(f32(64, 32, 2, 2))],
        strides=[2, 2],
    )
    yield Case(
        "transposed convolution 4x4",
        "ConvTranspose",
        lambda: [f32(1, 64, 32, 32), Stored(f32(64, 32, 4, 4))],
        strides=[2, 2],
        pads=[1, 1, 1, 1],
    )
    yield Case(
        "recurrent GRU", "GRU", recurrent(3, 50, 1, 256, 256), outputs=2, hidden_size=256, linear_before_reset=1
    )
    yield Case("recurrent LSTM", "LSTM", recurrent(4, 50, 1, 256, 256), outputs=3, hidden_size=256)
    yield Case("recurrent LSTM batch 16", "LSTM", recurrent(4, 30, 16, 128, 128), outputs=3, hidden_size=128)
    yield Case("recurrent RNN", "RNN", lambda: [
        f32(50, 1, 256), Stored(f32(1, 256, 256) * 0.1), Stored(f32(1, 256, 256) * 0.1), Stored(f32(1, 512))
    ], outputs=2, hidden_size=256)
    yield Case(
        "deformable convolution",
        "DeformConv",
        lambda: [f32(1, 32, 32, 32), Stored(f32(32, 32, 3, 3)), f32(1, 18, 32, 32)],
        pads=[1, 1, 1, 1],
    )
    yield Case("determinant", "Det", lambda: [f32(512, 8, 8)])


def conversions():
    """Conversions and quantization."""
    pairs = [("f32", f32), ("f16", f16), ("f64", f64), ("u8", u8), ("i64", i64), ("bool", truths)]
    targets = {
        "f32": TensorProto.FLOAT,
        "f16": TensorProto.FLOAT16,
        "bf16": TensorProto.BFLOAT16,
        "u8": TensorProto.UINT8,
        "i8": TensorProto.INT8,
        "i32": TensorProto.INT32,
        "i64": TensorProto.INT64,
        "f64": TensorProto.DOUBLE,
        "bool": TensorProto.BOOL,
    }
    wanted = {
        "f32": ["u8", "i8", "f16", "bf16", "i64", "i32", "bool", "f64"],
        "f16": ["f32"],
        "f64": ["f32"],
        "u8": ["f32"],
        "i64": ["f32", "i32", "bool"],
        "bool": ["f32", "i64"],
    }
    for name, make in pairs:
        for to in wanted[name]:
            operand = positive(1024, 1024) * 50 if (name, to) == ("f32", "u8") else make(1024, 1024)
            yield Case(f"cast {name} to {to}", "Cast", [operand], to=targets[to])
    yield Case("cast bf16 to f32", "Cast", lambda: [bf16(1024, 1024)], to=TensorProto.FLOAT)
    yield Case("dynamic quantization", "DynamicQuantizeLinear", lambda: [f32(1024, 768)], outputs=3)
    yield Case("quantization", "QuantizeLinear", lambda: [f32(1024, 768), scale(), zero(numpy.uint8, 128)])
    yield Case(
        "quantization by channel",
        "QuantizeLinear",
        lambda: [f32(1, 64, 112, 112), Stored(positive(64)), Stored(i8(64))],
        axis=1,
    )
    yield Case("dequantization", "DequantizeLinear", lambda: [u8(1024, 768), scale(), zero(numpy.uint8, 128)])


def images():
    """Pools, samples and boxes."""
    pool = dict(kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    yield Case("max pool 3x3", "MaxPool", lambda: [f32(1, 64, 112, 112)], **pool)
    yield Case("max pool with indices", "MaxPool", lambda: [f32(1, 64, 112, 112)], outputs=2, **pool)
    yield Case("max pool u8", "MaxPool", lambda: [u8(1, 64, 112, 112)], **pool)
    yield Case(
        "max pool 5x5", "MaxPool", lambda: [f32(1, 256, 20, 20)], kernel_shape=[5, 5], strides=[1, 1], pads=[2] * 4
    )
    yield Case("max pool f16", "MaxPool", lambda: [f16(1, 64, 112, 112)], **pool)
    yield Case("max pool 3 axes", "MaxPool", lambda: [f32(1, 16, 32, 32, 32)], kernel_shape=[2] * 3, strides=[2] * 3)
    yield Case("average pool 3x3", "AveragePool", lambda: [f32(1, 64, 112, 112)], **pool)
    yield Case(
        "average pool 7x7 f16", "AveragePool", lambda: [f16(1, 512, 14, 14)], kernel_shape=[7, 7], strides=[7, 7]
    )
    yield Case("global average pool", "GlobalAveragePool", lambda: [f32(1, 2048, 14, 14)])
    yield Case("lp pool", "LpPool", lambda: [f32(1, 64, 56, 56)], kernel_shape=[2, 2], strides=[2, 2])
    yield Case("grid sample bilinear", "GridSample", lambda: [f32(1, 64, 64, 64), unit(1, 64, 64, 2)])
    yield Case(
        "grid sample nearest", "GridSample", lambda: [f32(1, 64, 64, 64), unit(1, 64, 64, 2)], mode="nearest"
    )
    yield Case("grid sample cubic", "GridSample", lambda: [f32(1, 16, 64, 64), unit(1, 64, 64, 2)], mode="cubic")
    align = dict(output_height=7, output_width=7, sampling_ratio=2, spatial_scale=0.0625)
    yield Case(
        "roi align",
        "RoiAlign",
        lambda: [f32(1, 64, 50, 50), regions(100), Stored(numpy.zeros(100, numpy.int64))],
        **align,
    )
    yield Case(
        "non-maximum suppression",
        "NonMaxSuppression",
        lambda: [
            boxes(2000),
            random.random((1, 4, 2000), dtype=numpy.float32),
            axes(100),
            Stored([0.5], numpy.float32),
            Stored([0.1], numpy.float32),
        ],
    )
    yield Case(
        "columns to image", "Col2Im", lambda: [f32(1, 64 * 9, 56 * 56), axes(58, 58), axes(3, 3)]
    )
    sizes = Stored([1, 32, 128, 128], numpy.int64)
    image = lambda: [f32(1, 32, 64, 64), None, None, sizes]
    yield Case(
        "resize nearest",
        "Resize",
        image,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    yield Case("resize linear", "Resize", image, mode="linear")
    yield Case("resize cubic", "Resize", image, mode="cubic")
    yield Case("resize nearest u8", "Resize", lambda: [u8(1, 32, 64, 64), None, None, sizes], mode="nearest")
    yield Case("affine grid", "AffineGrid", lambda: [f32(1, 2, 3), Stored([1, 3, 256, 256], numpy.int64)])
    yield Case("depth to space", "DepthToSpace", lambda: [f32(1, 64, 64, 64)], blocksize=2)
    yield Case("space to depth", "SpaceToDepth", lambda: [f32(1, 16, 128, 128)], blocksize=2)
    yield Case(
        "max unpool",
        "MaxUnpool",
        lambda: [
            f32(1, 16, 64, 64),
            numpy.arange(16 * 64 * 64, dtype=numpy.int64).reshape(1, 16, 64, 64) * 4,
        ],
        kernel_shape=[2, 2],
        strides=[2, 2],
    )


def movement():
    """Elements at other places."""
    data = lambda: f32(1024, 1024)
    yield Case("transpose f32", "Transpose", lambda: [data()], perm=[1, 0])
    yield Case("transpose u8", "Transpose", lambda: [u8(1024, 1024)], perm=[1, 0])
    yield Case("transpose f16", "Transpose", lambda: [f16(1024, 1024)], perm=[1, 0])
    yield Case("transpose u8 to channels last", "Transpose", lambda: [u8(1, 64, 112, 112)], perm=[0, 2, 3, 1])
    yield Case("transpose u8 to channels first", "Transpose", lambda: [u8(1, 224, 224, 3)], perm=[0, 3, 1, 2])
    yield Case("transpose heads", "Transpose", lambda: [f32(1, 128, 12, 64)], perm=[0, 2, 1, 3])
    yield Case("gather rows", "Gather", lambda: [Stored(f32(30000, 128)), i64(1, 512, low=0, high=30000)])
    yield Case("gather columns", "Gather", lambda: [data(), i64(512, low=0, high=1024)], axis=1)
    yield Case("gather elements", "GatherElements", lambda: [data(), i64(1024, 1024, low=0, high=1024)], axis=1)
    yield Case("gather nd", "GatherND", lambda: [data(), i64(4096, 1, low=0, high=1024)])
    unique = lambda: numpy.stack([random.permutation(1024) for _ in range(1024)])
    yield Case("scatter elements", "ScatterElements", lambda: [data(), unique(), data()], axis=1)
    yield Case(
        "scatter elements adding",
        "ScatterElements",
        lambda: [data(), i64(1024, 1024, low=0, high=1024), data()],
        axis=1,
        reduction="add",
    )
    yield Case(
        "scatter nd", "ScatterND", lambda: [data(), random.permutation(1024)[:256].reshape(256, 1), f32(256, 1024)]
    )
    yield Case("concat", "Concat", lambda: [f32(1, 64, 80, 80), f32(1, 64, 80, 80)], axis=1)
    yield Case("concat last axis", "Concat", lambda: [f32(1024, 256), f32(1024, 128)], axis=1)
    yield Case("split", "Split", lambda: [f32(1024, 1536), axes(512, 512, 512)], outputs=3, axis=1)
    yield Case("slice", "Slice", lambda: [data(), axes(100), axes(900), axes(1), axes(1)])
    yield Case("slice with steps", "Slice", lambda: [data(), axes(0, 0), axes(1024, 1024), axes(0, 1), axes(2, 2)])
    yield Case("slice backwards", "Slice", lambda: [data(), axes(-1), axes(-2000), axes(1), axes(-1)])
    yield Case("pad", "Pad", lambda: [f32(1, 64, 56, 56), axes(0, 0, 1, 1, 0, 0, 1, 1)])
    yield Case("pad reflect", "Pad", lambda: [f32(1, 64, 56, 56), axes(0, 0, 1, 1, 0, 0, 1, 1)], mode="reflect")
    yield Case("pad edge", "Pad", lambda: [f32(1, 64, 56, 56), axes(0, 0, 1, 1, 0, 0, 1, 1)], mode="edge")
    yield Case("tile", "Tile", lambda: [f32(1, 256, 256), axes(8, 1, 2)])
    yield Case("expand", "Expand", lambda: [f32(1024, 1), axes(1024, 1024)])
    yield Case("expand heads", "Expand", lambda: [f32(1, 8, 1, 256, 64), axes(1, 8, 4, 256, 64)])
    yield Case("reverse sequence", "ReverseSequence", lambda: [f32(128, 64, 128), i64(64, low=1, high=129)])
    yield Case("range f32", "Range", lambda: [numpy.float32(0), numpy.float32(1e6), numpy.float32(1)])
    yield Case("range i64", "Range", lambda: [numpy.int64(0), numpy.int64(1_000_000), numpy.int64(1)])
    yield Case("one hot", "OneHot", lambda: [i64(4096, low=0, high=256), axes(256), Stored([0, 1], numpy.float32)])
    yield Case("where", "Where", lambda: [truths(1024, 1024), data(), data()])
    yield Case("where mask", "Where", lambda: [truths(1, 1, 128, 128), f32(1, 12, 128, 128), Stored(-1e9, numpy.float32)])
    yield Case("non-zero", "NonZero", lambda: [truths(1024, 1024)])
    yield Case("compress", "Compress", lambda: [data(), truths(1024)], axis=1)
    yield Case("triangle", "Trilu", lambda: [data()], upper=0)
    yield Case("eye like", "EyeLike", lambda: [data()])
    yield Case("unique", "Unique", lambda: [i64(100_000, low=0, high=5000)], outputs=4)
    yield Case("unique unsorted", "Unique", lambda: [i64(100_000, low=0, high=5000)], outputs=4, sorted=0)
    yield Case("unique f32", "Unique", lambda: [f32(100_000)])
    yield Case("center crop and pad", "CenterCropPad", lambda: [f32(3, 256, 256), axes(224, 224)], axes=[1, 2])


def functions():
    """Functions of each element."""
    data = lambda: f32(1024, 1024)
    for name in "Sigmoid Gelu Erf Tanh Exp Sin Cos Sqrt Relu LeakyRelu Elu Selu HardSwish HardSigmoid Softplus Mish".split():
        yield Case(f"function {name}", name, lambda: [data()])
    for name in "Softsign Celu ThresholdedRelu Abs Neg Floor Round Sign Tan Atan Sinh Reciprocal IsNaN".split():
        yield Case(f"function {name}", name, lambda: [data()])
    for name in "Acos Asin Atanh".split():
        yield Case(f"function {name}", name, lambda: [unit(1024, 1024)])
    yield Case("function Log", "Log", lambda: [positive(1024, 1024)])
    yield Case("function Not", "Not", lambda: [truths(1024, 1024)])
    yield Case("function PRelu", "PRelu", lambda: [f32(1, 64, 112, 112), Stored(f32(64, 1, 1))])
    yield Case("clip", "Clip", lambda: [data(), Stored(0, numpy.float32), Stored(6, numpy.float32)])
    yield Case("clip with given bounds", "Clip", lambda: [data(), numpy.float32(0), numpy.float32(6)])
    yield Case("clip i64", "Clip", lambda: [i64(1024, 1024), numpy.int64(0), numpy.int64(100)])
    yield Case("clip f16", "Clip", lambda: [f16(1024, 1024), numpy.float16(0), numpy.float16(6)])
    yield Case("power 2", "Pow", lambda: [data(), Stored(2, numpy.float32)])
    yield Case("power 0.7", "Pow", lambda: [positive(1024, 1024), Stored(0.7, numpy.float32)])
    yield Case("power of elements", "Pow", lambda: [positive(1024, 1024), data()])
    for name in "Add Mul Div Max".split():
        yield Case(f"arithmetic {name} f32", name, lambda: [data(), data()])
    for name in "Add Mul Div Mod".split():
        yield Case(f"arithmetic {name} i64", name, lambda: [i64(1024, 1024), i64(1024, 1024, low=1)])
    yield Case("arithmetic Mod f32", "Mod", lambda: [data(), positive(1024, 1024)], fmod=1)
    yield Case("arithmetic Add i32", "Add", lambda: [integers(numpy.int32, 0, 99, 1024, 1024)] * 2)
    yield Case("arithmetic Add f64", "Add", lambda: [f64(1024, 1024), f64(1024, 1024)])
    yield Case("arithmetic Mul row", "Mul", lambda: [data(), f32(1024)])
    yield Case("arithmetic Mul column", "Mul", lambda: [data(), f32(1024, 1)])
    yield Case("arithmetic Add channel", "Add", lambda: [f32(1, 64, 112, 112), f32(64, 1, 1)])
    yield Case("arithmetic Add f16", "Add", lambda: [f16(1024, 1024), f16(1024, 1024)])
    yield Case("arithmetic Mul f16", "Mul", lambda: [f16(1024, 1024), f16(1024, 1024)])
    yield Case("arithmetic Sigmoid f16", "Sigmoid", lambda: [f16(1024, 1024)])
    yield Case("arithmetic Tanh f16", "Tanh", lambda: [f16(1024, 1024)])
    yield Case("arithmetic Exp f64", "Exp", lambda: [f64(1024, 1024)])
    yield Case("arithmetic Sum of three", "Sum", lambda: [data(), data(), data()])
    yield Case("logic And", "And", lambda: [truths(1024, 1024), truths(1024, 1024)])
    yield Case("comparison Less f32", "Less", lambda: [data(), data()])
    yield Case("comparison Equal i64", "Equal", lambda: [i64(1024, 1024), Stored(0, numpy.int64)])
    yield Case("comparison Greater f16", "Greater", lambda: [f16(1024, 1024), f16(1024, 1024)])
    yield Case("bits shifted", "BitShift", lambda: [u8(1024, 1024), u8(1024, 1024) % 8], direction="LEFT")
    yield Case("random normal", "RandomNormalLike", lambda: [data()])
    yield Case("random uniform", "RandomUniformLike", lambda: [data()])
    yield Case("bernoulli", "Bernoulli", lambda: [random.random((1024, 1024), dtype=numpy.float32)])


def reductions():
    """Reductions and normalizations."""
    data = lambda: f32(64, 128, 128)
    for name in "Sum Mean Max".split():
        for place, axis in ("outer", 0), ("middle", 1), ("inner", 2):
            yield Case(f"reduce {name} {place}", f"Reduce{name}", lambda: [data(), axes(axis)])
    yield Case("reduce Mean images", "ReduceMean", lambda: [f32(1, 256, 56, 56), axes(2, 3)])
    yield Case("reduce Sum all", "ReduceSum", lambda: [data()])
    for name in "L2 Min Prod SumSquare LogSumExp LogSum L1".split():
        make = positive if name == "LogSum" else f32
        yield Case(f"reduce {name} inner", f"Reduce{name}", lambda make=make: [make(64, 128, 128), axes(2)])
    yield Case("reduce Sum i64", "ReduceSum", lambda: [i64(1024, 1024), axes(1)])
    yield Case("reduce Max i32", "ReduceMax", lambda: [integers(numpy.int32, -99, 99, 1024, 1024), axes(1)])
    yield Case("reduce Sum f64", "ReduceSum", lambda: [f64(1024, 1024), axes(1)])
    yield Case("reduce Mean f16", "ReduceMean", lambda: [f16(1024, 1024), axes(1)])
    yield Case("argmax inner", "ArgMax", lambda: [f32(1024, 1024)], axis=1)
    yield Case("argmax outer", "ArgMax", lambda: [f32(1, 21, 224, 224)], axis=1)
    yield Case("argmin i64", "ArgMin", lambda: [i64(1024, 1024)], axis=1)
    yield Case("cumulative sum inner", "CumSum", lambda: [f32(1024, 1024), Stored(1, numpy.int64)])
    yield Case("cumulative sum outer", "CumSum", lambda: [f32(1024, 1024), Stored(0, numpy.int64)])
    yield Case("cumulative sum i64", "CumSum", lambda: [i64(1024, 1024), Stored(1, numpy.int64)])
    yield Case("top k of a million", "TopK", lambda: [f32(1_000_000), axes(100)], outputs=2)
    yield Case("top k small", "TopK", lambda: [f32(128, 1000), axes(5)], outputs=2)
    yield Case("top k experts", "TopK", lambda: [f32(512, 64), axes(8)], outputs=2)
    yield Case("top k vocabulary", "TopK", lambda: [f32(1, 128_000), axes(50)], outputs=2)
    yield Case("top k all", "TopK", lambda: [f32(8, 8400), axes(8400)], outputs=2)
    yield Case("softmax", "Softmax", lambda: [f32(12, 128, 128)])
    yield Case("softmax large", "Softmax", lambda: [f32(8, 32000)])
    yield Case("softmax channels", "Softmax", lambda: [f32(1, 21, 224, 224)], axis=1)
    yield Case("softmax f16", "Softmax", lambda: [f16(12, 128, 128)])
    yield Case("logarithmic softmax", "LogSoftmax", lambda: [f32(128, 1000)])
    yield Case("hardmax", "Hardmax", lambda: [f32(128, 1000)])
    yield Case(
        "layer normalization", "LayerNormalization", lambda: [f32(512, 768), Stored(f32(768)), Stored(f32(768))]
    )
    yield Case(
        "layer normalization f16", "LayerNormalization", lambda: [f16(512, 768), Stored(f16(768)), Stored(f16(768))]
    )
    yield Case(
        "instance normalization",
        "InstanceNormalization",
        lambda: [f32(1, 64, 112, 112), Stored(f32(64)), Stored(f32(64))],
    )
    yield Case(
        "group normalization",
        "GroupNormalization",
        lambda: [f32(1, 64, 64, 64), Stored(f32(16)), Stored(f32(16))],
        num_groups=16,
    )
    yield Case(
        "batch normalization",
        "BatchNormalization",
        lambda: [f32(1, 64, 112, 112), *(Stored(positive(64)) for _ in range(4))],
    )
    yield Case("lp normalization", "LpNormalization", lambda: [f32(1024, 768)])
    yield Case("local response normalization", "LRN", lambda: [f32(1, 96, 55, 55)], size=5)
    yield Case(
        "loss", "SoftmaxCrossEntropyLoss", lambda: [f32(512, 1000), i64(512, low=0, high=1000)]
    )
    yield Case("negative log likelihood", "NegativeLogLikelihoodLoss", lambda: [f32(512, 1000), i64(512, low=0, high=1000)])
    yield Case("fourier transform", "DFT", lambda: [f32(64, 512, 1), None, Stored(1, numpy.int64)], onesided=1)
    yield Case("spectrogram", "STFT", lambda: [f32(1, 16000, 1), Stored(160, numpy.int64), None, Stored(400, numpy.int64)])
    yield Case("mel weights", "MelWeightMatrix", lambda: [
        Stored(80, numpy.int64), Stored(400, numpy.int64), Stored(16000, numpy.int64),
        Stored(0, numpy.float32), numpy.float32(8000)
    ])


def cases():
    for family in products, conversions, images, movement, functions, reductions:
        yield from family()


def serve_onnx_runtime():
    """Times what lines of the standard input ask for: a process that keeps the library, no session."""
    import onnxruntime

    for line in sys.stdin:
        request = json.loads(line)
        try:
            times = time_onnx_runtime(onnxruntime, **request)
        except Exception as error:  # Any refusal is an answer.
            times = str(error).splitlines()[0]
        print(json.dumps(times), flush=True)


def time_onnx_runtime(onnxruntime, model, inputs, threads, seconds):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    given = {}
    for name, file in inputs:
        tensor = TensorProto.FromString(pathlib.Path(file).read_bytes())
        if tensor.data_type == TensorProto.BFLOAT16:
            bits = numpy.frombuffer(tensor.raw_data, numpy.uint16).reshape(tensor.dims)
            value = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, tensor.data_type)
        else:
            value = onnxruntime.OrtValue.ortvalue_from_numpy(numpy_helper.to_array(tensor))
        given[name] = value
    names = [output.name for output in session.get_outputs()]
    for _ in range(WARM_RUNS):
        session.run_with_ort_values(names, given)
    times = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        results = session.run_with_ort_values(names, given)
        times.append(time.perf_counter() - start)
        del results
    return times


def time_ipuc(program, model, inputs, threads, runs):
    """The timed runs of `ipuc bench`, in a process of its own."""
    command = [program, "bench", model, "--json", "--quiet", "--threads", threads, "--runs", runs]
    for name, file in inputs:
        command += ["--input", f"{name}={file}"]
    result = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if result.returncode:
        raise RuntimeError(result.stderr.decode().strip().splitlines()[0])
    return [run["seconds"] for run in json.loads(result.stdout)["runs"]][WARM_RUNS:]


class Comparison:
    def __init__(self, given):
        self.given = given
        child = [sys.executable, __file__, "--serve"]
        self.child = subprocess.Popen(child, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request):
        self.child.stdin.write(json.dumps(request) + "\n")
        self.child.stdin.flush()
        times = json.loads(self.child.stdout.readline())
        if isinstance(times, str):
            raise RuntimeError(f"ONNX Runtime: {times}")
        return times

    def medians(self, folder, inputs, threads):
        """Medians of both sides, in seconds."""
        program, seconds, compiled = self.given.program, self.given.seconds, folder / "model.ipu"
        first = statistics.median(time_ipuc(program, compiled, inputs, threads, WARM_RUNS + 3))
        runs = WARM_RUNS + max(3, min(10_000, int(seconds / first)))
        files = [(name, str(file)) for name, file in inputs]
        ours, theirs = [], []
        for _ in range(self.given.rounds):
            theirs += self.ask(model=str(folder / "model.onnx"), inputs=files, threads=threads, seconds=seconds)
            ours += time_ipuc(program, compiled, inputs, threads, runs)
        return statistics.median(ours), statistics.median(theirs)

    def lines(self, case):
        """Compares one case, a line for each number of threads."""
        folder = self.given.scratch / case.name.replace(" ", "_")
        inputs = case.write(folder)
        command = [self.given.program, "compile", "--quiet", folder / "model.onnx", "-o", folder / "model.ipu"]
        result = subprocess.run([str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if result.returncode:
            print(f"{case.name:34}{result.stderr.decode().strip().splitlines()[0]}", flush=True)
            return
        for threads in map(int, self.given.threads.split(",")):
            try:
                ours, theirs = self.medians(folder, inputs, threads)
            except RuntimeError as error:
                print(f"{case.name:34}{error}", flush=True)
                return
            print(f"{case.name:34}{threads:8}{ours * 1e6:12.1f}{theirs * 1e6:12.1f}{ours / theirs:8.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--list", action="store_true", help="print the names of all cases")
    parser.add_argument("--only", default="", help="parts of names of cases, between commas")
    parser.add_argument("--program", type=pathlib.Path, default=pathlib.Path("target/release/ipuc"))
    parser.add_argument("--scratch", type=pathlib.Path, default=pathlib.Path("target/operators"))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.15, help="of timed runs, a side and round")
    given = parser.parse_args()
    if given.serve:
        return serve_onnx_runtime()
    parts = given.only.split(",")
    chosen = [case for case in cases() if any(part in case.name for part in parts)]
    if not chosen:
        parser.error(f"no case has a name with one of {given.only}; --list prints all")
    if given.list:
        print("\n".join(case.name for case in chosen))
        return None
    comparison = Comparison(given)
    print(f"{'operator':34}{'threads':>8}{'ipuc, us':>12}{'ORT, us':>12}{'ratio':>8}")
    for case in chosen:
        comparison.lines(case)
    return None


if __name__ == "__main__":
    main()
