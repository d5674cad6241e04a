"""Cases of searches for texts: loops around the graphs of a tiny language model, a decoder alone or one behind an encoder.

    venv/bin/python tests/contrib/generation.py

They draw from numbers of their own, so that they can be written alone."""

import numpy as np
import onnx
from case import FOLDER, MICROSOFT, run
from onnx import TensorProto, helper, numpy_helper

VOCABULARY, HEADS, SIZE, PLACES = 12, 2, 4, 16
WIDTH = HEADS * SIZE
INPUTS = {
    "GreedySearch": [
        "input_ids", "max_length", "min_length", "repetition_penalty", "vocab_mask", "prefix_vocab_mask",
        "attention_mask",
    ],
    "Sampling": [
        "input_ids", "max_length", "min_length", "repetition_penalty", "vocab_mask", "prefix_vocab_mask",
        "attention_mask", "presence_mask", "seed",
    ],
    "BeamSearch": [
        "input_ids", "max_length", "min_length", "num_beams", "num_return_sequences", "length_penalty",
        "repetition_penalty", "vocab_mask", "prefix_vocab_mask", "attention_mask", "decoder_input_ids",
        "logits_processor",
    ],
}  # fmt: skip
INPUTS["WhisperBeamSearch"] = [*INPUTS["BeamSearch"], "cross_qk_layer_head", "extra_decoding_ids", "temperature"]
port = helper.make_tensor_value_info
FLOAT, INT32 = TensorProto.FLOAT, TensorProto.INT32


def weights(seed, scale=1.0, **shapes):
    random = np.random.default_rng(seed)
    drawn = {name: random.standard_normal(shape).astype(np.float32) * scale for name, shape in shapes.items()}
    return [numpy_helper.from_array(value.astype(np.float32), name) for name, value in drawn.items()]


def decoder(seed=5):
    """One layer of attention that sees the past, its input added."""
    node = helper.make_node
    nodes = [
        node("Gather", ["tokens", "input_ids"], ["token"]),
        node("Gather", ["places", "position_ids"], ["place"]),
        node("Add", ["token", "place"], ["x"]),
        node(
            "Attention", ["x", "w", "b", "attention_mask", "past_0"], ["y", "present_0"], domain=MICROSOFT,
            num_heads=HEADS, unidirectional=1,
        ),
        node("Add", ["x", "y"], ["sum"]),
        node("MatMul", ["sum", "head"], ["logits"]),
    ]  # fmt: skip
    stored = weights(
        seed, tokens=(VOCABULARY, WIDTH), places=(PLACES, WIDTH), w=(WIDTH, 3 * WIDTH), b=(3 * WIDTH,), head=(WIDTH, VOCABULARY)
    )
    inputs = [port(name, INT32, ["rows", "steps"]) for name in ["input_ids", "position_ids"]]
    inputs += [port("attention_mask", INT32, ["rows", "total"]), port("past_0", FLOAT, [2, "rows", HEADS, "past", SIZE])]
    outputs = [port("logits", FLOAT, ["rows", "steps", VOCABULARY]), port("present_0", FLOAT, [2, "rows", HEADS, "total", SIZE])]
    return helper.make_graph(nodes, "decoder", inputs, outputs, stored)


def encoder(seed=14):
    """The keys and values that a decoder sees, of embedded tokens."""
    node = helper.make_node
    nodes = [node("Gather", ["source_tokens", "encoder_input_ids"], ["x"])]
    for name in ["key", "value"]:
        nodes += [
            node("MatMul", ["x", f"w_{name}"], [f"{name}_flat"]),
            node("Reshape", [f"{name}_flat", "heads"], [f"{name}_heads"]),
            node("Transpose", [f"{name}_heads"], [f"present_{name}_cross_0"], perm=[0, 2, 1, 3]),
        ]
    stored = weights(seed, source_tokens=(VOCABULARY, WIDTH), w_key=(WIDTH, WIDTH), w_value=(WIDTH, WIDTH))
    stored.append(numpy_helper.from_array(np.array([0, 0, HEADS, SIZE]), "heads"))
    inputs = [port(name, INT32, ["batch", "sources"]) for name in ["encoder_input_ids", "encoder_attention_mask"]]
    heads = ["batch", HEADS, "sources", SIZE]
    outputs = [port(f"present_{name}_cross_0", FLOAT, heads) for name in ["key", "value"]]
    return helper.make_graph(nodes, "encoder", inputs, outputs, stored)


