"""Cases of operators and attributes that no other file has: packed weights, sums of codes, and options one by one.

    venv/bin/python tests/contrib/options.py

They draw from numbers of their own, so that they can be written alone."""

import numpy as np
from case import Case, Formula, numbers, one, run
from onnx import TensorProto, helper

random, floats = numbers(9)
SINGLE, HALF = np.float32, np.float16


def codes(*shape, dtype=np.uint8):
    info = np.iinfo(dtype)
    return random.integers(info.min, info.max, shape, dtype, endpoint=True)


def scales(*shape, dtype=SINGLE):
    return (random.random(shape) * 0.05 + 0.01).astype(dtype)


def packed_weights():
    """Of 2, 4 and 8 bits, in blocks of 16 or 32 inputs; the last block is not full."""
    inputs, outputs = 70, 6
    names = ["A", "B", "scales", "zero_points", "g_idx", "bias"]
    for bits in [2, 4, 8]:
        for block in [16, 32]:
            blocks = -(-inputs // block)
            weights = {"B": codes(outputs, blocks, block * bits // 8), "scales": scales(outputs, blocks)}
            sizes = {"K": inputs, "N": outputs, "bits": bits, "block_size": block}

            def case(name, x=None, more=(), **attributes):
                x = floats(2, 3, inputs) if x is None else x
                made = weights | dict(more)
                made["scales"] = made["scales"].astype(x.dtype)
                title = f"matmul_bits_{bits}_{block}{name}"
                Case(title, "MatMulNBits", names, ["Y"], weights=made, **sizes, **attributes).add(A=x)

            points = {"zero_points": codes(outputs, -(-blocks * bits // 8))}
            case("")
            case("_points", more=points | {"bias": floats(outputs)})
            if block == 16 and bits < 8:
                case("_float_points", more={"zero_points": floats(outputs, blocks)})
            if bits == 4 and block == 32:
                case("_half", floats(3, inputs, dtype=HALF), points)
                order = np.sort(random.integers(0, blocks, inputs)).astype(np.int32)
                # With `g_idx` ONNX Runtime passes over zero points that are packed.
                case("_groups", more={"zero_points": floats(outputs, blocks), "g_idx": order}, accuracy_level=1)
                case("_int8", accuracy_level=4)


def gathered_weights():
    names = ["data", "indices", "scales", "zero_points"]
    indices = np.array([[2, 0, 3], [1, 1, 0]])

    def case(name, data, scale, points=None, indices=indices, **attributes):
        weights = {"data": data, "scales": scale} | ({} if points is None else {"zero_points": points})
        Case(f"gather_blocks_{name}", "GatherBlockQuantized", names, ["Y"], weights=weights, **attributes).add(indices=indices)

    case("4", codes(4, 16), scales(4, 2), block_size=16)
    case("4_points", codes(4, 16), scales(4, 2), codes(4, 1), block_size=16)
    case("8_points", codes(4, 40), scales(4, 3), codes(4, 3), bits=8, block_size=16)
    case("axes", codes(4, 3, 16), scales(4, 3, 2), codes(4, 3, 1), block_size=16, gather_axis=0, quantize_axis=2)
    case("8_i32", codes(4, 32), scales(4, 2, dtype=HALF), indices=indices.astype(np.int32), bits=8, block_size=16)


def sums_of_codes():
    for kind in [np.uint8, np.int8]:
        tag = kind.__name__
        single = lambda value: np.array(value, SINGLE)
        of = lambda prefix, scale, point: {f"w_{prefix}_scale": single(scale), f"w_{prefix}_zero_point": np.array(point, kind)}
        both = of("A", 0.05, 3) | of("B", 0.03, 8) | of("C", 0.0711, 9)
        for name, shapes in {"": [(2, 3, 4), (2, 3, 4)], "_spread": [(2, 1, 4), (3, 1)], "_scalar": [(5,), ()]}.items():
            left, right = [codes(*shape, dtype=kind) if shape else np.array(7, kind) for shape in shapes]
            inputs = {"A": left} | dict(list(both.items())[:2]) | {"B": right} | dict(list(both.items())[2:])
            one(f"qadd{name}_{tag}", "QLinearAdd", inputs, ["C"])
            one(f"qmul{name}_{tag}", "QLinearMul", inputs, ["C"])
        a, b = codes(3, 5, dtype=kind), codes(5, 4, dtype=kind)
        parameters = {"w_b_scale": scales(4), "w_b_zero_point": codes(4, dtype=kind)}
        names = ["a", "a_scale", "a_zero_point", "b", "b_scale", "b_zero_point", "C", "y_scale", "y_zero_point"]

        def gemm(name, a, b, by_column=True, addend=None, result=True, **attributes):
            weights = {"a_scale": single(0.04), "a_zero_point": np.array(5, kind), "b": b}
            width = b.shape[0 if attributes.get("transB") else 1]
            weights |= {"b_scale": scales(width), "b_zero_point": codes(width, dtype=kind)} if by_column else {
                "b_scale": single(0.03), "b_zero_point": np.array(9, kind)}  # fmt: skip
            weights |= {} if addend is None else {"C": addend}
            weights |= {"y_scale": single(0.9173), "y_zero_point": np.array(11, kind)} if result else {}
            Case(f"qgemm{name}_{tag}", "QGemm", names, ["Y"], weights=weights, **attributes).add(a=a)

        gemm("", a, b)
        gemm("_floats", a, b, result=False, alpha=0.5)
        gemm("_across", a.T.copy(), b.T.copy(), by_column=False, addend=random.integers(-999, 999, 4, np.int32), transA=1, transB=1)
        gemm("_sum", a, b, addend=random.integers(-999, 999, (3, 4), np.int32), alpha=1.5)


def sparse():
    """ONNX Runtime takes a sparse matrix as an input only; of an initializer it makes a dense one, which the operator refuses."""
    values, places = floats(4), np.array([1, 3, 6, 11])

    def case(name, b, **attributes):
        tensor = helper.make_tensor("A", TensorProto.FLOAT, [4], values)
        index = helper.make_tensor("A_places", TensorProto.INT64, [4], places)

        class Sparse(Formula):
            def model(self, inputs):
                made = super().model(inputs)
                made.graph.node[0].input.insert(0, "A")
                made.graph.sparse_initializer.append(helper.make_sparse_tensor(tensor, index, [3, 4]))
                return made

        def formula(b):
            a = np.zeros(12, SINGLE)
            a[places] = values
            a = a.reshape(3, 4)
            a, b = a.T if attributes.get("transA") else a, b.T if attributes.get("transB") else b
            return (attributes.get("alpha", 1.0) * (a @ b)).astype(SINGLE)

        Sparse(f"sparse_dense{name}", "SparseToDenseMatMul", ["B"], ["Y"], formula, **attributes).add(B=b)

    case("", floats(4, 2))
    case("_scaled", floats(4, 2), alpha=0.5)
    case("_across", floats(5, 3), transA=1, transB=1)


def plain(operator, **attributes):
    """What an operator of ONNX computes."""

    def formula(*operands):
        names = [f"i{number}" for number in range(len(operands))]
        made = Case("plain", operator, names, ["Y"], domain="", **attributes)
        given = dict(zip(names, operands))
        return run(made.model(given), given, ["Y"])["Y"]

    return formula


def windows():
    first = lambda x: np.moveaxis(x, -1, 1)
    last = lambda x: np.moveaxis(x, 1, -1).copy()

    def conv(name, operator, attributes, function=lambda x: x, bias=True, addend=False, **more):
        formula = lambda x, w, b=None, z=None: function(
            last(plain("Conv", **attributes)(*[value for value in [first(x).copy(), w, b] if value is not None]))
            + (0 if z is None else z)
        ).astype(SINGLE)
        group = attributes.get("group", 1)
        weights = {"W": floats(6, 4 // group, 3, 2)} | ({"B": floats(6)} if bias else {})
        given = {"X": floats(1, 7, 6, 4)}
        if addend:
            given["Z"] = floats(*formula(given["X"], weights["W"], weights.get("B")).shape)
        Formula(name, operator, ["X", "W", "B", "Z"], ["Y"], formula, weights=weights, **attributes, **more).add(**given)

    for operator, more in {"NhwcConv": {}, "NhwcFusedConv": {"activation": "LeakyRelu", "activation_params": [0.2]}}.items():
        leaky = (lambda x: np.where(x < 0, 0.2 * x, x)) if more else (lambda x: x)
        title = "nhwc_conv" if operator == "NhwcConv" else "nhwc_fused_conv"
        for name, attributes in {
            "strides": {"strides": [2, 1], "kernel_shape": [3, 2]},
            "group": {"group": 2, "pads": [1, 0, 1, 1]},
            "dilations": {"dilations": [2, 3]},
            "upper": {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
            "lower": {"auto_pad": "SAME_LOWER"},
        }.items():
            conv(f"{title}_{name}", operator, attributes, leaky, bias=name != "group", **more)
    hard = {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]}
    conv("nhwc_fused_conv_hard", "NhwcFusedConv", {}, lambda x: np.clip(0.3 * x + 0.4, 0, 1), addend=True, **hard)
    one("nhwc_max_pool_dilations", "NhwcMaxPool", {"x": codes(1, 7, 6, 3)}, kernel_shape=[3, 2], dilations=[2, 2])
    one("nhwc_max_pool_upper", "NhwcMaxPool", {"x": codes(1, 7, 6, 3)}, kernel_shape=[3, 2], auto_pad="SAME_UPPER", strides=[2, 2])
    for mode in ["upper", "lower"]:
        apart = {"auto_pad": "SAME_" + mode.upper(), "dilations": [2, 2]}
        one(f"nhwc_max_pool_{mode}_dilations", "NhwcMaxPool", {"x": codes(1, 7, 6, 3)}, kernel_shape=[3, 2], **apart)
        one(f"nhwc_max_pool_{mode}_strides", "NhwcMaxPool", {"x": codes(1, 7, 6, 3)}, kernel_shape=[3, 3], strides=[2, 2], **apart)
    single = lambda value: np.array(value, SINGLE)
    ends = {"w_x_scale": single(0.05), "w_x_zero_point": np.array(3, np.uint8)}
    results = {"w_y_scale": single(0.0437), "w_y_zero_point": np.array(9, np.uint8)}
    pooled = {"X": codes(1, 2, 7, 6)} | ends | results
    for mode in ["SAME_UPPER", "SAME_LOWER", "VALID"]:
        one(f"qaverage_{mode.lower()}", "QLinearAveragePool", pooled, kernel_shape=[3, 2], auto_pad=mode, strides=[2, 1])
    one("qaverage_valid_ceil", "QLinearAveragePool", pooled, kernel_shape=[2, 3], auto_pad="VALID", strides=[2, 2], ceil_mode=1)
    one("nhwc_max_pool_valid_ceil", "NhwcMaxPool", {"x": codes(1, 7, 6, 3)}, kernel_shape=[2, 3], auto_pad="VALID", strides=[2, 2], ceil_mode=1)
    for name, more in {
        "group": {"group": 2, "kernel_shape": [3, 3]}, "dilations": {"dilations": [2, 1]}, "upper": {"auto_pad": "SAME_UPPER"},
    }.items():  # fmt: skip
        group = more.get("group", 1)
        weights = {"w_w": codes(6, 4 // group, 3, 3, dtype=np.int8), "w_w_scale": scales(6), "w_w_zero_point": np.zeros(6, np.int8)}
        sums = {"w_y_scale": single(0.5173), "w_y_zero_point": np.array(9, np.uint8), "w_B": random.integers(-900, 900, 6, np.int32)}
        one(f"qconv_last_{name}", "QLinearConv", {"x": codes(1, 7, 6, 4)} | ends | weights | sums, channels_last=1, **more)
    inputs = {"X": floats(1, 4, 3, 5), "w_W": floats(4, 2, 3, 2), "Pads": np.array([1, 0, 1, 1])}
    one("transpose_pads_kernel", "ConvTransposeWithDynamicPads", inputs, kernel_shape=[3, 2])


def products():
    def case(name, a, b, function, **attributes):
        def formula(a, b):
            if attributes.get("transBatchA"):
                a = np.moveaxis(a, 0, -2)
            if attributes.get("transBatchB"):
                b = np.moveaxis(b, 0, -2)
            a = np.swapaxes(a, -1, -2) if attributes.get("transA") else a
            b = np.swapaxes(b, -1, -2) if attributes.get("transB") else b
            return function(attributes.get("alpha", 1.0) * (a @ b)).astype(SINGLE)

        Formula(f"matmul_activation_{name}", "FusedMatMulActivation", ["A", "B"], ["Y"], formula, **attributes).add(A=a, B=b)

    relu = lambda x: np.maximum(x, 0)
    hard = lambda x: np.clip(0.3 * x + 0.4, 0, 1)
    case("across", floats(2, 5, 3), floats(4, 5), relu, activation="Relu", transA=1, transB=1)
    case("batch", floats(3, 2, 5), floats(4, 2, 5), relu, activation="Relu", transBatchA=1, transBatchB=1, transB=1)
    case("batch_a", floats(5, 2, 3), floats(2, 5, 4), np.tanh, activation="Tanh", transBatchA=1, transA=1, alpha=0.5)
    case("hard", floats(3, 5), floats(5, 4), hard, activation="HardSigmoid", activation_alpha=0.3, activation_beta=0.4, activation_gamma=0.0)
    one("transpose_matmul_b", "TransposeMatMul", {"A": floats(2, 3, 5), "B": floats(2, 4, 5)}, transB=1)
    inputs = {"A": floats(3, 5), "B": floats(5, 4)}
    one("fused_gemm_gamma", "FusedGemm", inputs, activation="LeakyRelu", activation_alpha=0.3, activation_gamma=0.0)
    inputs = {"A": floats(3, 32), "w_B": codes(32 * 6 // 2), "w_absmax": random.random(12).astype(SINGLE)}
    one("bnb4_across", "MatMulBnb4", inputs, K=32, N=6, block_size=16, quant_type=1, transB=1, training_mode=0)


def experts():
    tokens, count, size, inner = 5, 4, 32, 32

    def case(name, bits, wide=2 * inner, **attributes):
        first, second = bits
        operands = ["input", "router_probs", "fc1", "fc1_scales", "fc1_bias", "fc2", "fc2_scales", "fc2_bias"]
        weights = {"fc1": codes(count, wide, size * first // 8), "fc1_scales": scales(count, wide), "fc1_bias": floats(count, wide)}
        weights |= {"fc2": codes(count, size, inner * second // 8), "fc2_scales": scales(count, size), "fc2_bias": floats(count, size)}
        made = Case(f"qmoe_{name}", "QMoE", operands, ["output"], weights=weights, k=2, **attributes)
        made.add(input=floats(tokens, size), router_probs=floats(tokens, count))

    operands = ["input", "router_probs", "fc1", "", "fc2"]
    weights = {"input": floats(tokens, 8), "fc1": floats(count, 6, 8), "fc2": floats(count, 8, 6)}
    Case("moe_stored", "MoE", operands, ["output"], weights=weights, k=2, activation_type="silu").add(router_probs=floats(tokens, count))
    gated = {"activation_type": "swiglu", "swiglu_fusion": 1, "expert_weight_bits": 4}
    case("limit", (4, 4), **gated, activation_alpha=1.3, activation_beta=0.5, swiglu_limit=1.0)
    case("kind", (4, 4), **gated, quant_type="int", weights_prepacked=0, accuracy_level=1, use_sparse_mixer=1)
    case("own_bits", (8, 8), inner, activation_type="silu", expert_weight_bits=8, fc1_expert_weight_bits=8, fc2_expert_weight_bits=8, fc3_expert_weight_bits=8)


def attention():
    batch, steps, size, heads = 2, 3, 6, 2
    scalar = lambda value, kind=SINGLE: np.array(value, kind)
    names = ["input", "weight", "bias", "input_scale", "weight_scale", "mask", "input_zero_point", "weight_zero_point"]
    weights = {
        "weight": codes(size, 24), "bias": floats(24), "input_scale": scalar(0.05), "weight_scale": scalar(0.02),
        "input_zero_point": scalar(120, np.uint8), "weight_zero_point": scalar(130, np.uint8),
    }  # fmt: skip
    mask = np.array([[1, 1, 0], [1, 0, 1]], np.int32)
    for name, more in {"scale": {"scale": 0.3}, "filter": {"mask_filter_value": -3.0}}.items():
        made = Case(f"qattention_{name}", "QAttention", names, ["output"], weights=weights, num_heads=heads, **more)
        made.add(input=codes(batch, steps, size), mask=mask)
    names = ["query", "key", "value", "mask_index"]
    step = {name: floats(batch, 1, 8) for name in names[:3]} | {"mask_index": mask[:, :1]}
    for name, more in {"scale": {"scale": 0.3}, "filter": {"mask_filter_value": -3.0}}.items():
        keys = {"key": floats(batch, heads, 3, 4), "value": floats(batch, heads, 3, 4), "mask_index": mask}
        Case(f"decoder_{name}", "DecoderMaskedMultiHeadAttention", names, ["output"], num_heads=heads, **more).add(**step | keys)
    inputs = {"query": floats(1, 4, 16), "key": floats(1, 4, 8), "value": floats(1, 4, 6), "past_state": floats(1, 2, 4, 3)}
    options = {"update_rule": "linear", "q_num_heads": 4, "kv_num_heads": 2, "chunk_size": 2, "state_window": 0}
    one("linear_attention_scale", "LinearAttention", inputs, ["output", "present"], scale=0.3, **options)
    inputs = {"input": floats(2, 3, 7), "w_weight": floats(3, 1, 3)}
    one("causal_conv_axes", "CausalConvWithState", inputs, ["output", "present"], ndim=1, state_window=0)


def normalizations():
    silu = lambda x: x / (1 + np.exp(-x))

    def grouped(x, gamma, beta, epsilon):
        rows = x.reshape(2, 2, 3, -1).astype(np.float64)
        rows = (rows - rows.mean((2, 3), keepdims=True)) / np.sqrt(rows.var((2, 3), keepdims=True) + epsilon)
        return (rows.reshape(x.shape) * gamma[:, None, None] + beta[:, None, None]).astype(SINGLE)

    affine = {"gamma": floats(6), "beta": floats(6)}
    formula = lambda x, g, b: silu(grouped(x, g, b, 0.1))
    made = Formula("group_norm_first", "GroupNorm", ["X", "gamma", "beta"], ["Y"], formula, weights=affine, groups=2, activation=1,
                   channels_last=0, epsilon=0.1)  # fmt: skip
    made.add(X=floats(2, 6, 3, 2))

    def skipped(x, g, b, skip):
        total = x + skip
        return np.moveaxis(grouped(np.moveaxis(total, -1, 1), g, b, 0.1), 1, -1), total

    made = Formula("skip_group_norm_epsilon", "SkipGroupNorm", ["X", "gamma", "beta", "skip"], ["Y", "S"], skipped, weights=affine,
                   groups=2, activation=0, channels_last=1, epsilon=0.1)  # fmt: skip
    made.add(X=floats(2, 3, 2, 6), skip=floats(2, 3, 2, 6))
    inputs = {"X": floats(2, 3, 8), "w_scale": floats(8), "gate": floats(2, 3, 8)}
    one("gated_norm_sigmoid", "GatedRMSNorm", inputs, activation="sigmoid")
    one("gated_norm_silu", "GatedRMSNorm", inputs, activation="silu")
    by_axis = {"w_x_scale": scales(3), "w_x_zero_point": codes(3)}
    one("dequantize_axis", "DequantizeLinear", {"x": codes(2, 3, 4)} | by_axis, axis=1)
    split = lambda x: np.stack([x.real, x.imag], -1).astype(SINGLE)
    plainly = {"signal_ndim": 1, "onesided": 1, "normalized": 0}
    Formula("rfft_odd", "Rfft", ["X"], ["Y"], lambda x: split(np.fft.rfft(x)), **plainly).add(X=floats(2, 7))
    back = lambda x: np.fft.irfft(x[..., 0] + 1j * x[..., 1]).astype(SINGLE)
    Formula("irfft_options", "Irfft", ["X"], ["Y"], back, **plainly).add(X=split(np.fft.rfft(floats(2, 6))))
    Formula("bias_dropout_seed", "BiasDropout", ["data", "bias"], ["Y"], lambda x, b: x + b, seed=3).add(data=floats(2, 3), bias=floats(3))


def recurrent():
    directions, batch, places, hidden = 1, 2, 6, 3
    weights = {
        "W": floats(directions, 12, 9), "R": floats(directions, 12, hidden), "QW": floats(directions, hidden, 3),
        "MW": floats(directions, 4, 3), "V": floats(directions, 3),
    }  # fmt: skip
    names = ["X", "W", "R", "", "", "", "", "", "QW", "MW", "V", "M"]
    functions = {"activations": ["HardSigmoid", "LeakyRelu", "Affine"], "activation_alpha": [0.3, 0.2, 0.7], "activation_beta": [0.4, 0.1]}
    made = Case("attentive_functions", "AttnLSTM", names, ["Y", "Y_h", "Y_c"], weights=weights, hidden_size=hidden, **functions)
    made.add(X=floats(4, batch, 5), M=floats(batch, places, 4))


def options():
    packed_weights()
    gathered_weights()
    sums_of_codes()
    sparse()
    windows()
    products()
    experts()
    attention()
    normalizations()
    recurrent()


if __name__ == "__main__":
    options()
