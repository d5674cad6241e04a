#!/usr/bin/env python3
"""Models of 100 billion parameters by their shapes: one token of a decoder after a context, weights of 4 bits in blocks of 32.

    pip install onnx
    python3 benches/large.py dense dense.onnx    # 102 billion parameters, all of them read for each token
    python3 benches/large.py experts experts.onnx  # 117 billion in 128 experts a layer, four of them for each token
    python3 benches/large.py table --program target/release/ipuc    # the table of the README
    ipuc simulate dense.onnx --target ipu-edge --numerics bf16 --state 'past.*=present.*' --dim past=4096 \\
        --set policy.state=tier2 --set policy.weights=tier2 --zeros 0.6

`--zeros 0.6` takes that share of the inputs of all products with weights to be zero, `--zeros '*.down=0.6'` of those of the
last product of each block only. The weights are in a file that does not exist: `ipuc simulate` asks for sizes only.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

import onnx
from onnx import TensorProto, helper

BLOCK = 32
F16 = TensorProto.FLOAT16


class Builder:
    def __init__(self):
        self.nodes, self.weights, self.inputs, self.outputs = [], [], [], []
        self.offset = 0

    def weight(self, kind, shape):
        bits = {TensorProto.INT4: 4, TensorProto.UINT8: 8, F16: 16}[kind]
        count = 1
        for extent in shape:
            count *= extent
        tensor = TensorProto(name=f"w{len(self.weights)}", data_type=kind, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        length = (count * bits + 7) // 8
        for key, value in (("location", "weights.bin"), ("offset", self.offset), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
        self.offset += (length + 63) // 64 * 64
        self.weights.append(tensor)
        return tensor.name

    def node(self, operator, inputs, outputs=1, name=None, **attributes):
        names = [f"v{len(self.nodes)}.{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(operator, inputs, names, name=name or names[0], **attributes))
        return names[0] if outputs == 1 else names

    def product(self, x, inputs, outputs, name=None):
        codes = self.weight(TensorProto.INT4, [inputs, outputs])
        scales = self.weight(F16, [inputs // BLOCK, outputs])
        matrix = self.node("DequantizeLinear", [codes, scales], axis=0, block_size=BLOCK)
        return self.node("MatMul", [x, matrix], name=name)

    def shape(self, extents):
        tensor = helper.make_tensor(f"s{len(self.weights)}", TensorProto.INT64, [len(extents)], extents)
        self.weights.append(tensor)
        return tensor.name

    def heads(self, x, count, size):
        """`[batch, tokens, count * size]` to `[batch, count, tokens, size]`."""
        rows = self.node("Reshape", [x, self.shape([0, 0, count, size])])
        return self.node("Transpose", [rows], perm=[0, 2, 1, 3])

    def normalized(self, x, width):
        return self.node("RMSNormalization", [x, self.weight(F16, [width])], epsilon=1e-5)


def attention(builder, layer, x, of):
    head, heads, key_heads = of["head"], of["heads"], of["key_heads"]
    cache = [1, key_heads, "past", head]
    past = [f"past.{layer}.{name}" for name in ("key", "value")]
    builder.inputs += [helper.make_tensor_value_info(name, F16, cache) for name in past]
    sizes = (heads, key_heads, key_heads)
    q, k, v = (builder.heads(builder.product(x, of["width"], count * head), count, head) for count in sizes)
    q, k = (builder.node("RotaryEmbedding", [value, "cos", "sin"]) for value in (q, k))
    present = [f"present.{layer}.{name}" for name in ("key", "value")]
    result = f"attended.{layer}"
    builder.nodes.append(helper.make_node("Attention", [q, k, v, "", *past], [result, *present], name=result))
    grown = [1, key_heads, "present", head]
    builder.outputs += [helper.make_tensor_value_info(name, F16, grown) for name in present]
    rows = builder.node("Transpose", [result], perm=[0, 2, 1, 3])
    result = builder.node("Reshape", [rows, builder.shape([0, 0, heads * head])])
    return builder.product(result, heads * head, of["width"])


def dense_block(builder, layer, x, of):
    gate, up = (builder.product(x, of["width"], of["inner"], f"{layer}.{name}") for name in ("gate", "up"))
    silu = builder.node("Mul", [gate, builder.node("Sigmoid", [gate])])
    return builder.product(builder.node("Mul", [silu, up]), of["inner"], of["width"], f"{layer}.down")


def expert_block(builder, layer, x, of):
    width, inner, experts = of["width"], of["inner"], of["experts"]
    router = builder.node("MatMul", [x, builder.weight(F16, [width, experts])])
    rows = builder.node("Reshape", [x, "rows"])
    scores = builder.node("Reshape", [router, "scores"])
    up = [builder.weight(TensorProto.UINT8, [experts, inner * 2, width // 2])]
    up += [builder.weight(F16, [experts, inner * 2, width // BLOCK]), ""]
    down = [builder.weight(TensorProto.UINT8, [experts, width, inner // 2])]
    down += [builder.weight(F16, [experts, width, inner // BLOCK])]
    mixed = builder.node(
        "QMoE",
        [rows, scores, *up, *down],
        name=f"{layer}.experts",
        domain="com.microsoft",
        activation_type="swiglu",
        swiglu_fusion=1,
        expert_weight_bits=4,
        block_size=BLOCK,
        k=of["chosen"],
        normalize_routing_weights=1,
    )
    return builder.node("Reshape", [mixed, "token"])


MODELS = {
    "dense": dict(layers=96, width=9216, heads=72, key_heads=8, head=128, inner=32768, vocabulary=128256),
    "experts": dict(
        layers=36, width=2880, heads=64, key_heads=8, head=64, inner=2880, vocabulary=201088, experts=128, chosen=4
    ),
}


def build(of):
    builder = Builder()
    width, vocabulary = of["width"], of["vocabulary"]
    builder.inputs.append(helper.make_tensor_value_info("tokens", TensorProto.INT64, [1, 1]))
    for name in ("cos", "sin"):
        builder.inputs.append(helper.make_tensor_value_info(name, F16, [1, 1, of["head"] // 2]))
    shapes = {"rows": [1, width], "scores": [1, of.get("experts", 1)], "token": [1, 1, width]}
    constants = [helper.make_tensor(name, TensorProto.INT64, [len(to)], to) for name, to in shapes.items()]
    x = builder.node("Gather", [builder.weight(F16, [vocabulary, width]), "tokens"])
    for layer in range(of["layers"]):
        x = builder.node("Add", [x, attention(builder, layer, builder.normalized(x, width), of)])
        block = expert_block if "experts" in of else dense_block
        x = builder.node("Add", [x, block(builder, layer, builder.normalized(x, width), of)])
    logits = builder.product(builder.normalized(x, width), width, vocabulary)
    builder.outputs.insert(0, helper.make_tensor_value_info(logits, F16, [1, 1, vocabulary]))
    graph = helper.make_graph(builder.nodes, "decoder", builder.inputs, builder.outputs, constants + builder.weights)
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=11)


def table(program):
    """Tokens a second, power and energy on `ipu-edge` by model, by where weights live, and by the share of zeros."""
    print("| model | weights live in | zeros | tokens a second | power | energy a token | what limits |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for name, said in (("dense", "dense, 102 B"), ("experts", "experts, 117 B")):
            model = pathlib.Path(folder) / f"{name}.onnx"
            model.write_bytes(build(MODELS[name]).SerializeToString())
            for home, memory in (("tier2", "HBM4"), ("tier3", "UFS 4.0")):
                for zeros in (0, 0.6, 0.8):
                    print("| " + " | ".join([said, memory, f"{zeros * 100:.0f} %", *row(program, model, home, zeros)]) + " |")


def row(program, model, home, zeros):
    command = [program, "simulate", model, "--target", "ipu-edge", "--numerics", "bf16", "--state", "past.*=present.*"]
    command += ["--dim", "past=4096", "--set", "policy.state=tier2", "--set", f"policy.weights={home}"]
    command += ["--zeros", zeros, "--json", "--quiet"]
    result = json.loads(subprocess.run([str(part) for part in command], check=True, capture_output=True).stdout)
    seconds, joules = result["seconds"], result["energy_joules"]["total"]
    free = seconds - result["throttled_seconds"]
    read = sum(tier["read_bytes"] for tier in result["tiers"])
    limit = f"reading {read / 2**30:.1f} GiB a token"
    if seconds > free * 1.01:
        limit = f"power; {1 / free:.3g} tokens a second without the limit"
    return [f"{1 / seconds:.2g}", f"{joules / seconds:.2g} W", f"{joules:.3g} J", limit]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=[*MODELS, "table"])
    parser.add_argument("output", type=pathlib.Path, nargs="?")
    parser.add_argument("--program", default="target/release/ipuc")
    arguments = parser.parse_args()
    if arguments.model == "table":
        return table(arguments.program)
    if arguments.output is None:
        parser.error("a file to write is missing")
    arguments.output.write_bytes(build(MODELS[arguments.model]).SerializeToString())


if __name__ == "__main__":
    main()
