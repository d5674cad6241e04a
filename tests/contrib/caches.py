"""Cases of caches that hold the last tokens only, of padded chunks, of buffers that past and present share, and of scores as an
output.

    venv/bin/python tests/contrib/caches.py

They draw from numbers of their own, so that they can be written alone."""

import numpy as np
import onnxruntime as ort
from case import Case, floats, random
from group_query import GroupQuery


def clear_scores(outputs, inputs):
    """Scores behind the end of a text are whatever was in memory."""
    for row, length in enumerate(inputs["seqlens_k"]):
        if "output_qk" in outputs:
            outputs["output_qk"][row, :, :, int(length) + 1 :] = 0


class Scores(GroupQuery):
    def compute(self, model, inputs):
        outputs = super().compute(model, inputs)
        clear_scores(outputs, inputs)
        return outputs


class Chunks(GroupQuery):
    """What ONNX Runtime leaves open is zero: rows of the cache behind those that stay, and results of queries that are padding."""

    def resident(self, tokens):
        if not self.attributes.get("sliding_window_cache"):
            return tokens
        group = self.capacity - self.attributes["local_window_size"] + 1
        return tokens - group * -(-max(tokens - self.capacity, 0) // group)

    def compute(self, model, inputs):
        outputs = self.by_rows(inputs) if "query_seqlens" in inputs else super().compute(model, inputs)
        for row, length in enumerate(inputs["seqlens_k"]):
            for name in ["present_key", "present_value"]:
                outputs[name][row, :, self.resident(int(length) + 1) :] = 0
        clear_scores(outputs, inputs)
        return outputs

    def by_rows(self, inputs):
        """ONNX Runtime 1.31 has no `query_seqlens`: each of the batch is run alone, with the queries that it has."""
        steps, total = inputs["query"].shape[1], int(inputs["total_sequence_length"][0])
        sliding = self.attributes.get("sliding_window_cache")
        outputs = {"output": np.zeros((self.batch, steps, 4 * self.size), self.dtype)}
        for kind in ["key", "value"]:
            past = inputs[f"past_{kind}"]
            rows = past.shape[2] if sliding else max(past.shape[2], total)
            outputs[f"present_{kind}"] = np.pad(past, [(0, 0), (0, 0), (0, rows - past.shape[2]), (0, 0)])
        if self.attributes.get("qk_output"):
            outputs["output_qk"] = np.zeros((self.batch, 4, steps, total), self.dtype)
        for row, count in enumerate(inputs["query_seqlens"]):
            if count == 0:
                continue
            one = slice(row, row + 1)
            own = {"query": inputs["query"][one, :count], "seqlens_k": inputs["seqlens_k"][one]}
            own["total_sequence_length"] = inputs["total_sequence_length"]
            own |= {f"past_{kind}": outputs[f"present_{kind}"][one] for kind in ["key", "value"]}
            if "position_ids" in inputs:
                own["position_ids"] = inputs["position_ids"][one, :count]
            if "attention_bias" in inputs:
                own["attention_bias"] = inputs["attention_bias"][:, :, :count]
            alone = super().compute(self.model(own), own)
            outputs["output"][row, :count] = alone["output"]
            for name in ["present_key", "present_value"]:
                outputs[name][one] = alone[name]
            if "output_qk" in alone:
                outputs["output_qk"][row, :, :count] = alone["output_qk"]
        return outputs


def bias(length, steps):
    return {"attention_bias": floats(1, 4, steps, length)}


def counts(*lengths):
    return {"query_seqlens": np.array(lengths, np.int32)}


def scores():
    for stage in [1, 2]:
        make = lambda name, **more: GroupQuery(f"gqa_scores_{stage}_{name}", qk_output=stage, **more)
        make("growing").decode()
        make("window", local_window_size=2, softcap=2.0).step([4], 4, **bias(4, 4)).step([5], 1, **bias(5, 1))
        ragged = Scores(f"gqa_scores_{stage}_ragged", qk_output=stage, batch=2, capacity=6)
        ragged.step([4, 2], 4).step([5, 3], 1)
        make("both_sides", causal=0, batch=2, capacity=6).step([5, 3], 5)
        make("smooth", smooth_softmax=1, dtype=np.float16).decode()


def chunks():
    case = Chunks("gqa_chunk_growing", size=16, rotary=8, batch=2, capacity=4, qk_output=1)
    case.step([3, 1], 4, total=4, **counts(3, 1)).step([5, 3], 4, total=7, **counts(2, 2))
    case = Chunks("gqa_chunk_buffer", batch=2, capacity=9, local_window_size=3)
    case.step([3, 1], 4, total=4, **counts(3, 1)).step([5, 1], 4, total=9, **counts(2, 0)).step([5, 2], 1, total=6, **counts(0, 1))
    case = Chunks("gqa_chunk_positions", size=16, rotary=8, batch=2, capacity=8)
    case.step([3, 1], 4, total=4, position_ids=np.array([[9, 4, 7, 1], [2, 3, 5, 8]]), **counts(3, 1))
    case = Chunks("gqa_chunk_bias", batch=2, capacity=8, softcap=2.0)
    case.step([3, 1], 4, total=6, attention_bias=floats(1, 4, 4, 6), **counts(3, 1))


def windows():
    make = lambda name, window, **more: Chunks(
        f"gqa_sliding_{name}", sliding_window_cache=1, local_window_size=window, **more
    )
    tight = make("tight", 4, capacity=4, size=16, rotary=8)
    tight.step([3], 3)
    for length in range(4, 7):
        tight.step([length], 1)
    slack = make("slack", 3, capacity=5, batch=2)
    slack.step([4, 4], 4)
    for length in range(5, 9):
        slack.step([length, length - 1], 1)
    make("long", 3, capacity=4).step([9], 9).step([12], 3).step([13], 1)
    make("bias", 3, capacity=4, batch=2).step([6, 6], 6, **bias(6, 6)).step([7, 5], 1, **bias(7, 1))
    chunk = make("chunk", 3, capacity=4, batch=2, size=16, rotary=8)
    chunk.step([3, 1], 4, **counts(3, 1)).step([7, 3], 4, total=8, **counts(4, 2)).step([8, 3], 1, total=9, **counts(1, 0))
    sink = make("sink", 2, capacity=3, dtype=np.float16)
    sink.weights["head_sink"] = floats(4, dtype=np.float16)
    sink.step([4], 4).step([5], 1)


MULTI_HEAD = [
    "query", "key", "value", "bias", "key_padding_mask", "attention_bias", "past_key", "past_value",
    "past_sequence_length", "cache_indirection",
]  # fmt: skip
DECODER = [
    "query", "key", "value", "mask_index", "attention_bias", "past_key", "past_value", "past_sequence_length",
    "beam_width", "cache_indirection", "bias",
]  # fmt: skip
PRESENT = ["output", "present_key", "present_value"]


def integers(*elements):
    return np.array(elements, np.int32)


def shared(steps=1, batch=2, length=3):
    """4 heads of 8, and 6 rows in the buffer; what is past is given."""
    inputs = {name: floats(batch, steps, 32) for name in ["query", "key", "value"]}
    inputs |= {name: floats(batch, 4, 6, 8) for name in ["past_key", "past_value"]}
    return inputs | {"past_sequence_length": integers(length)}


def buffers():
    def case(name, inputs, operator="MultiHeadAttention", scores=False, **attributes):
        operands = MULTI_HEAD if operator == "MultiHeadAttention" else DECODER
        results = [*PRESENT, "qk"] if scores else PRESENT
        dims = {"past_sequence_length": [1]}
        Case(name, operator, operands, results, dims=dims, num_heads=4, **attributes).add(**inputs)

    sources = random.integers(0, 2, (2, 2, 6)).astype(np.int32)
    mask = integers(*[[1, 1, 0, 1], [1, 0, 1, 1]])
    case("mha_buffer", shared(), scores=True)
    case("mha_buffer_steps", shared(2) | {"key_padding_mask": integers(4, 5)}, unidirectional=1, scale=0.5)
    case("mha_buffer_mask", shared() | {"key_padding_mask": mask, "attention_bias": floats(1, 4, 1, 4)})
    case("mha_buffer_beams", shared(batch=4) | {"cache_indirection": sources}, scores=True)
    plain = {name: floats(2, 3, 32) for name in ["query", "key", "value"]}
    case("mha_mask_sums", plain | {"key_padding_mask": integers(2, 3, 0, 3, 6, 0, 2, 5)})
    case("mha_causal_scores", plain | {"key_padding_mask": integers([1, 1, 0], [1, 1, 1])}, scores=True, unidirectional=1)
    decoder = lambda name, inputs, **more: case(
        f"decoder_{name}", inputs, "DecoderMaskedMultiHeadAttention", past_present_share_buffer=1, **more
    )
    beams = {"beam_width": integers(2), "cache_indirection": sources}
    decoder("buffer_mask", shared() | {"mask_index": mask})
    decoder("buffer_scores", shared() | {"attention_bias": floats(1, 4, 1, 4)}, scores=True, output_qk=1)
    decoder("beams", shared(batch=4) | beams)
    decoder("beams_mask", shared(batch=4) | beams | {"mask_index": integers(*random.integers(0, 2, (4, 4)))}, scores=True, output_qk=1)
    inputs = {"input": floats(2, 3, 32), "weights": floats(32, 96), "bias": floats(96)}
    inputs["mask_index"] = integers(2, 3, 0, 3, 6, 0, 2, 5)
    Case("attention_mask_sums", "Attention", list(inputs), ["output"], num_heads=4).add(**inputs)


class Blocks(Case):
    """Attention to blocks, whose cache ONNX Runtime changes in place. 4 heads of queries, 2 of keys, of 16; blocks of 16."""

    OPERANDS = [
        "query", "key", "value", "past_key", "past_value", "block_row_indices", "block_col_indices",
        "total_sequence_length", "key_total_sequence_lengths", "cos_cache", "sin_cache",
    ]  # fmt: skip

    def __init__(self, name, layouts, batch=1, packed=True, rotary=False, capacity=48, dtype=np.float32, **attributes):
        self.batch, self.packed, self.dtype = batch, packed, dtype
        layouts = np.array(layouts)
        columns = [np.nonzero(layout)[1] for layout in layouts]
        rows = [np.concatenate([[0], layout.sum(-1).cumsum()]) for layout in layouts]
        longest = max(map(len, columns))
        columns = [np.pad(own, (0, longest - len(own)), constant_values=-1) for own in columns]
        weights = {"block_row_indices": np.array(rows, np.int32), "block_col_indices": np.array(columns, np.int32)}
        if rotary:
            angle = random.random((64, 8)) * 3
            weights |= {"cos_cache": np.cos(angle).astype(dtype), "sin_cache": np.sin(angle).astype(dtype)}
            attributes["do_rotary"] = 1
        hidden = 128 if packed else 64
        dims = {"query": ["batch", "steps", hidden], "output": ["batch", "steps", 64]}
        dims |= {name: ["batch", "steps", 32] for name in ["key", "value"]}
        super().__init__(
            name, "SparseAttention", Blocks.OPERANDS, PRESENT, weights=weights, dims=dims, num_heads=4, kv_num_heads=2,
            sparse_block_size=16, **attributes,
        )  # fmt: skip
        self.present = [np.zeros((batch, 2, capacity, 16), dtype)] * 2

    def step(self, lengths, steps):
        f = lambda width: floats(self.batch, steps, width, dtype=self.dtype)
        inputs = {"query": f(128)} if self.packed else {"query": f(64), "key": f(32), "value": f(32)}
        inputs |= {"past_key": self.present[0], "past_value": self.present[1]}
        inputs |= {"total_sequence_length": integers(max(lengths)), "key_total_sequence_lengths": integers(*lengths)}
        outputs = self.add(**inputs)
        self.present = [outputs["present_key"], outputs["present_value"]]
        return self

    def compute(self, model, inputs):
        session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        binding, caches = session.io_binding(), {}
        for name, value in inputs.items():
            given = ort.OrtValue.ortvalue_from_numpy(value.copy())
            binding.bind_ortvalue_input(name, given)
            if name.startswith("past_"):
                caches[name.replace("past", "present")] = given
        binding.bind_output("output", "cpu")
        for name, cache in caches.items():
            binding.bind_ortvalue_output(name, cache)
        session.run_with_iobinding(binding)
        outputs = {"output": binding.copy_outputs_to_cpu()[0]}
        outputs |= {name: cache.numpy().copy() for name, cache in caches.items()}
        # Of rows behind a text ONNX Runtime keeps what they were.
        for row, length in enumerate(inputs["key_total_sequence_lengths"]):
            for name in caches:
                outputs[name][row, :, length:] = 0
        return outputs


def blocks():
    lower = [np.tril(np.ones((3, 3), int))]
    two = [[[1, 0, 0], [0, 1, 0], [0, 1, 1]], [[1, 0, 0], [1, 1, 0], [1, 0, 1]]]
    Blocks("sparse_attention_lower", lower).step([20], 20).step([21], 1)
    Blocks("sparse_attention_two", two, rotary=True).step([36], 36).step([37], 1)
    Blocks("sparse_attention_separate", two, packed=False, scale=0.5).step([17], 17).step([18], 1)
    # Of texts of several lengths ONNX Runtime mixes up the probabilities of heads.
    Blocks("sparse_attention_batch", two, batch=2, rotary=True, rotary_interleaved=1).step([34, 34], 34).step([35, 35], 1)
    Blocks("sparse_attention_half", two, dtype=np.float16).step([20], 20)


def caches():
    # Always the same, whatever is written before.
    random.bit_generator.state = np.random.default_rng(3).bit_generator.state
    scores()
    chunks()
    windows()
    buffers()
    blocks()


if __name__ == "__main__":
    caches()
