"""Cases of hidden values in branches, of gates and routers, of slices, words and tokens, of attention by
a state, of embeddings in codes, and of statistics as outputs.

    venv/bin/python tests/contrib/branches.py

They draw from numbers of their own, so that they can be written alone."""

import numpy as np
from case import Case, Formula, numbers, one

random, floats = numbers(4)


def hidden():
    half = np.float16
    for name, scale in [("plain", None), ("own", (3, 8)), ("shared", (8,)), ("flat", (24,))]:
        inputs = {"X": floats(2, 4, 3, 8)} | ({"w_scale": floats(*scale)} if scale else {})
        one(f"branch_norm_{name}", "BranchwiseRMSNorm", inputs)
        inputs["X"] = floats(2, 24, dtype=half)
        one(f"branch_norm_{name}_joined", "BranchwiseRMSNorm", inputs, num_branches=3, epsilon=0.1)
    one("branch_before", "HyperConnectionPreMix", {"X": floats(2, 3, 8), "M": floats(2, 3)}, reduction_scale=0.5)
    one("branch_before_whole", "HyperConnectionPreMix", {"X": floats(2, 3, 8, dtype=half), "M": floats(2, 3, 8)})
    one("branch_before_joined", "HyperConnectionPreMix", {"X": floats(2, 24), "M": floats(2, 24)}, num_branches=3)
    inputs = {"X": floats(2, 3, 8), "block": floats(2, 8), "post": floats(2, 3)}
    one("branch_after", "HyperConnectionPostMix", inputs)
    one("branch_after_mixed", "HyperConnectionPostMix", inputs | {"post": floats(2, 3, 8), "mix": floats(2, 3, 3)})
    inputs |= {"X": floats(2, 24, dtype=half), "block": floats(2, 8, dtype=half), "post": floats(2, 3, 1)}
    one("branch_after_joined", "HyperConnectionPostMix", inputs | {"mix": floats(2, 3, 3)}, num_branches=3)


def gates():
    for name, dtype in [("", np.float32), ("_half", np.float16)]:
        inputs = {"a": floats(2, 3, 4, dtype=dtype), "w_bias": floats(4), "w_scale": floats(4)}
        one(f"linear_gate{name}", "LinearAttentionGate", inputs | {"b": floats(2, 3, 4, dtype=dtype)}, ["decay", "beta"])
    one("linear_gate_decay", "LinearAttentionGate", inputs, ["decay"])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def router(top_k, n_group=1, topk_group=1, group_topk=2, router_sentinel=-10000.0):
    """Logarithms of the sigmoids of the best experts in the best groups; or scores with and without their bias."""

    def formula(logits, bias):
        plain = sigmoid(logits.astype(np.float64))
        scores = plain + bias
        grouped = scores.reshape(len(scores), n_group, -1)
        best = np.sort(grouped, -1)[..., -min(group_topk, grouped.shape[-1]) :].sum(-1)
        for row, order in enumerate(np.argsort(-best, 1, kind="stable")):
            grouped[row, order[topk_group:]] = -np.inf
        result = np.full(scores.shape, router_sentinel)
        for row, order in enumerate(np.argsort(-grouped.reshape(scores.shape), 1, kind="stable")[:, :top_k]):
            result[row, order] = np.log(np.maximum(plain[row, order], 1e-20))
        return result.astype(logits.dtype)

    return formula


def routers():
    """The packages of ONNX Runtime up to 1.31 do not have the operator: its results are those of a formula."""

    def route(name, experts=8, results=("Y",), dtype=np.float32, **more):
        both = lambda logits, bias: ((sigmoid(logits) + bias).astype(np.float32), sigmoid(logits).astype(np.float32))
        formula = router(**more) if len(results) == 1 else both
        made = Formula(f"router_{name}", "MoEGroupRouter", ["logits", "bias"], list(results), formula, weights={"bias": None}, **more)
        logits = floats(5, experts, dtype=dtype)
        made.weights["bias"] = floats(experts)
        made.add(logits=logits)

    route("plain", top_k=2)
    route("groups", 12, top_k=3, n_group=4, topk_group=2)
    route("groups_three", 12, top_k=2, n_group=3, topk_group=1, group_topk=3, router_sentinel=-5.0)
    route("half", top_k=3, n_group=2, dtype=np.float16)
    route("scores", results=["", "scores", "weights"], top_k=3)


