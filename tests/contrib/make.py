"""Writes the cases of tests/contrib.rs: operators that ONNX Runtime defines beside ONNX, with the outputs it computes.

    python3 -m venv venv && venv/bin/pip install onnx==1.23.2 onnxruntime==1.31.1 numpy
    venv/bin/python tests/contrib/make.py

A case is NAME.onnx, a model of one node, and NAME.data, a GraphProto whose initializers are `SET.in.INPUT` and
`SET.out.OUTPUT`. Sets of a model that decodes follow each other: `past_key` and `past_value` of all but the first are the
`present_key` and `present_value` of the one before, and are not stored again. What is drawn at random follows from the order of the
cases: those that are checked in were written one after the other, and need not be the same numbers.
"""

import numpy as np
from branches import branches
from caches import caches
from case import FOLDER, Case, floats, saturates
from classical import classical
from further import further
from fused import fused
from generation import generation
from group_query import GroupQuery, NormalizedGroupQuery
from options import options
from rare import rare
from removed import removed


def group_query():
    GroupQuery("gqa_growing").decode(steps=3)
    GroupQuery("gqa_separate", packed=False, batch=2).decode()
    GroupQuery("gqa_capacity", capacity=6, batch=2).decode(steps=2)
    GroupQuery("gqa_without_past", past=False, batch=2).step([5, 5], 5).step([5, 3], 5)
    GroupQuery("gqa_rotary", size=16, rotary=8).decode()
    GroupQuery("gqa_rotary_interleaved", size=16, rotary=8, rotary_interleaved=1).decode()
    GroupQuery("gqa_rotary_partial", size=32, rotary=8, packed=False).decode(prompt=3)
    # The prompt is padded on the right; then each of the batch goes on where it has ended.
    GroupQuery("gqa_ragged_growing", size=16, rotary=8, batch=2).step([4, 2], 4).step([5, 3], 1)
    GroupQuery("gqa_ragged_capacity", size=16, rotary=8, batch=2, capacity=6).step([4, 2], 4).step([5, 3], 1)
    GroupQuery("gqa_chunks_growing", size=16, rotary=8).step([2], 2).step([5], 3).step([6], 1)
    GroupQuery("gqa_chunks_capacity", size=16, rotary=8, capacity=6).step([2], 2).step([5], 3).step([6], 1)
    for window in [1, 3]:
        GroupQuery(f"gqa_window_{window}", local_window_size=window).decode()
    GroupQuery("gqa_window_ragged", local_window_size=2, batch=2, capacity=6).step([5, 2], 5).step([6, 3], 1)
    GroupQuery("gqa_scale", scale=-0.7).decode()
    GroupQuery("gqa_softcap", softcap=2.0).decode()
    GroupQuery("gqa_smooth", smooth_softmax=1).decode()
    sink = GroupQuery("gqa_sink", local_window_size=3, softcap=3.0)
    sink.weights["head_sink"] = floats(4)
    sink.decode()
    GroupQuery("gqa_both_sides", causal=0, batch=2, capacity=6).step([5, 3], 5).step([6, 4], 1)
    for name, shape in {"one": (1, 1), "batch": (2, 1), "heads": (1, 4), "all": (2, 4)}.items():
        case = GroupQuery(f"gqa_bias_{name}", batch=2, capacity=6, softcap=2.0 if name == "all" else 0.0)
        case.step([4, 2], 4, attention_bias=floats(*shape, 4, 4)).step([5, 3], 1, attention_bias=floats(*shape, 1, 5))
    hidden = floats(1, 1, 5, 5)
    hidden[:, :, 1:, :2] = -np.inf
    GroupQuery("gqa_bias_hidden").step([5], 5, attention_bias=hidden)
    positions = lambda *rows: {"position_ids": np.array(rows, np.int64)}
    case = GroupQuery("gqa_positions", size=16, rotary=8, batch=2)
    # Of a first prompt only the first position counts.
    case.step([4, 4], 4, **positions([3, 9, 1, 6], [1, 2, 0, 4])).step([5, 5], 1, **positions([9], [2]))
    GroupQuery("gqa_positions_chunk", size=16, rotary=8).step([2], 2, **positions([1, 2])).step([5], 3, **positions([9, 2, 4]))
    for epsilon in [None, 0.5]:
        attributes = {"qk_norm_epsilon": epsilon} if epsilon else {}
        case = NormalizedGroupQuery(f"gqa_norms{'_epsilon' if epsilon else ''}", packed=False, **attributes)
        case.epsilon = epsilon or 1e-6
        case.weights |= {"q_norm_weight": floats(8), "k_norm_weight": floats(8)}
        case.decode(prompt=2, steps=0)
    GroupQuery("gqa_half", size=16, rotary=8, dtype=np.float16, batch=2).step([5, 3], 5).step([6, 4], 1)
    case = GroupQuery("gqa_half_options", dtype=np.float16, softcap=2.0, local_window_size=3)
    case.weights["head_sink"] = floats(4, dtype=np.float16)
    case.step([5], 5, attention_bias=floats(1, 4, 5, 5, dtype=np.float16))


