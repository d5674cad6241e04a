"""Cases of what ONNX Runtime runs in the default domain though ONNX has it no more, or not yet in that version, and of what
follows each other without padding.

    venv/bin/python tests/contrib/removed.py

They draw from numbers of their own, so that they can be written alone."""

import numpy as np
from case import Case, Formula, numbers, one
from onnx import TensorProto, helper

random, floats = numbers(8)


def early():
    default = {"domain": ""}
    x = floats(2, 3, 8)
    inputs = {"x": x, "w_scale": floats(8), "w_bias": floats(8)}
    one("layer_norm_1", "LayerNormalization", inputs, version=1, **default)
    one("layer_norm_9_all", "LayerNormalization", inputs, ["Y", "mean", "inverse"], version=9, epsilon=0.1, stash_type=1, **default)
    one("layer_norm_11_axis", "LayerNormalization", {"x": x, "w_scale": floats(3, 8)}, axis=1, version=11, **default)
    half = {name: value.astype(np.float16) for name, value in inputs.items()}
    one("layer_norm_12_half", "LayerNormalization", half, version=12, **default)
    one("layer_norm_12_from_half", "LayerNormalization", inputs | {"x": half["x"]}, version=12, **default)
    double = {name: value.astype(np.float64) for name, value in inputs.items()}
    one("layer_norm_16_double", "LayerNormalization", double, ["Y", "mean", "inverse"], version=16, **default)
    image = {"X": floats(2, 3, 4, 5)}
    for name, more in {
        "": {}, "_across": {"across_channels": 1}, "_mean": {"normalize_variance": 0},
        "_across_mean": {"across_channels": 1, "normalize_variance": 0},
    }.items():  # fmt: skip
        one(f"mean_variance{name}", "MeanVarianceNormalization", image, version=6, **default, **more)
    one("mean_variance_flat", "MeanVarianceNormalization", {"X": floats(5, 3)}, version=1, **default)
    one("mean_variance_rows", "MeanVarianceNormalization", {"X": floats(5, 3, 4)}, version=8, **default)
    one("crop_border", "Crop", image, border=[1, 0, 2, 1], version=1, **default)
    one("crop_scale", "Crop", image, border=[1, 2, 0, 0], scale=[2, 3], version=9, **default)
    one("scale", "Scale", image, scale=-1.5, version=1, **default)
    one("scale_none", "Scale", image, version=1, **default)
    one("parametric_softplus", "ParametricSoftplus", {"X": 9 * floats(3, 4)}, alpha=2.0, beta=-0.5, version=1, **default)
    bounds = {"starts": np.array([0, -2]), "ends": np.array([1, 9]), "axes": np.array([0, -1])}
    one("dynamic_slice_axes", "DynamicSlice", image | bounds, dims={"Y": ["n", 3, 4, "w"]}, version=1, **default)
    bounds = {"w_starts": np.array([0, 1, 2], np.int32), "w_ends": np.array([9, -1, 3], np.int32)}
    one("dynamic_slice", "DynamicSlice", {"X": np.arange(24).reshape(2, 3, 4)} | bounds, version=1, **default)


def scans():
    port = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])
    steps = [helper.make_node("Add", ["s", "x"], ["t"]), helper.make_node("Mul", ["t", "z"], ["y"])]
    body = helper.make_graph(steps, "body", [port("s"), port("x"), port("z")], [port("t"), port("y")])
    inputs = {"lengths": np.array([2, 4, 1]), "start": floats(3, 2), "x": floats(3, 4, 2), "z": floats(3, 4, 2)}
    given = {"domain": "", "version": 8, "body": body, "num_scan_inputs": 2}
    one("scan_lengths", "Scan", inputs, ["last", "Y"], **given)
    one("scan_lengths_reverse", "Scan", inputs, ["last", "Y"], directions=[1, 0], **given)


def moves():
    x, pads = np.arange(12, dtype=np.float32).reshape(3, 4), np.array([1, 2, 0, 5])
    one("pad_wrap", "Pad", {"data": x, "pads": pads}, mode="wrap")
    one("pad_wrap_cut", "Pad", {"data": x, "pads": np.array([-1, 1, 4, -2])}, mode="wrap")
    x, weights = floats(1, 4, 3, 5), floats(4, 2, 3, 2)
    for mode in ["SAME_UPPER", "SAME_LOWER"]:
        for name, more in {"": {}, "_strides": {"strides": [2, 2]}, "_group": {"strides": [2, 1], "dilations": [1, 2], "group": 2}}.items():
            inputs = {"X": x, "w_W": weights, "pads": np.array([1, 0, 1, 1])}
            one(f"transpose_{mode.lower()}{name}", "ConvTransposeWithDynamicPads", inputs, auto_pad=mode, **more)

    def pool(name, shape, nan=False, **more):
        x, mask = floats(2, 3, *shape), (random.random((1, 1, *shape)) > 0.3).astype(np.int32)
        mask.flat[0] = 0
        if nan:
            x[0, 0, 1] = np.nan
        one(f"masked_pool_{name}", "MaxpoolWithMask", {"X": x, "mask": mask}, **more)

    pool("line", (9,), kernel_shape=[3], pads=[1, 1], strides=[2])
    pool("image", (6, 5), kernel_shape=[3, 2], pads=[1, 1, 1, 1], strides=[2, 1], storage_order=1)
    pool("volume", (4, 5, 4), kernel_shape=[2, 2, 2])
    pool("upper", (6, 7), kernel_shape=[3, 3], auto_pad="SAME_UPPER", strides=[2, 2], nan=True)
    pool("lower", (6, 7), kernel_shape=[3, 2], auto_pad="SAME_LOWER")
    pool("valid", (6, 7), kernel_shape=[3, 3], auto_pad="VALID")