def behind_encoder(seed=114, steps=1):
    """One layer of attention to what came before and one to the encoder's keys."""
    node = helper.make_node
    nodes = [node("Gather", ["tokens", "input_ids"], ["x"])]
    nodes += [node("MatMul", ["x", f"w_{name}"], [name]) for name in ["query", "key", "value"]]
    present = ["present_key_self_0", "present_value_self_0"]
    operands = ["query", "key", "value", "", "", "", "past_key_self_0", "past_value_self_0"]
    attention = dict(domain=MICROSOFT, num_heads=HEADS)
    nodes += [
        node("MultiHeadAttention", operands, ["own", *present], unidirectional=1, **attention),
        node("Add", ["x", "own"], ["first"]),
        node("MatMul", ["first", "w_cross"], ["cross_query"]),
        node(
            "MultiHeadAttention",
            ["cross_query", "past_key_cross_0", "past_value_cross_0", "", "encoder_attention_mask"],
            ["cross"],
            **attention,
        ),
        node("Add", ["first", "cross"], ["second"]),
        node("MatMul", ["second", "head"], ["logits"]),
    ]
    square = {f"w_{name}": (WIDTH, WIDTH) for name in ["query", "key", "value", "cross"]}
    stored = weights(seed, tokens=(VOCABULARY, WIDTH), head=(WIDTH, VOCABULARY), **square)
    inputs = [port("input_ids", INT32, ["rows", steps]), port("encoder_attention_mask", INT32, ["rows", "sources"])]
    for place, length in [("self", "past"), ("cross", "sources")]:
        inputs += [port(f"past_{name}_{place}_0", FLOAT, ["rows", HEADS, length, SIZE]) for name in ["key", "value"]]
    outputs = [port("logits", FLOAT, ["rows", steps, VOCABULARY])]
    outputs += [port(name, FLOAT, ["rows", HEADS, "total", SIZE]) for name in present]
    return helper.make_graph(nodes, "decoder", inputs, outputs, stored)


BANDS = 5


def speech_encoder(seed=14):
    """The keys and values that a decoder sees, of features `[batch, bands, frames]`; and the decoder's first tokens."""
    node = helper.make_node
    nodes = [
        node("Transpose", ["encoder_input_ids"], ["frames"], perm=[0, 2, 1]),
        node("MatMul", ["frames", "w_in"], ["encoder_hidden_states"]),
    ]
    for name in ["key", "value"]:
        nodes += [
            node("MatMul", ["encoder_hidden_states", f"w_cross_{name}"], [f"{name}_flat"]),
            node("Reshape", [f"{name}_flat", "heads"], [f"{name}_heads"]),
            node("Transpose", [f"{name}_heads"], [f"present_{name}_cross_0"], perm=[0, 2, 1, 3]),
        ]
    nodes += behind_speech([""] * 5, "decoder_input_ids", "present")
    stored = weights(seed, w_in=(BANDS, WIDTH), w_cross_key=(WIDTH, WIDTH), w_cross_value=(WIDTH, WIDTH))
    stored += [numpy_helper.from_array(np.array([0, 0, HEADS, SIZE]), "heads"), *speech_weights()]
    inputs = [port("encoder_input_ids", FLOAT, ["batch", BANDS, "frames"]), port("decoder_input_ids", INT32, ["batch", "initial"])]
    outputs = [port("logits", FLOAT, ["batch", "initial", VOCABULARY]), port("encoder_hidden_states", FLOAT, ["batch", "frames", WIDTH])]
    for place, length in [("self", "initial"), ("cross", "frames")]:
        outputs += [port(f"present_{name}_{place}_0", FLOAT, ["batch", HEADS, length, SIZE]) for name in ["key", "value"]]
    return helper.make_graph(nodes, "encoder", inputs, outputs, stored)


