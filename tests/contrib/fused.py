"""Cases of operators that ONNX Runtime's optimizer and quantizer write."""

import math

import numpy as np
from case import Case, Formula, floats, random

SINGLE, HALF, DOUBLE = np.float32, np.float16, np.float64


def codes(*shape, dtype=np.uint8):
    info = np.iinfo(dtype)
    return random.integers(info.min, info.max, shape, dtype, endpoint=True)


def one(name, operator, operands, results, constants=(), formula=None, dims=None, **attributes):
    """A case of one set; `operands` are in order, those that are None are left out."""
    weights = {operand: operands[operand] for operand in constants}
    given = {operand: value for operand, value in operands.items() if value is not None and operand not in constants}
    if formula:
        made = Formula(name, operator, list(operands), results, formula, weights=weights, dims=dims, **attributes)
    else:
        made = Case(name, operator, list(operands), results, weights=weights, dims=dims, **attributes)
    made.add(**given)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def fast_gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def elementwise():
    x, bias = floats(2, 3, 8), floats(8)
    one("gelu", "Gelu", {"X": x}, ["Y"])
    one("fast_gelu", "FastGelu", {"X": x}, ["Y"])
    one("fast_gelu_bias", "FastGelu", {"X": x, "bias": bias}, ["Y"], ["bias"])
    one("bias_gelu", "BiasGelu", {"A": x, "B": bias}, ["C"], ["B"])
    one("quick_gelu", "QuickGelu", {"X": x}, ["Y"])
    one("quick_gelu_alpha", "QuickGelu", {"X": x}, ["Y"], alpha=0.7)
    one("bias_gelu_half", "BiasGelu", {"A": x.astype(HALF), "B": bias.astype(HALF)}, ["C"],
        formula=lambda a, b: gelu(a.astype(SINGLE) + b.astype(SINGLE)).astype(HALF))  # fmt: skip
    one("scaled_silu", "ScaledSiLU", {"X": x}, ["Y"], alpha=0.5)
    one("scaled_silu_half", "ScaledSiLU", {"X": x.astype(HALF), "scale": np.array(1.5, SINGLE)}, ["Y"], alpha=0.5)
    one("gated_add", "GatedAdd", {"X": x, "Y": floats(2, 3, 8), "gate": floats(2, 3, 1)}, ["output"])
    one("bias_add", "BiasAdd", {"X": x, "bias": bias, "skip": floats(2, 3, 8)}, ["Y"], formula=lambda x, b, s: x + b + s)
    one("bias_split_gelu", "BiasSplitGelu", {"X": x, "bias": bias}, ["Y"],
        formula=lambda x, b: ((x + b)[..., :4] * gelu((x + b)[..., 4:])).astype(SINGLE))  # fmt: skip
    data = {"data": x, "bias": bias}
    one("bias_dropout", "BiasDropout", data, ["output"], formula=lambda x, b: x + b)
    one("bias_dropout_mask", "BiasDropout", data | {"residual": floats(2, 3, 8), "ratio": None, "training_mode": np.array(False)},
        ["output", "mask"], ["training_mode"],
        formula=lambda x, b, r, _, training: (x + b + r, np.ones(x.shape, bool)))  # fmt: skip