def ignored():
    """Attributes and inputs that ONNX Runtime takes and that change nothing on a processor."""
    inputs = {"input": floats(2, 3, 32), "position_ids": np.array([[1, 2, 5], [0, 7, 2]])}
    inputs |= {"w_cos_cache": floats(8, 8), "w_sin_cache": floats(8, 8)}
    one("rotary_scale", "RotaryEmbedding", inputs, ["output"], scale=2.0)
    inputs = {"input": floats(1, 3, 64), "position_ids": random.integers(0, 12, (3, 1, 3))}
    inputs |= {"w_cos": floats(12, 4), "w_sin": floats(12, 4)}
    sections = {"mrope_section": [2, 1, 1], "num_heads": 2, "rotary_embedding_dim": 8}
    one("mrotary_scale", "MRotaryEmbedding", inputs, ["output"], scale=-1.5, **sections)
    given = {"input": floats(5, 8), "router_probs": floats(5, 4)}
    weights = {"fc1": floats(4, 6, 8), "fc2": floats(4, 8, 6)}
    operands = ["input", "router_probs", "fc1", "", "fc2"]
    mixed = Case("moe_sparse_mixer", "MoE", operands, ["output"], weights=weights, k=2, use_sparse_mixer=1, activation_type="silu")
    mixed.add(**given)
    operands = ["input", "weights", "bias", "", "past", "", "past_sequence_length"]
    weights = {"weights": floats(6, 24), "bias": floats(24)}
    past = Case("attention_past_length", "Attention", operands, ["output", "present"], weights=weights, num_heads=2)
    past.add(input=floats(2, 3, 6), past=floats(2, 2, 2, 2, 4), past_sequence_length=np.array([1], np.int32))


def packed():
    def remove(x, counts):
        kept = np.arange(x.shape[1]) < counts[:, None]
        places = np.concatenate([np.flatnonzero(kept), np.flatnonzero(~kept)]).astype(np.int32)
        sums = np.concatenate([[0], counts.cumsum()]).astype(np.int32)
        return x[kept], places.reshape(kept.shape), sums, np.array([counts.max()], np.int32)

    def restore(tokens, places):
        padded = np.zeros((places.size, tokens.shape[1]), tokens.dtype)
        padded[places.ravel()[: len(tokens)]] = tokens
        return padded.reshape(*places.shape, -1)

    def attention(heads, scale=None, sizes=None):
        def formula(tokens, weights, bias, places, sums, extra=None):
            product = tokens.astype(np.float64) @ weights + bias
            ends = np.cumsum(sizes)[:2] if sizes else 3
            parts = [part.reshape(len(tokens), heads, -1) for part in np.split(product, ends, axis=1)]
            rows = []
            for text, (begin, end) in enumerate(zip(sums[:-1], sums[1:])):
                query, key, value = [part[begin:end].transpose(1, 0, 2) for part in parts]
                scores = query @ key.transpose(0, 2, 1) * (scale or query.shape[-1] ** -0.5)
                if extra is not None:
                    own = extra[min(text, len(extra) - 1)]
                    scores = scores + own[:, : end - begin, : end - begin]
                scores = np.exp(scores - scores.max(-1, keepdims=True))
                scores /= scores.sum(-1, keepdims=True)
                rows.append((scores @ value).transpose(1, 0, 2).reshape(end - begin, -1))
            return np.concatenate(rows).astype(tokens.dtype)

        return formula

    counts = np.array([1, 2, 4], np.int32)
    for name, dtype in {"": np.float32, "_half": np.float16}.items():
        x = floats(3, 4, 6, dtype=dtype)
        tokens, places, sums, longest = remove(x, counts)
        results = ["tokens", "offsets", "sums", "longest"]
        dims = {"X": ["batch", "steps", 6], "counts": ["batch"], "tokens": ["t", 6], "offsets": ["batch", "steps"], "sums": ["ends"]}
        Formula(f"padding_removed{name}", "RemovePadding", ["X", "counts"], results, remove, dims=dims).add(X=x, counts=counts)
        Formula(f"padding_restored{name}", "RestorePadding", ["X", "offsets"], ["Y"], restore).add(X=tokens, offsets=places)
        operands = ["X", "weights", "bias", "offsets", "sums", "extra"]

        def case(title, extra=None, sizes=None, width=24, **more):
            formula = attention(2, more.get("scale"), sizes)
            attributes = more | ({"qkv_hidden_sizes": sizes} if sizes else {})
            weights = {"weights": floats(6, width, dtype=dtype), "bias": floats(width, dtype=dtype)}
            given = {"X": tokens, "offsets": places, "sums": sums} | ({} if extra is None else {"extra": extra.astype(dtype)})
            dims = {"X": ["t", 6], "offsets": ["batch", "steps"], "sums": ["ends"], "Y": ["t", None]}
            made = Formula(f"packed_attention{title}{name}", "PackedAttention", operands, ["Y"], formula, weights=weights, dims=dims, num_heads=2, **attributes)
            made.add(**given)

        case("")
        case("_sizes", sizes=[8, 8, 12], width=28, scale=0.5)
        case("_bias", extra=floats(3, 2, 4, 4))
        case("_bias_shared", extra=floats(1, 1, 4, 4))


def removed():
    early()
    scans()
    moves()
    ignored()
    packed()


if __name__ == "__main__":
    removed()