def behind_speech(past, tokens, cross):
    """One layer of attention to what came before and one to the keys of an encoder."""
    node = helper.make_node
    attention = dict(domain=MICROSOFT, num_heads=HEADS)
    return [
        node("Gather", ["tokens", tokens], ["x"]),
        *[node("MatMul", ["x", f"w_{name}"], [name]) for name in ["query", "key", "value"]],
        node(
            "MultiHeadAttention", ["query", "key", "value", *past], ["own", "present_key_self_0", "present_value_self_0"],
            unidirectional=1, **attention,
        ),
        node("Add", ["x", "own"], ["first"]),
        node("MatMul", ["first", "w_cross"], ["cross_query"]),
        node("MultiHeadAttention", ["cross_query", f"{cross}_key_cross_0", f"{cross}_value_cross_0"], ["cross"], **attention),
        node("Add", ["first", "cross"], ["second"]),
        node("MatMul", ["second", "head"], ["logits"]),
    ]  # fmt: skip


def speech_weights(seed=114):
    square = {f"w_{name}": (WIDTH, WIDTH) for name in ["query", "key", "value", "cross"]}
    return weights(seed, tokens=(VOCABULARY, WIDTH), head=(WIDTH, VOCABULARY), **square)


def speech_decoder(states=False):
    past = ["", "", "", "past_key_self_0", "past_value_self_0"]
    inputs = [port("input_ids", INT32, ["rows", 1])]
    inputs += [port("encoder_hidden_states", FLOAT, ["rows", "frames", WIDTH])] if states else []
    for place, length in [("self", "past"), ("cross", "frames")]:
        inputs += [port(f"past_{name}_{place}_0", FLOAT, ["rows", HEADS, length, SIZE]) for name in ["key", "value"]]
    outputs = [port("logits", FLOAT, ["rows", 1, VOCABULARY])]
    outputs += [port(f"present_{name}_self_0", FLOAT, ["rows", HEADS, "total", SIZE]) for name in ["key", "value"]]
    return helper.make_graph(behind_speech(past, "input_ids", "past"), "decoder", inputs, outputs, speech_weights())


def integers(*elements):
    return np.array(elements, np.int32)


def floats(*elements):
    return np.array(elements, np.float32)


PROMPTS = integers([3, 4, 5], [0, 6, 2])
TYPES = {"sequences": INT32, "sequences_scores": FLOAT, "scores": FLOAT}


