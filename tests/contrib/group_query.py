"""Cases of `GroupQueryAttention`, whose sets follow each other."""

import numpy as np
from case import Case, floats, random


GROUP_QUERY = [
    "query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length", "cos_cache", "sin_cache",
    "position_ids", "attention_bias", "head_sink", "k_scale", "v_scale", "q_norm_weight", "k_norm_weight",
    "query_seqlens",
]  # fmt: skip


class GroupQuery(Case):
    """4 heads of queries, 2 of keys; packed operands and a cache that grows unless said otherwise."""

    def __init__(self, name, size=8, packed=True, capacity=None, rotary=0, dtype=np.float32, batch=1, past=True, **attributes):
        self.size, self.packed, self.capacity, self.dtype, self.batch = size, packed, capacity, dtype, batch
        self.past = past
        dims = {name: ["batch", "steps", (8 if packed else 4) * size] for name in ["query"]}
        dims |= {name: ["batch", "steps", 2 * size] for name in ["key", "value"]}
        dims |= {name: ["batch", 2, "past", size] for name in ["past_key", "past_value"]}
        dims |= {name: ["batch", 2, "present", size] for name in ["present_key", "present_value"]}
        dims |= {"seqlens_k": ["batch"], "output": ["batch", "steps", 4 * size], "position_ids": ["batch", "steps"]}
        dims |= {"query_seqlens": ["batch"], "output_qk": ["batch", 4, "steps", "total"]}
        weights = {}
        if rotary:
            angle = random.random((16, rotary)) * 3
            weights = {"cos_cache": np.cos(angle).astype(dtype), "sin_cache": np.sin(angle).astype(dtype)}
            attributes |= {"do_rotary": 1}
        results = ["output", "present_key", "present_value"]
        if attributes.get("qk_output"):
            results.append("output_qk")
        super().__init__(
            name, "GroupQueryAttention", GROUP_QUERY, results, weights=weights, dims=dims,
            num_heads=4, kv_num_heads=2, **attributes,
        )  # fmt: skip
        self.present = None

    def step(self, lengths, steps, total=None, **more):
        """One set: the tokens of each of the batch with the new ones, and the number of new ones."""
        for name, value in more.items():
            if name == "attention_bias":
                self.dims[name] = [extent if extent == 1 else f"bias{axis}" for axis, extent in enumerate(value.shape)]
        f = lambda *shape: floats(*shape, dtype=self.dtype)
        inputs = {"query": f(self.batch, steps, (8 if self.packed else 4) * self.size)}
        if not self.packed:
            inputs |= {name: f(self.batch, steps, 2 * self.size) for name in ["key", "value"]}
        if self.past:
            cache = self.present or [np.zeros((self.batch, 2, self.capacity or 0, self.size), self.dtype)] * 2
            inputs |= {"past_key": cache[0], "past_value": cache[1]}
        inputs["seqlens_k"] = np.array(lengths, np.int32) - 1
        inputs["total_sequence_length"] = np.array([total or max(lengths)], np.int32)
        outputs = self.add(**inputs, **more)
        self.present = [outputs["present_key"], outputs["present_value"]]
        return self

    def decode(self, prompt=4, steps=1, **more):
        """A prompt, then tokens one by one."""
        self.step([prompt] * self.batch, prompt, **more)
        for length in range(prompt + 1, prompt + 1 + steps):
            self.step([length] * self.batch, 1)
        return self


class NormalizedGroupQuery(GroupQuery):
    """With a normalization of queries and keys, which ONNX Runtime has on other processors only: it is given them normalized."""

    def compute(self, model, inputs):
        weights, self.weights = self.weights, {n: w for n, w in self.weights.items() if not n.endswith("norm_weight")}
        normalized = dict(inputs)
        for name, weight in {"query": "q_norm_weight", "key": "k_norm_weight"}.items():
            heads = inputs[name].astype(np.float64).reshape(*inputs[name].shape[:2], -1, self.size)
            heads *= weights[weight] / np.sqrt((heads * heads).mean(-1, keepdims=True) + self.epsilon)
            normalized[name] = heads.reshape(inputs[name].shape).astype(np.float32)
        outputs = super().compute(self.model(normalized), normalized)
        self.weights = weights
        return outputs