def rotary():
    operands, results = ["input", "position_ids", "cos_cache", "sin_cache"], ["output"]
    positions = np.array([[1, 2, 5], [0, 7, 2]])

    def case(name, shape, position_ids, columns=8, dtype=np.float32, **attributes):
        weights = {"cos_cache": floats(8, columns, dtype=dtype), "sin_cache": floats(8, columns, dtype=dtype)}
        made = Case(f"rotary_{name}", "RotaryEmbedding", operands, results, weights=weights, **attributes)
        made.add(input=floats(*shape, dtype=dtype), position_ids=position_ids)

    case("flat", (2, 3, 32), positions)
    case("flat_heads", (2, 3, 32), positions, num_heads=2, interleaved=1)
    case("flat_partial", (2, 3, 32), positions, columns=4, num_heads=2, rotary_embedding_dim=8)
    case("heads", (2, 2, 3, 16), positions)
    case("heads_partial", (2, 2, 3, 16), positions, columns=4, num_heads=2, rotary_embedding_dim=8, interleaved=1)
    case("offset", (2, 3, 32), np.array([4]))
    case("offset_heads", (2, 2, 3, 16), np.array([2]), interleaved=1)
    case("half", (2, 3, 32), positions, dtype=np.float16)


def normalization():
    simplified, layer = "SkipSimplifiedLayerNormalization", "SkipLayerNormalization"

    def case(name, operator, shape, skip, results, operands, dtype=np.float32, **attributes):
        weights = {operand: floats(shape[-1], dtype=dtype) for operand in operands if operand in ["gamma", "beta", "bias"]}
        made = Case(name, operator, operands, results, weights=weights, **attributes)
        made.add(input=floats(*shape, dtype=dtype), skip=floats(*skip, dtype=dtype))

    both = ["output", "", "", "sum"]
    whole = (2, 3, 24)
    case("skip_simplified", simplified, whole, whole, ["output"], ["input", "skip", "gamma"], epsilon=1e-6)
    case("skip_simplified_sum", simplified, whole, whole, both, ["input", "skip", "gamma", "bias"], epsilon=0.1)
    case("skip_simplified_flat", simplified, (5, 24), (5, 24), both, ["input", "skip", "gamma"])
    case("skip_simplified_half", simplified, whole, whole, both, ["input", "skip", "gamma"], dtype=np.float16)
    case("skip_layer", layer, whole, whole, ["output"], ["input", "skip", "gamma"], epsilon=1e-5)
    case("skip_layer_sum", layer, whole, whole, both, ["input", "skip", "gamma", "beta", "bias"], epsilon=0.1)
    case("skip_layer_rows", layer, whole, (3, 24), both, ["input", "skip", "gamma", "", "bias"])
    case("skip_layer_one", layer, whole, (1, 3, 24), both, ["input", "skip", "gamma", "beta"])
    case("skip_layer_half", layer, whole, whole, both, ["input", "skip", "gamma", "beta"], dtype=np.float16)

    def plain(name, types, **attributes):
        weights = {"scale": floats(*((3, 24) if attributes.get("axis") == 1 else (24,)), dtype=types[1])}
        made = Case(f"simplified{name}", "SimplifiedLayerNormalization", ["x", "scale"], ["y"], "", weights, **attributes)
        made.add(x=floats(2, 3, 24, dtype=types[0]))

    single, half, double = np.float32, np.float16, np.float64
    plain("", (single, single), epsilon=1e-6, axis=-1, stash_type=1)
    plain("_axis", (single, single), axis=1)
    plain("_half", (half, half))
    plain("_to_half", (single, half))
    plain("_from_half", (half, single))
    plain("_double", (double, double), epsilon=0.1)


if __name__ == "__main__":
    for old in [*FOLDER.glob("*.onnx"), *FOLDER.glob("*.data")]:
        old.unlink()
    group_query()
    rotary()
    normalization()
    fused()
    classical()
    further()
    caches()
    generation()
    branches()
    rare()
    removed()
    options()
    if saturates():
        print("Cases of codes are wrong: on this processor ONNX Runtime saturates sums of products of codes. Do not check them in.")