def search(name, operator, outputs=("sequences",), open_ends=False, graphs=None, **more):
    """A case of one set. `open_ends`: behind the last text's end ONNX Runtime leaves what was in memory, here is padding."""
    attributes = {"eos_token_id": VOCABULARY - 1, "pad_token_id": 0, "model_type": 0}
    attributes |= {key: value for key, value in more.items() if not isinstance(value, np.ndarray)}
    given = {"input_ids": PROMPTS} | {key: value for key, value in more.items() if isinstance(value, np.ndarray)}
    operands = [operand if operand in given else "" for operand in INPUTS[operator]]
    while not operands[-1]:
        operands.pop()
    graphs = graphs or {"decoder": decoder()}
    node = helper.make_node(operator, operands, list(outputs), domain=MICROSOFT, **graphs, **attributes)
    typed = lambda key, value: port(key, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
    results = [port(output, TYPES[output], None) for output in outputs]
    # Numbers of what is searched for are usually stored, and masks given.
    fixed = [key for key in given if given[key].size == 1]
    stored = [numpy_helper.from_array(given[key], key) for key in fixed]
    inputs = {key: value for key, value in given.items() if key not in fixed}
    graph = helper.make_graph([node], name, [typed(*item) for item in inputs.items()], results, stored)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    expected = run(model, inputs, list(outputs))
    if open_ends:
        sequences, pad = expected["sequences"], attributes["pad_token_id"]
        ends = [row.tolist().index(pad, PROMPTS.shape[1]) for row in sequences]
        for row in sequences:
            row[max(ends) :] = pad
    for info in model.graph.output:
        info.CopyFrom(port(info.name, TYPES[info.name], expected[info.name].shape))
    onnx.save(model, FOLDER / f"{name}.onnx")
    tensors = [numpy_helper.from_array(value, f"0.in.{key}") for key, value in inputs.items()]
    tensors += [numpy_helper.from_array(value, f"0.out.{key}") for key, value in expected.items()]
    (FOLDER / f"{name}.data").write_bytes(helper.make_graph([], name, [], [], tensors).SerializeToString())


def greedy():
    def case(name, **more):
        search(f"greedy_{name}", "GreedySearch", **{"max_length": integers(12)} | more)

    case("plain")
    case("mask", attention_mask=integers([1, 0, 1], [1, 1, 1]))
    case("pad", pad_token_id=6, eos_token_id=7)
    case("ended", eos_token_id=9, open_ends=True)
    case("penalty", repetition_penalty=floats(1.5))
    case("runs", no_repeat_ngram_size=2)
    case("single_runs", no_repeat_ngram_size=1, open_ends=True)
    case("vocabulary", vocab_mask=integers(*[1, 0] * 6), vocab_size=VOCABULARY)
    case("first", prefix_vocab_mask=integers([0, 1] * 6, [1, 0] * 6))
    case("least", eos_token_id=8, min_length=integers(8), open_ends=True)
    case("two_graphs", graphs={"decoder": decoder(), "init_decoder": decoder(9)}, decoder_start_token_id=-1)
    case("all", repetition_penalty=floats(2.0), no_repeat_ngram_size=2, vocab_mask=integers(*[1, 1, 1, 0] * 3),
         prefix_vocab_mask=integers([0, 1] * 6, [1, 0] * 6), min_length=integers(9), eos_token_id=5, max_length=integers(9))  # fmt: skip


def sampling():
    def case(name, **more):
        search(f"sampling_{name}", "Sampling", **{"max_length": integers(12), "seed": integers(3), "eos_token_id": -1} | more)

    case("share", top_p=0.9)
    case("warm", top_p=0.7, temperature=5.0)
    case("least", top_p=0.3, temperature=5.0, min_tokens_to_keep=3, filter_value=-2.0)
    case("least_alone", min_tokens_to_keep=2, temperature=4.0)
    case("from_best", top_p=0.5, temperature=3.0, custom=1)
    case("ends", top_p=0.9, temperature=3.0, eos_token_id=7, repetition_penalty=floats(1.5), no_repeat_ngram_size=3)
    masks = {"vocab_mask": integers(*[1, 1, 1, 0] * 3), "prefix_vocab_mask": integers([0, 1] * 6, [1, 0] * 6)}
    masks |= {"attention_mask": integers([1, 0, 1], [0, 1, 1]), "min_length": integers(7)}
    # The token of padding is none that may be drawn.
    case("masks", top_p=0.9, temperature=4.0, eos_token_id=2, pad_token_id=11, open_ends=True, **masks)
    case("seed", top_p=0.95, temperature=6.0, seed=integers(2147483647))
    case("two_graphs", top_p=0.9, graphs={"decoder": decoder(), "init_decoder": decoder(9)}, vocab_size=VOCABULARY)
    # Without a penalty the mask of presence changes nothing.
    presence = {"presence_mask": integers([0, 1] * 6, [1, 0] * 6), "presence_penalty": 0.0}
    case("presence", top_p=0.9, decoder_start_token_id=-1, **presence)


def beams():
    scored = ("sequences", "sequences_scores")

    def case(name, outputs=scored, **more):
        numbers = {"max_length": integers(9), "min_length": integers(0), "num_beams": integers(3)}
        numbers |= {"num_return_sequences": integers(2), "length_penalty": floats(1.0)}
        search(f"beams_{name}", "BeamSearch", outputs, **numbers | more)

    case("plain", outputs=("sequences",))
    case("scores", outputs=(*scored, "scores"), num_return_sequences=integers(3))
    case("ends", eos_token_id=8, outputs=(*scored, "scores"))
    case("early", eos_token_id=9, early_stopping=1)
    case("short", eos_token_id=8, length_penalty=floats(0.5))
    case("long", eos_token_id=8, length_penalty=floats(3.0))
    case("one", num_beams=integers(1), num_return_sequences=integers(1))
    case("runs", no_repeat_ngram_size=2, repetition_penalty=floats(2.0), eos_token_id=7)
    case("masks", vocab_mask=integers(*[1, 1, 0] * 4), prefix_vocab_mask=integers([0, 1] * 6, [1, 0] * 6), eos_token_id=1)
    case("least", eos_token_id=8, min_length=integers(7), attention_mask=integers([1, 0, 1], [1, 1, 1]))
    case("two_graphs", outputs=(*scored, "scores"), graphs={"decoder": decoder(), "init_decoder": decoder(9)})
    both = {"encoder": encoder(), "decoder": behind_encoder()}

    def behind(name, graphs=both, **more):
        case(f"encoder_{name}", graphs=graphs, model_type=1, decoder_start_token_id=2, **more)

    behind("plain", outputs=(*scored, "scores"))
    # A graph that does not say that it reads one token is given all.
    behind("all", graphs={"encoder": encoder(), "decoder": behind_encoder(steps="steps")}, outputs=(*scored, "scores"))
    behind("ends", eos_token_id=10, no_repeat_ngram_size=3)
    behind("mask", attention_mask=integers([1, 0, 1], [1, 1, 0]), early_stopping=1, eos_token_id=1)
    behind("least", min_length=integers(6), eos_token_id=10, vocab_mask=integers(*[1, 1, 0] * 4))
    # What only Whisper reads.
    behind("inputs", decoder_input_ids=integers([3, 1], [1, 5]), logits_processor=integers(1), vocab_size=VOCABULARY)


def speech():
    numbers = {"max_length": integers(9), "min_length": integers(0), "num_beams": integers(3)}
    numbers |= {"num_return_sequences": integers(2), "length_penalty": floats(1.0)}
    features = np.random.default_rng(2).standard_normal((2, BANDS, 6)).astype(np.float32)

    def case(name, outputs=("sequences", "sequences_scores"), states=False, **more):
        graphs = {"encoder": speech_encoder(), "decoder": speech_decoder(states)}
        given = {"input_ids": features, "model_type": 2, "decoder_start_token_id": 2} | numbers
        given["decoder_input_ids"] = integers([2, 4], [2, 6])
        given = {key: value for key, value in (given | more).items() if value is not None}
        search(f"speech_{name}", "WhisperBeamSearch", outputs, graphs=graphs, **given)

    case("plain", outputs=("sequences", "sequences_scores", "scores"))
    case("states", states=True)
    case("start", decoder_input_ids=None, temperature=floats(3.0))
    case("ends", eos_token_id=5, no_repeat_ngram_size=2, length_penalty=floats(0.5))
    case("masks", vocab_mask=integers(*[1, 1, 0] * 4), repetition_penalty=floats(1.5), eos_token_id=8, early_stopping=1)
    case("one", num_beams=integers(1), num_return_sequences=integers(1), min_length=integers(6), logits_processor=integers(0))
    # Tokens that only a processor of scores reads.
    names = "translate transcribe start_of_lm no_speech no_timestamps beginning_timestamp".split()
    case("tokens", vocab_size=VOCABULARY, **{f"{name}_token_id": 3 + number for number, name in enumerate(names)})


def generation():
    greedy()
    sampling()
    beams()
    speech()


if __name__ == "__main__":
    generation()