def slices():
    one("unfold", "UnfoldTensor", {"X": floats(2, 7, 3)}, dim=1, size=3, step=2)
    one("unfold_last", "UnfoldTensor", {"X": np.arange(10).reshape(2, 5)}, size=2)
    words = np.array([[1, 2, 3, 0, 0], [4, 5, 1, 2, 3], [1, 0, 0, 0, 0]], np.int32)
    weights = {"w_W": floats(6, 1, 2, 4), "w_B": floats(6), "w_C": floats(8, 4)}
    one("words", "WordConvEmbedding", {"words": words} | weights)
    weights["w_W"] = floats(6, 1, 4, 4)
    sizes = {"embedding_size": 6, "conv_window_size": 4, "char_embedding_size": 4}
    one("words_wide", "WordConvEmbedding", {"words": words} | weights, **sizes)
    shorts = [random.integers(-300, 300, shape).astype(np.int16) for shape in [(2, 3, 4), (4, 5)]]
    one("short_product", "MatMulInteger16", {"A": shorts[0], "B": shorts[1]})
    inputs = {"input": floats(2, 3, 24), "skip": floats(2, 3, 24), "w_gamma": floats(24), "w_beta": floats(24)}
    results = ["output", "mean", "inv_std_var", "sum"]
    one("skip_layer_statistics", "SkipLayerNormalization", inputs, results, epsilon=0.1)


def tokens():
    texts = np.array(["ab cd", "e  fg ", "", "h\u00e4 aXYb"], object)

    def case(name, x=texts, **more):
        one(f"tokens_{name}", "Tokenizer", {"X": x}, **{"pad_value": "#", "mark": 0, "mincharnum": 1} | more)

    case("spaces", separators=[" "])
    case("marked", separators=[" "], mark=1)
    case("several", separators=[" ", "X|XY"], mincharnum=2)
    case("characters", separators=[""], mark=1)
    case("expression", tokenexp="a|ab|[c-g]+", pad_value="")
    case("any", x=texts.reshape(2, 2), tokenexp=".")
    case("words", x=texts.reshape(2, 2), tokenexp="\\w+", mincharnum=2, mark=1)
    case("nothing", x=np.array(["", " "], object), separators=[" "], mark=1)


