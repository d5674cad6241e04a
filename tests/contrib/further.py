"""Cases of operators that few exporters write: rotations by three positions, crops, hashes, blocked repetition, classifiers of
support vectors. They draw from numbers of their own, so that they can be written alone."""

import numpy as np
from case import Case, Formula, numbers, one

random, floats = numbers(2)


def rotations():
    def case(name, shape, sections, layout=0, columns=8, dtype=np.float32, **attributes):
        steps = shape[1] if len(shape) == 3 else shape[2]
        positions = random.integers(0, 12, (3, shape[0], steps))
        inputs = {"input": floats(*shape, dtype=dtype), "position_ids": positions}
        inputs |= {"w_cos": floats(12, columns, dtype=dtype), "w_sin": floats(12, columns, dtype=dtype)}
        one(f"mrotary_{name}", "MRotaryEmbedding", inputs, ["output"], mrope_section=sections, mrope_layout=layout, **attributes)

    case("sections", (2, 2, 3, 16), [4, 2, 2])
    case("flat", (2, 3, 32), [2, 3, 3], num_heads=2)
    case("interleaved_sections", (2, 2, 3, 16), [4, 2, 2], layout=1)
    case("interleaved", (1, 2, 3, 16), [3, 3, 2], layout=1, interleaved=1)
    case("partial", (1, 3, 64), [2, 1, 1], columns=4, num_heads=2, rotary_embedding_dim=8)
    case("half", (1, 2, 3, 16), [4, 2, 2], layout=1, dtype=np.float16)

    def gemma(emb, q, q_rot, k, k_rot):
        cos, sin = [f(emb).astype(np.float16)[:, None] for f in (np.cos, np.sin)]
        return q * cos + q_rot * sin, k * cos + k_rot * sin

    inputs = {"emb": floats(2, 3, 4)} | {name: floats(2, 2, 3, 4, dtype=np.float16) for name in ["q", "q_rot", "k", "k_rot"]}
    Formula("gemma_rotary", "GemmaRotaryEmbedding", list(inputs), ["q_embed", "k_embed"], gemma).add(**inputs)


def crops():
    for mode in ["bilinear", "nearest"]:
        regions = np.array([[0, 0, 1, 1], [0.2, 0.7, 0.9, 0.1], [-0.3, 0.5, 0.6, 1.4], [0.1, 0.1, 0.1, 0.1]], np.float32)
        inputs = {"X": floats(2, 3, 5, 7), "rois": regions, "batch_indices": np.array([0, 1, 1, 0], np.int32)}
        inputs["w_crop_size"] = np.array([3, 4], np.int32)
        one(f"crop_{mode}", "CropAndResize", inputs, mode=mode, extrapolation_value=0.5)
    inputs |= {"w_crop_size": np.array([1, 1], np.int32), "X": floats(2, 3, 5, 7)}
    one("crop_one", "CropAndResize", inputs)


def small():
    for name, shape, dtype in [("", (2, 3, 4, 4), np.float32), ("_one", (3, 3), np.float64), ("_half", (2, 2), np.float16)]:
        matrices = floats(*shape) + 3 * np.eye(shape[-1])
        one(f"inverse{name}", "Inverse", {"X": matrices.astype(dtype)})
    tokens = np.array([[1, 2, 3, 1, 2, 0, 1, 2], [4, 4, 4, 4, 4, 4, 4, 4], [0, 1, 2, 3, 4, 5, 0, 1]])
    for length in [1, 2, 3, 9]:
        inputs = {"input_ids": tokens, "scores": floats(3, 6)}
        one(f"ngram_{length}", "NGramRepeatBlock", inputs, ["scores_out"], ngram_size=length)
    texts = np.array(["", "a", "ab", "abc", "abcd", "längerer Text"], object)
    for name, values in {
        "text": texts, "i32": random.integers(-9, 9, 4).astype(np.int32), "i64": random.integers(-9, 9, 4),
        "u64": np.array([0, 1, 2**63 + 5], np.uint64), "f32": floats(4), "f64": floats(4).astype(np.float64),
    }.items():  # fmt: skip
        one(f"murmur_{name}", "MurmurHash3", {"X": values}, seed=42, positive=int(name != "i32"))