def products():
    a, b = floats(2, 3, 5), floats(2, 5, 4)
    one("fused_matmul", "FusedMatMul", {"A": a, "B": b}, ["Y"], alpha=0.5)
    one("fused_matmul_open", "FusedMatMul", {"A": a, "B": floats(4, 5)}, ["Y"], ["B"], dims={"A": ["n", "s", 5], "Y": ["n", "s", 4]}, transB=1)
    one("fused_matmul_both", "FusedMatMul", {"A": floats(2, 5, 3), "B": floats(2, 4, 5)}, ["Y"], alpha=2.0, transA=1, transB=1)
    one("fused_matmul_batch", "FusedMatMul", {"A": floats(3, 2, 5), "B": floats(4, 2, 5)}, ["Y"], transBatchA=1, transBatchB=1, transB=1)
    one("fused_matmul_batch_a", "FusedMatMul", {"A": floats(5, 2, 3), "B": b}, ["Y"], transBatchA=1, transA=1)
    one("fused_matmul_double", "FusedMatMul", {"A": a.astype(DOUBLE), "B": b.astype(DOUBLE)}, ["Y"], alpha=0.1)
    one("transpose_matmul", "TransposeMatMul", {"A": floats(2, 5, 3), "B": b}, ["Y"], alpha=0.5, transA=1)
    for name in ["Relu", "Tanh", "Sigmoid", "Softplus", "Softsign"]:
        one(f"fused_gemm_{name.lower()}", "FusedGemm", {"A": floats(3, 5), "B": floats(5, 4), "C": floats(4)}, ["Y"], activation=name)
    parameters = {"activation_alpha": 0.3, "activation_beta": 0.4}
    for name in ["LeakyRelu", "Elu", "HardSigmoid", "ThresholdedRelu"]:
        one(f"fused_gemm_{name.lower()}", "FusedGemm", {"A": floats(5, 3), "B": floats(4, 5)}, ["Y"],
            transA=1, transB=1, alpha=0.5, activation=name, **parameters)  # fmt: skip
    one("fused_gemm_beta", "FusedGemm", {"A": floats(3, 5), "B": floats(5, 4), "C": floats(3, 1)}, ["Y"], activation="Relu", beta=0.5)
    one("matmul_activation", "FusedMatMulActivation", {"A": a, "B": b}, ["Y"], activation="Softmax", activation_axis=-1, alpha=0.5,
        formula=lambda a, b: softmax(a @ b / 2))  # fmt: skip
    one("matmul_activation_leaky", "FusedMatMulActivation", {"A": a, "B": b}, ["Y"], activation="LeakyRelu", activation_alpha=0.3,
        formula=lambda a, b: np.where(a @ b >= 0, a @ b, 0.3 * (a @ b)).astype(SINGLE))  # fmt: skip
    one("gemm_fast_gelu", "GemmFastGelu", {"X": a, "W": floats(5, 4), "bias": floats(4)}, ["Y"],
        formula=lambda x, w, b: fast_gelu(x @ w + b).astype(SINGLE))  # fmt: skip


