"""Cases of operators that hardly any exporter writes, but that ONNX Runtime runs: all options of DynamicQuantizeLSTM, runs of tokens,
warped times, computed pads.

    venv/bin/python tests/contrib/rare.py

They draw from numbers of their own, so that they can be written alone."""

import numpy as np
import onnxruntime as ort
from case import Case, numbers, one
from onnx import AttributeProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

random, floats = numbers(7)


class OneThread(ort.SessionOptions):
    """With several threads ONNX Runtime quantizes the hidden state of each part of a batch alone."""

    def __init__(self):
        super().__init__()
        self.intra_op_num_threads = 1


# Functions of gates without their parameters: what ONNX Runtime takes is 0 where it has nothing.
WITHOUT_PARAMETERS = {
    "usual": ["HardSigmoid", "Elu", "LeakyRelu"],
    "threshold": ["Sigmoid", "ThresholdedRelu", "Tanh"],
    "line": ["Sigmoid", "Tanh", "Affine"],
    "bent": ["Sigmoid", "ScaledTanh", "Tanh"],
}


class EmptyLists(Case):
    """With lists of parameters and of functions that are there, and empty."""

    def model(self, inputs):
        model = super().model(inputs)
        node = model.graph.node[0]
        for name in ["activation_alpha", "activation_beta"]:
            node.attribute.append(helper.make_attribute(name, [], attr_type=AttributeProto.FLOATS))
        if "activations" not in self.attributes:
            node.attribute.append(helper.make_attribute("activations", [], attr_type=AttributeProto.STRINGS))
        return model