def delta_net(update_rule="gated_delta", scale=0.0, gate_activation="none", gate_lower_bound=-5.0, beta_activation="none", qk_l2_norm=0):
    """What GatedDeltaNet computes, by its description: a state of each head that decays, is corrected, and is read."""
    gated, corrected = "gated" in update_rule, "delta" in update_rule

    def formula(query, key, value, _, decay, beta, state, a_log=None, dt_bias=None):
        (batch, heads, width, size), dtype = state.shape, query.dtype
        if key is None:
            shared = (query.shape[1] - heads * width) // (2 * size)
            query, key, value = np.split(query, np.cumsum([shared * size, shared * size]), 1)
            query, key, value = query.reshape(-1, shared, size), key.reshape(-1, shared, size), value.reshape(-1, heads, width)
        shape = value.shape
        steps = value.size // (batch * heads * width)
        of_heads = lambda x, count: x.astype(np.float64).reshape(batch, steps, heads, count)
        repeat = lambda x: of_heads(np.repeat(x, heads // x.shape[-2], -2), size)
        query, key, value = repeat(query), repeat(key), of_heads(value, width)
        if qk_l2_norm:
            query, key = [x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-12) for x in (query, key)]
        if gated:
            decay = of_heads(decay, -1)
            if gate_activation != "none":
                decay, factor = decay + dt_bias.reshape(heads, -1), np.exp(a_log.astype(np.float64))[:, None]
                softplus = gate_activation in ["softplus", "qwen"]
                decay = -factor * np.logaddexp(0, decay) if softplus else gate_lower_bound * sigmoid(decay * factor)
            decay = np.exp(decay)
        if corrected:
            beta = of_heads(beta, 1)
            beta = sigmoid(beta) if beta_activation == "sigmoid" else beta
        state, rows = state.astype(np.float64), np.zeros(value.shape)
        for step in range(steps):
            if gated:
                state = state * decay[:, step, :, None, :]
            own = value[:, step]
            if corrected:
                own = beta[:, step] * (own - np.einsum("bhvk,bhk->bhv", state, key[:, step]))
            state = state + own[..., None] * key[:, step, :, None, :]
            rows[:, step] = np.einsum("bhvk,bhk->bhv", state, query[:, step]) * (scale or size**-0.5)
        return rows.reshape(shape).astype(dtype), state.astype(np.float32)

    return formula


def states():
    """GatedDeltaNet has no kernel for processors in ONNX Runtime 1.31."""
    tokens, heads, key_heads, keys, values = 10, 4, 2, 8, 6

    def case(name, packed=False, results=("Y", "final"), shape=(tokens,), dtype=np.float32, **more):
        unit = floats(*shape, key_heads, keys)
        unit /= np.sqrt((unit * unit).sum(-1, keepdims=True))
        inputs = {"query": floats(*shape, key_heads, keys), "key": unit, "value": floats(*shape, heads, values)}
        inputs = {name: value.astype(dtype) for name, value in inputs.items()}
        if packed:
            rows = [value.reshape(tokens, -1) for value in inputs.values()]
            inputs = {"query": np.concatenate(rows, 1)}
        given = {key: value for key, value in more.items() if isinstance(value, np.ndarray)}
        inputs |= {"state": floats(2, heads, values, keys)} | given
        operands = ["query", "key", "value", "", "decay", "beta", "state", "w_a_log", "w_dt_bias"]
        attributes = {key: value for key, value in more.items() if key not in given}
        weights = {name[2:]: value for name, value in inputs.items() if name.startswith("w_")}
        inputs = {name: value for name, value in inputs.items() if not name.startswith("w_")}
        operands = [name.removeprefix("w_") for name in operands]
        Formula(name, "GatedDeltaNet", operands, list(results), delta_net(**attributes), weights=weights, **attributes).add(**inputs)

    decay, beta = -abs(floats(tokens, heads)), abs(floats(tokens, heads))
    wide = floats(tokens, heads, keys)
    gate = {"w_a_log": floats(heads), "w_dt_bias": floats(heads)}
    case("delta_net", decay=decay, beta=beta)
    case("delta_net_linear", update_rule="linear", scale=0.5)
    case("delta_net_gated", update_rule="gated", decay=-abs(wide))
    case("delta_net_delta", update_rule="delta", beta=beta, beta_activation="sigmoid", qk_l2_norm=1)
    case("delta_net_packed", packed=True, decay=decay, beta=beta, qk_l2_norm=1)
    case("delta_net_softplus", decay=decay, beta=beta, gate_activation="softplus", **gate)
    case("delta_net_qwen", decay=wide, beta=beta, gate_activation="qwen", w_a_log=floats(heads), w_dt_bias=floats(heads * keys))
    case("delta_net_sigmoid", decay=wide, beta=beta, gate_activation="kda", gate_lower_bound=-3.0, **gate)
    half = {"decay": decay.astype(np.float16), "beta": beta.astype(np.float16)}
    case("delta_net_half", dtype=np.float16, qk_l2_norm=1, **half)
    batch = {"decay": decay.reshape(2, 5, heads), "beta": beta.reshape(2, 5, heads)}
    case("delta_net_batch", shape=(2, 5), **batch)
    for name, dtype in [("", np.float32), ("_half", np.float16)]:
        rows = {part: floats(2, 3, 2, 8, dtype=dtype) for part in ["key", "query"]} | {"value": floats(2, 3, 8, dtype=dtype)}
        scales = {f"w_{part}_scale": floats(2, 8, dtype=dtype) for part in ["key", "query", "conv"]}
        one(f"engram_gate{name}", "EngramGate", rows | scales, ["Y", "normed"])
    one("engram_gate_alone", "EngramGate", {**rows, **dict(list(scales.items())[:2])}, epsilon=0.1)


def embeddings():
    def case(name, segments=True, mask=None, dtype=np.uint8):
        codes = lambda *shape: random.integers(0, 256, shape).astype(np.uint8).view(dtype)
        tables = {"words": codes(5, 8), "places": codes(4, 8), "segments": codes(2, 8), "gamma": codes(8), "beta": codes(8)}
        inputs = {"ids": np.array([[1, 2, 3], [4, 0, 1]], np.int32), "": None}
        if segments:
            inputs = {"ids": inputs["ids"], "segment_ids": np.array([[0, 1, 0], [1, 0, 1]], np.int32)}
        inputs |= {f"w_{table}": value for table, value in tables.items()}
        inputs["mask"] = mask
        for number, table in enumerate(tables):
            inputs[f"w_{table}_scale"] = np.array(0.02 + 0.01 * number, np.float32)
        for number, table in enumerate(tables):
            inputs[f"w_{table}_zero_point"] = np.array(20 + 9 * number, dtype)
        operands = [operand.removeprefix("w_") for operand in inputs]
        given = {key: value for key, value in inputs.items() if value is not None}
        if not segments:
            given = {key: value for key, value in given.items() if not key.startswith("w_segments")}
        weights = {key[2:]: value for key, value in given.items() if key.startswith("w_")}
        given = {key: value for key, value in given.items() if not key.startswith("w_")}
        Case(name, "QEmbedLayerNormalization", operands, ["Y", "lengths"], weights=weights, epsilon=1e-3).add(**given)

    case("embed_codes")
    case("embed_codes_mask", mask=np.array([[1, 1, 0], [1, 0, 1]], np.int32), dtype=np.int8)
    case("embed_codes_words", segments=False)


def branches():
    hidden()
    gates()
    routers()
    slices()
    tokens()
    states()
    embeddings()


if __name__ == "__main__":
    branches()