def windows():
    x, w, bias = floats(1, 4, 6, 5), floats(6, 4, 3, 3), floats(6)
    weights = ["W", "B"]
    one("fused_conv_relu", "FusedConv", {"X": x, "W": w, "B": bias}, ["Y"], weights, activation="Relu", pads=[1, 0, 1, 2], kernel_shape=[3, 3])
    one("fused_conv_sum", "FusedConv", {"X": x, "W": w, "B": bias, "Z": floats(1, 6, 4, 3)}, ["Y"], weights, activation="Relu")
    one("fused_conv_leaky", "FusedConv", {"X": x, "W": floats(6, 2, 3, 3)}, ["Y"], ["W"], activation="LeakyRelu", activation_params=[0.2], group=2, strides=[2, 1])
    one("fused_conv_hard", "FusedConv", {"X": x, "W": w}, ["Y"], ["W"], activation="HardSigmoid", activation_params=[0.3, 0.4], auto_pad="SAME_UPPER")
    one("fused_conv_clip", "FusedConv", {"X": x, "W": w, "B": bias}, ["Y"], weights, activation="Clip", activation_params=[-0.5, 0.75])
    for name in ["Tanh", "Sigmoid", "HardSwish"]:
        one(f"fused_conv_{name.lower()}", "FusedConv", {"X": x, "W": w}, ["Y"], ["W"], activation=name, dilations=[2, 1])
    one("fused_conv_line", "FusedConv", {"X": floats(2, 3, 9), "W": floats(4, 3, 3)}, ["Y"], ["W"], activation="Relu")

    def plain(x, w, b):
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        rows, columns = x.shape[1], x.shape[2]
        result = np.zeros((*x.shape[:3], w.shape[0]), SINGLE) + b
        for row in range(3):
            for column in range(3):
                result += padded[:, row : row + rows, column : column + columns] @ w[:, :, row, column].T
        return result

    last = {"X": floats(1, 6, 5, 4), "W": w, "B": bias}
    one("nhwc_conv", "NhwcConv", last, ["Y"], weights, formula=plain, pads=[1, 1, 1, 1])
    one("nhwc_fused_conv", "NhwcFusedConv", last | {"Z": floats(1, 6, 5, 6)}, ["Y"], weights, activation="Relu", pads=[1, 1, 1, 1],
        formula=lambda x, w, b, z: np.maximum(plain(x, w, b) + z, 0))  # fmt: skip
    one("nhwc_max_pool", "NhwcMaxPool", {"x": codes(1, 6, 5, 3, dtype=np.int8)}, ["y"], kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1])
    one("nhwc_max_pool_ceil", "NhwcMaxPool", {"x": codes(1, 6, 5, 3)}, ["y"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)


def experts():
    tokens, count, size, inner = 5, 4, 8, 6

    def layers(wide, scores=None):
        return {
            "input": floats(tokens, size),
            "router_probs": floats(tokens, count) if scores is None else scores,
            "fc1_experts_weights": floats(count, wide, size),
            "fc1_experts_bias": floats(count, wide),
            "fc2_experts_weights": floats(count, size, inner),
            "fc2_experts_bias": floats(count, size),
        }

    weights = ["fc1_experts_weights", "fc1_experts_bias", "fc2_experts_weights", "fc2_experts_bias"]
    for name in ["relu", "gelu", "silu", "identity"]:
        one(f"moe_{name}", "MoE", layers(inner), ["output"], weights, activation_type=name, k=2)
    gated = {"activation_type": "swiglu", "swiglu_fusion": 1, "k": 2}
    one("moe_swiglu", "MoE", layers(2 * inner), ["output"], weights, **gated, normalize_routing_weights=1)
    one("moe_swiglu_limit", "MoE", layers(2 * inner), ["output"], weights, **gated, activation_alpha=1.3, activation_beta=0.5, swiglu_limit=1.0)
    one("moe_equal", "MoE", layers(inner, np.zeros((tokens, count), SINGLE)), ["output"], weights)
    sequence = layers(inner)
    sequence |= {"input": floats(1, tokens, size)}
    for bias in ["fc1_experts_bias", "fc2_experts_bias"]:
        sequence[bias] = None
    one("moe_sequence", "MoE", sequence, ["output"], weights[::2], dims={"input": [1, "s", size], "router_probs": ["s", count], "output": [1, "s", size]}, k=3)

    def quantized(name, bits, block=0, zero_points=False, bias=True, size=32, inner=32, fusion=True, stored=True, extra=(), **attributes):
        wide = 2 * inner if fusion else inner
        packed = 8 // bits
        operands = {"input": floats(tokens, size), "router_probs": floats(tokens, count)}
        points = {}
        for layer, outputs, inputs in [("fc1", wide, size), ("fc2", size, inner)]:
            shape = (count, outputs, inputs // block) if block else (count, outputs)
            operands |= {
                f"{layer}_experts_weights": codes(count, outputs, inputs // packed),
                f"{layer}_scales": (random.random(shape) * 0.02 + 0.01).astype(SINGLE),
                f"{layer}_experts_bias": floats(count, outputs) if bias else None,
            }
            if block:
                point = codes(count, outputs, -(-(inputs // block) // packed))
            else:
                point = codes(count, -(-outputs // packed))
            points[f"{layer}_zero_points"] = point if zero_points else None
        operands |= {name: None for name in ["fc3_experts_weights", "fc3_scales", "fc3_experts_bias"]} | points
        operands |= {"fc3_zero_points": None} | dict(extra)
        constants = [name for name in operands if stored and operands[name] is not None and name[:2] == "fc"]
        activation = {"activation_type": "swiglu", "swiglu_fusion": 1} if fusion else {"activation_type": "silu"}
        block_size = {"block_size": block} if block else {}
        one(name, "QMoE", operands, ["output"], constants, expert_weight_bits=bits, k=2, **activation, **block_size, **attributes)

    quantized("qmoe_blocks", 4, block=16, normalize_routing_weights=1)
    quantized("qmoe_blocks_points", 4, block=16, zero_points=True)
    quantized("qmoe_rows", 4, bias=False)
    quantized("qmoe_bytes", 8, fusion=False)
    # Of stored blocks of bytes ONNX Runtime rounds activations to 8 bits.
    quantized("qmoe_bytes_blocks", 8, block=16, zero_points=True, fusion=False, stored=False)
    quantized("qmoe_router", 4, block=16, extra={"router_weights": random.random((tokens, count)).astype(SINGLE)}, normalize_routing_weights=1)


def attention():
    heads, size = 2, 4
    hidden = heads * size
    batch, steps, keys = 2, 3, 5
    names = ["query", "key", "value", "bias", "key_padding_mask", "attention_bias", "past_key", "past_value"]

    def multi(name, results=("output",), constants=(), **given):
        attributes = {k: v for k, v in given.items() if k not in names}
        operands = {operand: given.get(operand) for operand in names}
        one(f"mha_{name}", "MultiHeadAttention", operands, list(results), constants, num_heads=heads, **attributes)

    def attended(q, k, v):
        q, k, v = (operand.transpose(0, 2, 1, 3) for operand in (q, k, v))
        result = softmax(q @ k.transpose(0, 1, 3, 2) / math.sqrt(size)) @ v
        return result.transpose(0, 2, 1, 3).reshape(batch, steps, hidden).astype(SINGLE)

    q, k, v = floats(batch, steps, hidden), floats(batch, keys, hidden), floats(batch, keys, hidden)
    present = ("output", "present_key", "present_value")
    multi("plain", query=q, key=k, value=v)
    multi("bias", query=q, key=k, value=v, bias=floats(3 * hidden), constants=["bias"])
    multi("scale", query=q, key=k, value=v, scale=0.3)
    multi("wide_values", query=q, key=k, value=floats(batch, keys, 2 * hidden))
    multi("packed", query=floats(batch, steps, heads, 3, size), formula=lambda x, *_: attended(x[..., 0, :], x[..., 1, :], x[..., 2, :]))
    multi("packed_pair", query=q, key=floats(batch, keys, heads, 2, size),
          formula=lambda q, k, *_: attended(q.reshape(batch, steps, heads, size), k[..., 0, :], k[..., 1, :]))  # fmt: skip
    multi("crossed", query=q, key=floats(batch, heads, keys, size), value=floats(batch, heads, keys, size))
    mask = np.array([[1, 1, 1, 0, 0], [0, 1, 0, 1, 1]], np.int32)
    multi("mask", query=q, key=k, value=v, key_padding_mask=mask)
    multi("mask_nothing", query=q, key=k, value=v, key_padding_mask=np.zeros((batch, keys), np.int32), mask_filter_value=-4.0)
    multi("mask_rows", query=q, key=k, value=v, key_padding_mask=random.integers(0, 2, (batch, steps, keys), np.int32), mask_filter_value=-3.0)
    multi("mask_lengths", query=q, key=k, value=v, key_padding_mask=np.array([3, 5], np.int32))
    multi("bias_all", query=q, key=k, value=v, attention_bias=floats(batch, heads, steps, keys), key_padding_mask=mask)
    multi("bias_one", query=q, key=k, value=v, attention_bias=floats(1, 1, steps, keys))
    own = {"query": q, "key": floats(batch, steps, hidden), "value": floats(batch, steps, hidden)}
    multi("causal", **own, unidirectional=1)
    past = {"past_key": floats(batch, heads, 2, size), "past_value": floats(batch, heads, 2, size)}
    multi("past", present, **own, **past)
    multi("past_causal", present, **own, **past, unidirectional=1, attention_bias=floats(1, heads, steps, steps + 2))
    multi("present", present, query=q, key=k, value=v)
    multi("scores", (*present, "qk"), query=q, key=k, value=v, attention_bias=floats(1, 1, steps, keys))

    names_one = ["input", "weights", "bias", "mask_index", "past", "attention_bias"]

    def joint(name, results=("output",), sizes=(hidden,) * 3, **given):
        attributes = {k: v for k, v in given.items() if k not in names_one}
        operands = {operand: given.get(operand) for operand in names_one}
        operands |= {"input": floats(batch, steps, 6), "weights": floats(6, sum(sizes))}
        if operands["bias"] is None:
            operands["bias"] = floats(sum(sizes))
        one(f"attention_{name}", "Attention", operands, list(results), ["weights", "bias"], num_heads=heads, **attributes)

    joint("plain")
    joint("lengths", mask_index=np.array([2, 3], np.int32))
    joint("both_ends", mask_index=np.array([3, 2, 1, 0], np.int32))
    joint("mask", mask_index=np.array([[1, 1, 0], [0, 1, 1]], np.int32))
    joint("mask_rows", mask_index=random.integers(0, 2, (batch, steps, steps), np.int32), mask_filter_value=-2.0)
    joint("causal", unidirectional=1, mask_index=np.array([[1, 1, 0], [1, 1, 1]], np.int32))
    joint("sizes", sizes=(hidden, hidden, 2 * hidden), qkv_hidden_sizes=[hidden, hidden, 2 * hidden])
    joint("past", ("output", "present"), past=floats(2, batch, heads, 2, size), unidirectional=1)
    joint("bias", attention_bias=floats(1, heads, steps, steps), scale=0.4)

    for name, kind, more in [
        ("plain", np.uint8, {}),
        ("signed", np.int8, {"mask_index": np.array([2, 3], np.int32), "unidirectional": 1}),
        ("past", np.uint8, {"past": floats(2, batch, heads, 2, size)}),
    ]:
        columns = name == "signed"
        operands = {
            "input": codes(batch, steps, 6),
            "weight": codes(6, 3 * hidden, dtype=kind),
            "bias": floats(3 * hidden),
            "input_scale": np.array(0.01, SINGLE),
            "weight_scale": random.random(3 * hidden).astype(SINGLE) * 0.01 if columns else np.array(0.02, SINGLE),
            "mask_index": more.pop("mask_index", None),
            "input_zero_point": np.array(128, np.uint8),
            "weight_zero_point": np.zeros(3 * hidden, kind) if columns else np.array(120, kind),
            "past": more.pop("past", None),
        }
        constants = ["weight", "bias", "input_scale", "weight_scale", "input_zero_point", "weight_zero_point"]
        results = ["output", "present"] if name == "past" else ["output"]
        one(f"qattention_{name}", "QAttention", operands, results, constants, num_heads=heads, **more)

    names_decoder = ["query", "key", "value", "mask_index", "attention_bias", "past_key", "past_value", "past_sequence_length"]
    step = {"query": floats(batch, 1, hidden), "key": floats(batch, 1, hidden), "value": floats(batch, 1, hidden)}
    buffers = {"past_key": floats(batch, heads, 6, size), "past_value": floats(batch, heads, 6, size)}
    operands = {name: None for name in names_decoder} | step
    one("decoder_plain", "DecoderMaskedMultiHeadAttention", operands, ["output"], num_heads=heads)
    length = {"past_sequence_length": np.array([3], np.int32)}
    one("decoder_buffer", "DecoderMaskedMultiHeadAttention", operands | buffers | length, list(present), num_heads=heads, past_present_share_buffer=1)
    crossed = {"key": floats(batch, heads, keys, size), "value": floats(batch, heads, keys, size)}
    one("decoder_crossed", "DecoderMaskedMultiHeadAttention", operands | crossed | {"mask_index": mask}, ["output"], num_heads=heads)


def states():
    for name, shape, state, more in [
        ("plain", (2, 3, 7), (2, 3, 2), {}),
        ("silu", (2, 3, 7), (2, 3, 2), {"activation": "silu"}),
        ("last", (2, 7, 3), (2, 2, 3), {"channels_last": 1}),
        ("dilated", (2, 3, 7), (2, 3, 4), {"dilation": 2}),
        ("dilated_last", (2, 7, 3), None, {"dilation": 3, "channels_last": 1}),
    ]:
        operands = {"input": floats(*shape), "weight": floats(3, 1, 3), "bias": floats(3), "past_state": floats(*state) if state else None}
        one(f"causal_conv_{name}", "CausalConvWithState", operands, ["output", "present_state"], ["weight", "bias"], **more)
    for rule in ["linear", "gated", "delta", "gated_delta"]:
        decay = -random.random((1, 4, 2)).astype(SINGLE) if "gated" in rule else None
        rate = random.random((1, 4, 2)).astype(SINGLE) if "delta" in rule else None
        operands = {"query": floats(1, 4, 16), "key": floats(1, 4, 8), "value": floats(1, 4, 6), "past_state": floats(1, 2, 4, 3), "decay": decay, "beta": rate}
        one(f"linear_attention_{rule}", "LinearAttention", operands, ["output", "present_state"], update_rule=rule, q_num_heads=4, kv_num_heads=2)


def normalizations():
    words = {
        "input_ids": np.array([[1, 4, 2], [0, 3, 3]], np.int32),
        "segment_ids": np.array([[0, 0, 1], [0, 1, 1]], np.int32),
        "word_embedding": floats(6, 8),
        "position_embedding": floats(5, 8),
        "segment_embedding": floats(2, 8),
        "gamma": floats(8),
        "beta": floats(8),
    }
    tables = ["word_embedding", "position_embedding", "segment_embedding", "gamma", "beta"]
    mask = {"mask": np.array([[1, 1, 0], [1, 1, 1]], np.int32)}
    one("embed", "EmbedLayerNormalization", words, ["output", "mask_index"], tables)
    one("embed_mask", "EmbedLayerNormalization", words | mask, ["output", "mask_index", "embedding_sum"], tables, epsilon=0.1, mask_index_type=1)
    places = {"position_ids": np.array([[2, 0, 4], [1, 1, 3]], np.int32)}
    unsegmented = words | {"segment_ids": None, "segment_embedding": None, "mask": None} | places
    one("embed_positions", "EmbedLayerNormalization", unsegmented, ["output", "mask_index"], [name for name in tables if name[:7] != "segment"])

    def grouped(x, gamma, beta, groups=2):
        shape = x.shape
        rows = x.reshape(shape[0], -1, groups, shape[-1] // groups).astype(DOUBLE)
        rows = (rows - rows.mean((1, 3), keepdims=True)) / np.sqrt(rows.var((1, 3), keepdims=True) + 1e-5)
        return rows.reshape(shape) * gamma + beta

    image, affine = floats(2, 3, 2, 6), {"gamma": floats(6), "beta": floats(6)}
    one("group_norm", "GroupNorm", {"X": image} | affine, ["Y"], list(affine), groups=2, activation=0,
        formula=lambda x, g, b: grouped(x, g, b).astype(SINGLE))  # fmt: skip
    silu = lambda x: x * sigmoid(x)
    one("group_norm_half", "GroupNorm", {"X": image.astype(HALF)} | affine, ["Y"], list(affine), groups=2, activation=1,
        formula=lambda x, g, b: silu(grouped(x, g, b)).astype(HALF))  # fmt: skip
    for name, skip in {"whole": floats(2, 3, 2, 6), "channels": floats(2, 6), "spread": floats(2, 1, 1, 6)}.items():
        added = lambda x, s, b: x + s.reshape(2, *((1, 1) if s.size == 12 else s.shape[1:3]), 6) + b
        one(f"skip_group_norm_{name}", "SkipGroupNorm", {"X": image} | affine | {"skip": skip, "bias": floats(6)}, ["Y", "S"], list(affine), groups=2, activation=1,
            formula=lambda x, g, be, s, b: (silu(grouped(added(x, s, b), g, be)).astype(SINGLE), added(x, s, b)))  # fmt: skip
    one("bias_softmax", "BiasSoftmax", {"data": floats(2, 3, 4), "bias": floats(1, 3, 4)}, ["output"], axis=2, is_inner_broadcast=0,
        formula=lambda x, b: softmax(x + b))  # fmt: skip
    one("bias_softmax_axes", "BiasSoftmax", {"data": floats(2, 3, 4), "bias": floats(3, 4)}, ["output"], axis=1, is_inner_broadcast=0,
        formula=lambda x, b: softmax((x + b).reshape(2, 12)).reshape(2, 3, 4))  # fmt: skip
    for kind in [SINGLE, HALF]:
        operands = {"X": floats(2, 3, 8, dtype=kind), "scale": floats(8, dtype=kind), "gate": floats(2, 3, 8, dtype=kind)}
        one(f"gated_norm{'_half' if kind == HALF else ''}", "GatedRMSNorm", operands, ["Y"], ["scale"], epsilon=0.1)


def quantized():
    a, b = floats(2, 3, 6), codes(6, 4)
    column = {"b_scale": random.random(4).astype(SINGLE) * 0.1, "b_zero_point": codes(4)}
    one("dynamic_matmul", "DynamicQuantizeMatMul", {"A": a, "B": b, "b_scale": np.array([0.05], SINGLE), "b_zero_point": np.array([7], np.uint8)}, ["Y"], ["B", "b_scale", "b_zero_point"])
    one("dynamic_matmul_columns", "DynamicQuantizeMatMul", {"A": a, "B": b} | column | {"bias": floats(4)}, ["Y"], ["B", *column, "bias"])
    one("dynamic_matmul_signed", "DynamicQuantizeMatMul", {"A": a, "B": codes(6, 4, dtype=np.int8), "b_scale": np.array([0.05], SINGLE)}, ["Y"], ["B", "b_scale"])
    scales = {"a_scale": np.array(0.03, SINGLE), "b_scale": column["b_scale"]}
    for kind in [np.uint8, np.int8]:
        points = {"a_zero_point": np.array(5, kind), "b_zero_point": codes(4, dtype=kind)}
        one(f"integer_to_float_{kind.__name__}", "MatMulIntegerToFloat", {"A": codes(2, 3, 6, dtype=kind), "B": codes(6, 4, dtype=kind)} | scales | points | {"bias": floats(4)},
            ["Y"], ["B", *scales, *points, "bias"])  # fmt: skip
    one("integer_to_float_plain", "MatMulIntegerToFloat", {"A": codes(3, 6), "B": b} | scales, ["Y"], ["B", *scales])
    for kind in [0, 1]:
        operands = {"A": floats(3, 32), "B": codes(32 * 6 // 2), "absmax": random.random(12).astype(SINGLE)}
        one(f"bnb4_{kind}", "MatMulBnb4", operands, ["Y"], ["B", "absmax"], K=32, N=6, block_size=16, quant_type=kind)

    for kind in [np.uint8, np.int8]:
        tag = kind.__name__
        scalar = lambda value: np.array(value, SINGLE)
        parameters = lambda prefix, scale, point: {f"{prefix}_scale": scalar(scale), f"{prefix}_zero_point": np.array(point, kind)}
        x = codes(2, 4, 5, 6, dtype=kind)
        # No mean lies in the middle between two codes.
        both = parameters("x", 0.05, 3) | parameters("y", 0.0437, 9)
        upper = {"X": x} | {name.replace("x_", "X_").replace("y_", "Y_"): value for name, value in (parameters("x", 0.05, 3) | parameters("y", 0.004, 9)).items()}
        names = [name for name in upper if name != "X"]
        one(f"qsigmoid_{tag}", "QLinearSigmoid", upper, ["Y"], names)
        one(f"qleaky_{tag}", "QLinearLeakyRelu", upper, ["Y"], names, alpha=0.2)
        operands, names = {"X": x} | both, list(both)
        one(f"qaverage_{tag}", "QLinearAveragePool", operands, ["Y"], names, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1])
        one(f"qaverage_pads_{tag}", "QLinearAveragePool", operands, ["Y"], names, kernel_shape=[3, 2], pads=[1, 0, 1, 1], count_include_pad=1)
        one(f"qaverage_last_{tag}", "QLinearAveragePool", operands, ["Y"], names, kernel_shape=[2, 2], strides=[2, 2], channels_last=1, ceil_mode=1)
        one(f"qglobal_{tag}", "QLinearGlobalAveragePool", operands, ["Y"], names)
        one(f"qglobal_last_{tag}", "QLinearGlobalAveragePool", operands, ["Y"], names, channels_last=1)
        flat = {"X": codes(3, 7, dtype=kind)} | both | parameters("y", 1 / 256, -128 if kind == np.int8 else 0)
        one(f"qsoftmax_{tag}", "QLinearSoftmax", flat, ["Y"], names, opset=13)
        one(f"qsoftmax_first_{tag}", "QLinearSoftmax", flat, ["Y"], names, opset=13, axis=0)
        one(f"qsoftmax_axes_{tag}", "QLinearSoftmax", flat | {"X": codes(2, 3, 4, dtype=kind)}, ["Y"], names, opset=12, axis=1)
        joined = parameters("Y", 0.05, 4) | {"a": codes(2, 3, dtype=kind)} | parameters("a", 0.05, 4) | {"b": codes(2, 5, dtype=kind)} | parameters("b", 0.02, 7)
        one(f"qconcat_{tag}", "QLinearConcat", joined, ["Y"], [name for name in joined if len(name) > 1], axis=1)
        chosen = {"condition": random.integers(0, 2, (2, 1, 4)).astype(bool), "X": codes(2, 3, 4, dtype=kind)} | parameters("x", 0.05, 3)
        chosen |= {"Y": codes(3, 1, dtype=kind)} | parameters("y", 0.03, 8) | parameters("z", 0.06, 1)
        one(f"qwhere_{tag}", "QLinearWhere", chosen, ["Z"], [name for name in chosen if "_" in name])
        mean = lambda x, xs, xz, ys, yz: np.clip(np.rint(((x.astype(SINGLE) - xz) * xs).mean((1, 2)) / ys) + yz, np.iinfo(kind).min, np.iinfo(kind).max).astype(kind)
        one(f"qmean_{tag}", "QLinearReduceMean", {"data": codes(2, 4, 5, dtype=kind)} | both, ["reduced"], names, axes=[1, 2], keepdims=0, formula=mean)
        conv = {"x": codes(1, 6, 5, 4, dtype=kind), "x_scale": scalar(0.05), "x_zero_point": np.array(3, kind), "w": codes(6, 4, 3, 3, dtype=np.int8),
                "w_scale": (random.random(6) * 0.02 + 0.01).astype(SINGLE), "w_zero_point": np.zeros(6, np.int8), "y_scale": scalar(0.5), "y_zero_point": np.array(9, kind),
                "B": random.integers(-900, 900, 6, np.int32)}  # fmt: skip
        one(f"qconv_last_{tag}", "QLinearConv", conv, ["y"], list(conv)[1:], channels_last=1, pads=[1, 1, 0, 1], strides=[1, 2])
    for kind in [np.int8, np.uint8, np.int16, np.uint16]:
        tag = kind.__name__
        by_axis = {"y_scale": (random.random(3) * 0.1 + 0.01).astype(SINGLE), "y_zero_point": random.integers(0, 50, 3, kind)}
        one(f"quantize_{tag}", "QuantizeLinear", {"x": floats(2, 3, 4) * 5} | by_axis, ["y"], list(by_axis), axis=1)
        one(f"dequantize_{tag}", "DequantizeLinear", {"x": codes(2, 3, 4, dtype=kind), "x_scale": np.array(0.3, SINGLE), "x_zero_point": np.array(9, kind)}, ["y"])


def moves():
    one("expand_dims", "ExpandDims", {"X": floats(2, 3), "axis": np.array(1, np.int32)}, ["Y"], ["axis"])
    one("expand_dims_last", "ExpandDims", {"X": floats(2, 3), "axis": np.array(-1, np.int32)}, ["Y"], ["axis"])
    one("trilu_upper", "Trilu", {"X": floats(2, 4, 5), "k": np.array(1, np.int64)}, ["Y"], ["k"])
    one("trilu_lower", "Trilu", {"X": floats(4, 5)}, ["Y"], upper=0)
    one("unique_order", "Unique", {"x": np.array([2, 1, 1, 3, 4, 3], SINGLE)}, ["y", "idx", "counts"], dims={"y": ["u"], "counts": ["u"]})
    pads = {"pads": np.array([1, 0, 0, 2], np.int64)}
    one("pad_constant", "Pad", {"data": floats(2, 3)} | pads | {"value": np.array([1.5], SINGLE)}, ["output"], ["pads", "value"])
    one("pad_edge", "Pad", {"data": floats(2, 3)} | {"pads": pads["pads"].reshape(1, 4)}, ["output"], ["pads"], mode="edge")
    one("pad_reflect", "Pad", {"data": floats(3, 3)} | pads, ["output"], ["pads"], mode="reflect")
    bounds = {"start": np.array(2, np.int64), "limit": np.array(11, np.int64)}
    one("range_ones", "Range", bounds, ["Y"], ["start"], dims={"Y": ["n"]})
    one("range_steps", "Range", {"start": np.array([5], SINGLE), "limit": np.array([1], SINGLE), "delta": np.array([-1.5], SINGLE)}, ["Y"], ["delta"], dims={"Y": ["n"]})
    one("gather_nd", "GatherND", {"data": floats(3, 4, 2), "indices": np.array([[0, 1], [2, 3]], np.int64)}, ["output"])
    grid = (random.random((2, 3, 4, 2)) * 2.4 - 1.2).astype(SINGLE)
    for mode in ["bilinear", "nearest", "bicubic"]:
        for padding in ["zeros", "border", "reflection"][:: 2 if mode == "bicubic" else 1]:
            one(f"grid_{mode}_{padding}", "GridSample", {"X": floats(2, 2, 5, 6), "Grid": grid}, ["Y"], mode=mode, padding_mode=padding, align_corners=int(padding == "border"))
    one("cdist", "CDist", {"A": floats(4, 3), "B": floats(5, 3)}, ["C"])
    one("cdist_root", "CDist", {"A": floats(4, 3, dtype=DOUBLE), "B": floats(5, 3, dtype=DOUBLE)}, ["C"], metric="euclidean")
    split = lambda x: np.stack([x.real, x.imag], -1).astype(SINGLE)
    one("rfft", "Rfft", {"X": floats(2, 8)}, ["Y"], signal_ndim=1, formula=lambda x: split(np.fft.rfft(x)))
    one("irfft", "Irfft", {"X": split(np.fft.rfft(floats(2, 8)))}, ["Y"], signal_ndim=1,
        formula=lambda x: np.fft.irfft(x[..., 0] + 1j * x[..., 1]).astype(SINGLE))  # fmt: skip


def recurrent():
    def case(name, steps, batch=1, kind=np.uint8, per_channel=False, bias=True, initial=False, direction="forward"):
        count, size, hidden = 2 if direction == "bidirectional" else 1, 5, 6
        shape = (count, 4 * hidden) if per_channel else (count,)
        scale = lambda: (random.random(shape) * 0.01 + 0.005).astype(SINGLE)
        zero = lambda: random.integers(120, 136, shape, np.uint8) if kind is np.uint8 else np.zeros(shape, kind)
        operands = {
            "X": floats(steps, batch, size), "W": codes(count, size, 4 * hidden, dtype=kind),
            "R": codes(count, hidden, 4 * hidden, dtype=kind), "B": floats(count, 8 * hidden) if bias else None,
            "sequence_lens": None, "initial_h": floats(count, batch, hidden) / 4 if initial else None,
            "initial_c": floats(count, batch, hidden) if initial else None, "P": None,
            "W_scale": scale(), "W_zero_point": zero(), "R_scale": scale(), "R_zero_point": zero(),
        }  # fmt: skip
        constants = ["W", "R", "B", "W_scale", "W_zero_point", "R_scale", "R_zero_point"]
        constants = [name for name in constants if operands[name] is not None]
        one(f"dynamic_lstm_{name}", "DynamicQuantizeLSTM", operands, ["Y", "Y_h", "Y_c"], constants, hidden_size=hidden, direction=direction)

    case("plain", 4)
    case("signed", 3, kind=np.int8, bias=False)
    case("channels", 3, per_channel=True, kind=np.int8, initial=True)
    case("reverse", 4, direction="reverse", initial=True)
    case("both", 4, direction="bidirectional", batch=1, initial=True)


def fused():
    recurrent()
    elementwise()
    products()
    windows()
    experts()
    attention()
    states()
    normalizations()
    quantized()
    moves()