def recurrent():
    steps, batch, width, hidden = 4, 3, 5, 3

    def lstm(name, inputs=(), directions=1, kind=np.int8, **attributes):
        least, most = np.iinfo(kind).min, np.iinfo(kind).max
        codes = lambda *shape: random.integers(least, most + 1, (directions, *shape)).astype(kind)
        weights = {"W": codes(width, 4 * hidden), "R": codes(hidden, 4 * hidden), "B": floats(directions, 8 * hidden)}
        for part in "WR":
            weights[f"{part}_scale"] = np.full(directions, 0.02, np.float32)
            weights[f"{part}_zero_point"] = np.full(directions, (least + most + 7) // 2, kind)
        given = {"X": floats(steps, batch, width)}
        if "P" in inputs:
            weights["P"] = floats(directions, 3 * hidden)
        if "lengths" in inputs:
            given["sequence_lens"] = np.array([2, 4, 1], np.int32)
        if "initial" in inputs:
            given |= {f"initial_{state}": floats(directions, batch, hidden) for state in "hc"}
        names = ["X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"]
        names += ["W_scale", "W_zero_point", "R_scale", "R_zero_point"]
        results = ["Y", "Y_h", "Y_c"]
        kind_of_case = EmptyLists if name.startswith("empty") else Case
        made = kind_of_case(f"dynamic_lstm_{name}", "DynamicQuantizeLSTM", names, results, weights=weights, hidden_size=hidden, **attributes)
        made.add(**given)

    lstm("clip", clip=0.3)
    lstm("coupled", input_forget=1)
    lstm("peepholes", ["P", "initial"])
    lstm("lengths", ["lengths", "initial"])
    lstm("lengths_reverse", ["lengths", "P"], direction="reverse", kind=np.uint8)
    both = ["Sigmoid", "Tanh", "Tanh", "HardSigmoid", "Softsign", "Affine"]
    parameters = {"activation_alpha": [0.3, 0.5], "activation_beta": [0.4, 0.1]}
    lstm("functions", ["lengths", "P", "initial"], 2, direction="bidirectional", activations=both, clip=2.0, **parameters)
    lstm("functions_more", activations=["LeakyRelu", "Elu", "Relu"], activation_alpha=[0.2, 0.7])
    for name, functions in WITHOUT_PARAMETERS.items():
        lstm(f"without_{name}", activations=functions, kind=np.uint8)
    lstm("empty", activations=WITHOUT_PARAMETERS["usual"], kind=np.uint8)
    lstm("empty_functions", kind=np.uint8)


def attentive():
    steps, batch, width, hidden, depth, places, keys = 4, 2, 5, 3, 4, 6, 3
    names = ["X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P", "QW", "MW", "V", "M", "memory_seq_lens", "AW"]

    def lstm(name, inputs=(), directions=1, layer=0, **attributes):
        weights = {"W": floats(directions, 4 * hidden, width + (layer or depth)), "R": floats(directions, 4 * hidden, hidden)}
        weights |= {"QW": floats(directions, hidden, keys), "MW": floats(directions, depth, keys), "V": floats(directions, keys)}
        if layer:
            weights["AW"] = floats(directions, depth + hidden, layer)
        given = {"X": floats(steps, batch, width), "M": floats(batch, places, depth)}
        possible = {"B": (8 * hidden,), "P": (3 * hidden,)}
        weights |= {key: floats(directions, *possible[key]) for key in inputs if key in possible}
        if "initial" in inputs:
            given |= {f"initial_{state}": floats(directions, batch, hidden) for state in "hc"}
        if "lengths" in inputs:
            given["sequence_lens"] = np.array([2, 4], np.int32)
        if "memory" in inputs:
            given["memory_seq_lens"] = np.array([6, 3], np.int32)
        results = ["Y", "Y_h", "Y_c"]
        kind_of_case = EmptyLists if name.startswith("empty") else Case
        made = kind_of_case(f"attentive_{name}", "AttnLSTM", names, results, weights=weights, hidden_size=hidden, **attributes)
        made.add(**given)

    lstm("plain", ["B"])
    lstm("memory", ["B", "P", "memory", "initial"], clip=1.5)
    lstm("layer", ["memory"], layer=5, input_forget=1)
    lstm("reverse", ["B", "lengths", "memory"], direction="reverse", activations=["Sigmoid", "Softsign", "Relu"])
    lstm("both", ["B", "lengths", "initial"], 2, layer=4, direction="bidirectional")
    for name, functions in WITHOUT_PARAMETERS.items():
        lstm(f"without_{name}", ["B"], activations=functions)
    lstm("empty", ["B"], activations=WITHOUT_PARAMETERS["usual"])
    lstm("empty_functions", ["B"])


def hashes():
    attributes = {"max_ngram_size": 3, "n_head_per_ngram": 2, "pad_id": 4}
    sizes = np.array([11, 13, 7, 5])
    small, large = np.array([3, -5, 7]), np.array([2**62 + 1, 2**61 + 3, -(2**63) + 5])
    names = ["input_ids", "multipliers", "vocab_sizes", "past_ids", "head_offsets", "eos_token_id", "segment_ids"]

    def rows(name, factors=small, dtype=np.int64, reset=0, **more):
        given = {"input_ids": random.integers(0, 6, (2, 6)), **more} | {"multipliers": factors, "vocab_sizes": sizes}
        given = {key: value if key == "segment_ids" else value.astype(dtype) for key, value in given.items()}
        weights = {key: given.pop(key) for key in ["multipliers", "vocab_sizes"]}
        results = ["hash_ids", "present_ids"]
        Case(f"ngram_hash_{name}", "NGramHashMapping", names, results, weights=weights, reset_on_eos=reset, **attributes).add(**given)

    past, segments = np.array([[2, 1], [3, 2]]), np.array([[0, 0, 1, 1, 1, 2], [0, 1, 2, 2, 2, 2]], np.int32)
    rows("plain")
    rows("wrapped", large, past_ids=past)
    rows("i32", np.array([2**30 + 1, 7, -(2**31) + 3]), np.int32, head_offsets=np.array([0, 11, 24, 31]))
    rows("ends", reset=1, eos_token_id=np.array(2), past_ids=past)
    rows("end_alone", eos_token_id=np.array(2))
    rows("segments", segment_ids=segments, past_ids=past)
    rows("all", reset=1, eos_token_id=np.array(2), segment_ids=segments, head_offsets=np.array([0, 11, 24, 31]))

    names = ["input_ids", "multipliers", "vocab_sizes", "cumulative_sequence_length", "past_ids", "head_offsets"]
    names += ["eos_token_id", "segment_ids", "past_segment_ids", "capture_count"]

    def packed(name, reset=0, capacity=0, **more):
        weights = {"multipliers": small, "vocab_sizes": sizes}
        given = {"input_ids": np.array([1, 2, 3, 4, 5, 1, 2, 5]), "cumulative_sequence_length": np.array([0, 3, 4, 8], np.int32)}
        results = ["hash_ids", "present_ids"]
        results += ["present_segment_ids" if "segment_ids" in more else ""] if capacity or "segment_ids" in more else []
        results += ["state_update"] if capacity else []
        options = {"reset_on_eos": reset, "state_update_capacity": capacity} | attributes
        Case(f"ngram_packed_{name}", "VarlenNGramHashMapping", names, results, weights=weights, **options).add(**given, **more)

    past = np.array([[1, 1], [2, 2], [3, 3]])
    segments, before = np.array([0, 0, 1, 4, 4, 4, 4, 5], np.int32), np.array([[0, 0], [1, 2], [2, 4]], np.int32)
    packed("plain")
    packed("past", past_ids=past, head_offsets=np.array([0, 11, 24, 31]))
    packed("ends", reset=1, eos_token_id=np.array(2), past_ids=past)
    packed("segments", segment_ids=segments)
    packed("segments_past", segment_ids=segments, past_ids=past, past_segment_ids=before)
    packed("captures", capacity=3, capture_count=np.array([2, 1, 5], np.int32))
    packed("captures_past", capacity=2, capture_count=np.array([2, 0, 5], np.int32), past_ids=past, segment_ids=segments)


def guesses():
    names, results = ["src_tokens", "cur_tokens", "prev_suffix_match_idx", "pred_tokens"], ["tokens", "suffix_match_idx"]

    def detect(name, source, text, at, guess=None, **attributes):
        given = dict(zip(names, [np.array(source), np.array(text), np.array(at)]))
        if guess is not None:
            given["pred_tokens"] = np.array(guess)
        dims = {key: [f"{key}_count"] for key in ["src_tokens", "cur_tokens", "pred_tokens", "tokens"]}
        Case(f"guess_{name}", "BifurcationDetector", names, results, dims=dims, **attributes).add(**given)

    detect("differs", [1, 2, 3, 4, 5, 6], [0], 0, [1, 2, 3, 9, 5, 6, 7])
    detect("agrees", [1, 2, 3, 4], [0, 1], 1, [2, 3, 4, 8])
    detect("alone", [1, 2, 3, 2, 3, 4], [7, 2, 3], 0)
    detect("longer", [1, 2, 3, 9, 2, 3, 4], [1, 2, 3], 2)
    detect("never", [1, 2, 3], [5], 3, [3])
    detect("at_end", [2, 1, 3, 1], [9, 3, 1], 0, min_ngram_size=1, max_ngram_size=2)
    detect("short", [1, 2], [2], 0, min_ngram_size=2, max_ngram_size=4)
    detect("several", [1, 1, 1, 1], [1, 1, 1], 0, max_ngram_size=2)


def others():
    one("warped", "DynamicTimeWarping", {"input": abs(floats(5, 9))}, ["output"])
    # Of equal ways one is taken.
    one("warped_equal", "DynamicTimeWarping", {"input": random.integers(0, 2, (1, 8, 6)).astype(np.float32)}, ["output"])
    one("warped_flat", "DynamicTimeWarping", {"input": np.zeros((7, 2), np.float32)}, ["output"])
    pads = {"Pads": np.array([1, 0, 2, 1])}
    x, weights = floats(2, 4, 3, 4), floats(4, 2, 3, 2)
    inputs = {"X": x, "w_W": weights} | pads
    one("transpose_pads", "ConvTransposeWithDynamicPads", inputs, strides=[2, 1], output_padding=[1, 0], group=2)
    one("transpose_pads_bias", "ConvTransposeWithDynamicPads", inputs | {"w_B": floats(2)}, dilations=[1, 2])
    one("sample", "SampleOp", {"X": floats(2, 3)})
    for corners in [0, 1]:
        inputs = {"X": floats(1, 2, 4, 6), "Grid": floats(1, 3, 5, 2) * 1.5}
        one(f"grid_bicubic_border_{corners}", "GridSample", inputs, mode="bicubic", padding_mode="border", align_corners=corners)
    inputs = {"input": floats(1, 2, 6, 8), "position_ids": np.array([[0, 1, 2, 0, 1, 0]])}
    inputs |= {"w_cos_cache": floats(4, 4), "w_sin_cache": floats(4, 4)}
    one("rotary_packed", "RotaryEmbedding", inputs, ["output"], is_packed_batching=1)
    inputs = {"X": floats(2, 3, 8), "w_scale": floats(8)}
    one("simplified_inverse", "SimplifiedLayerNormalization", inputs, ["Y", "inv_std_var"], domain="", axis=-1, epsilon=1e-5)
    inputs = {"input": floats(2, 3, 8), "skip": floats(2, 3, 8), "w_gamma": floats(8)}
    results = ["output", "mean", "inv_std_var", "sum"]
    one("skip_simplified_statistics", "SkipSimplifiedLayerNormalization", inputs, results, epsilon=1e-5)


class Blocks(Case):
    """A product with blocks of 4 bits, which ONNX Runtime has on some processors only: a formula where it refuses it."""

    def compute(self, model, inputs):
        try:
            return super().compute(model, inputs)
        except Fail:
            kind, (rows, columns) = self.attributes["blk_quant_type"], self.weights["B_shape"]
            head = 4 + kind
            stored = self.weights["B"].reshape(columns, -1, head + 16)
            scales = stored[..., :4].copy().view(np.float32)
            points = stored[..., 4:5].astype(np.float32) if kind else np.float32(8)
            codes = np.concatenate([stored[..., head:] & 15, stored[..., head:] >> 4], -1)
            weights = ((codes - points) * scales).reshape(columns, -1)[:, :rows]
            return {"Y": inputs["A"] @ weights.T}


def blocks():
    inputs, outputs = 70, 3
    for kind in [0, 1]:
        blob = b""
        for _ in range(outputs * ((inputs + 31) // 32)):
            blob += random.random(1).astype(np.float32).tobytes()
            blob += bytes(random.integers(0, 16, kind).tolist()) + bytes(random.integers(0, 256, 16).tolist())
        weights = {"B": np.frombuffer(blob, np.uint8), "B_shape": np.array([inputs, outputs])}
        made = Blocks(f"matmul_blocks_{kind}", "MatMulFpQ4", ["A", *weights], ["Y"], weights=weights, blk_quant_type=kind)
        made.add(A=floats(2, inputs))


def regions():
    rois = np.array([[0, 0, 0, 8, 8], [1, 2, 2, 10, 6], [0, 3, 1, 3, 1]], np.float32)
    made = Case("max_roi_pool", "MaxRoiPool", ["X", "rois"], ["Y"], "", pooled_shape=[2, 3], spatial_scale=0.5)
    made.add(X=floats(2, 2, 6, 7), rois=rois)


def rare():
    blocks()
    ort.SessionOptions, before = OneThread, ort.SessionOptions
    recurrent()
    attentive()
    hashes()
    guesses()
    others()
    regions()
    ort.SessionOptions = before


if __name__ == "__main__":
    rare()