def support_vectors():
    def case(name, counts, x, probabilities=False, labels=None, **attributes):
        classes, vectors = len(counts), sum(counts)
        pairs = classes * (classes - 1) // 2
        attributes = {
            "kernel_type": "RBF", "kernel_params": [0.5, 0.25, 3.0], "vectors_per_class": counts,
            "support_vectors": floats(vectors, 3).ravel().tolist(), "rho": floats(pairs).tolist(),
            "coefficients": floats(classes - 1, vectors).ravel().tolist(), "classlabels_ints": list(range(5, 5 + classes)),
        } | attributes  # fmt: skip
        if labels:
            del attributes["classlabels_ints"]
            attributes["classlabels_strings"] = labels
        if probabilities:
            attributes |= {"prob_a": (-abs(floats(pairs))).tolist(), "prob_b": floats(pairs).tolist()}
        Case(f"svm_classes_{name}", "SVMClassifier", ["X"], ["label", "scores"], "ai.onnx.ml", **attributes).add(X=x)

    x = floats(20, 3)
    case("two", [3, 4], x)
    case("two_linear", [3, 4], x, kernel_type="LINEAR")
    case("two_probabilities", [3, 4], x, probabilities=True, labels=["no", "yes"])
    case("four", [3, 4, 2, 3], x, kernel_type="POLY")
    case("four_softmax", [3, 4, 2, 3], x, post_transform="SOFTMAX", labels=["a", "b", "c", "d"])
    case("four_probabilities", [3, 4, 2, 3], x, probabilities=True)
    case("three_sigmoid", [1, 4, 2], x, probabilities=True, kernel_type="SIGMOID", post_transform="LOGISTIC")
    case("three_integers", [1, 4, 2], random.integers(-2, 3, (20, 3)))


def caches():
    """Prompt of 4 tokens, then 2 one by one, over caches of codes."""
    for bits, kind in [(8, "PER_TENSOR"), (8, "PER_CHANNEL"), (4, "PER_TENSOR"), (4, "PER_CHANNEL")]:
        for capacity in [0, 8] if (bits, kind) == (8, "PER_CHANNEL") else [0]:
            shape = (1,) if kind == "PER_TENSOR" else (1, 2, 1, 8)
            scales = {name: ((0.5 + random.random(shape)) * 4 / 2 ** (bits - 1)).astype(np.float32) for name in ["k_scale", "v_scale"]}
            operands = ["query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length"]
            operands += ["", "", "", "", "", "k_scale", "v_scale"]
            dims = {"query": ["batch", "steps", 32], "output": ["batch", "steps", 32], "seqlens_k": ["batch"]}
            dims |= {name: ["batch", "steps", 16] for name in ["key", "value"]}
            dims |= {f"{time}_{name}": ["batch", 2, time, bits] for time in ["past", "present"] for name in ["key", "value"]}
            name = f"gqa_codes_{bits}_{kind[4:].lower()}" + ("_capacity" if capacity else "")
            made = Case(
                name, "GroupQueryAttention", operands, ["output", "present_key", "present_value"], weights=scales, dims=dims,
                num_heads=4, kv_num_heads=2, kv_cache_bit_width=bits, k_quant_type=kind, v_quant_type=kind,
            )  # fmt: skip
            cache = [np.zeros((2, 2, capacity, bits), np.int8 if bits == 8 else np.uint8)] * 2
            for total, steps in [(4, 4), (5, 1), (6, 1)]:
                inputs = {"query": floats(2, steps, 32), "key": floats(2, steps, 16), "value": floats(2, steps, 16)}
                inputs |= {"past_key": cache[0], "past_value": cache[1], "seqlens_k": np.full(2, total - 1, np.int32)}
                outputs = made.add(**inputs, total_sequence_length=np.array([total], np.int32))
                cache = [outputs["present_key"], outputs["present_value"]]


def further():
    caches()
    rotations()
    crops()
    small()
    support_vectors()


if __name__ == "__main__":
    further()
