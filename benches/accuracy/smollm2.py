#!/usr/bin/env python3
"""Perplexity of a trained language model whose weights are rounded, by ipuc and by its peers at the same bits.

    python benches/accuracy/smollm2.py FOLDER OUT [IPUC [TOKENS]]

FOLDER is SmolLM2-135M-Instruct in floats as onnxruntime-genai's model builder writes it. Its weights were decoded from codes of
4 bits (blocks of 32 with a scale and a minimum), which any quantizer with the same blocks could find again: seeded uniform
noise, half a step to both sides, is added to those of products, and the noised model is the one that all others are made of.
OUT receives the models. All of them are read by ipuc, so that only weights differ: those of peers are decoded to floats
(llama.cpp's Q4_0 and Q8_0 by the package gguf), or are MatMulNBits in the model, with the last product in floats; ipuc has
that with 8 bits, llama.cpp's models here with Q8_0. The text is that of Python's help pages, read in windows of 512 tokens.

Needs onnx, numpy, gguf, onnxruntime with the packages that its quantizer uses (onnx-ir, ml_dtypes).
"""
import json, logging, os, pydoc_data.topics, shutil, subprocess, sys
import gguf, numpy, onnx
from onnx.external_data_helper import convert_model_to_external_data

BLOCK = 32


def folder(source, out, name, change):
    """A copy of a model's folder with other weights; `change` gets the model with its weights in memory."""
    path = os.path.join(out, name)
    if os.path.exists(os.path.join(path, "model.onnx.data")):
        return path
    shutil.copytree(source, path, ignore=shutil.ignore_patterns("model.onnx*"), dirs_exist_ok=True)
    model = change(onnx.load(os.path.join(source, "model.onnx")))
    convert_model_to_external_data(model, location="model.onnx.data", size_threshold=1024, convert_attribute=False)
    onnx.save(model, os.path.join(path, "model.onnx"))
    return path


def with_weights(change):
    """Changes each weight of a product, given as `[outputs, inputs]`."""
    def changed(model):
        for tensor in model.graph.initializer:
            if tensor.name.endswith(".MatMul.weight"):
                weight = numpy.ascontiguousarray(onnx.numpy_helper.to_array(tensor).T)
                result = numpy.ascontiguousarray(change(tensor.name, weight).T, dtype=numpy.float32)
                tensor.CopyFrom(onnx.numpy_helper.from_array(result, tensor.name))
        return model
    return changed


def noised():
    random = numpy.random.default_rng(12)
    def change(name, weight):
        if name.startswith("lm_head"):
            return weight
        blocks = weight.reshape(-1, BLOCK)
        step = (blocks.max(1, keepdims=True) - blocks.min(1, keepdims=True)) / 15
        return (blocks + random.uniform(-0.5, 0.5, blocks.shape) * step).reshape(weight.shape)
    return with_weights(change)


def llama(kind):
    def change(name, weight):
        own = gguf.GGMLQuantizationType.Q8_0 if name.startswith("lm_head") else kind
        return gguf.quants.dequantize(gguf.quants.quantize(weight, own), own)
    return with_weights(change)


def nbits(symmetric):
    def change(model):
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
        logging.disable(logging.INFO)
        last = [node.name for node in model.graph.node if "lm_head" in node.name or any("lm_head" in name for name in node.input)]
        quantizer = MatMulNBitsQuantizer(model, bits=4, block_size=BLOCK, is_symmetric=symmetric, nodes_to_exclude=last)
        quantizer.process()
        return quantizer.model.model
    return change


def compile(ipuc, source, out, name, *options):
    path = os.path.join(out, name + ".ipu")
    subprocess.run([ipuc, "compile", source, "-o", path, "-q", *options], check=True)
    return path


def main(source, out, ipuc="ipuc", tokens="20480"):
    os.makedirs(out, exist_ok=True)
    text = os.path.join(out, "help.txt")
    with open(text, "w") as file:
        file.write("\n".join(pydoc_data.topics.topics[key] for key in sorted(pydoc_data.topics.topics)))
    # Another part of the same kind of text: pages whose tokens are not compared.
    calibration = os.path.join(out, "calibration.txt")
    with open(calibration, "w") as file:
        file.write("\n".join(pydoc_data.topics.topics[key] for key in sorted(pydoc_data.topics.topics, reverse=True)[:24]))
    float_folder = folder(source, out, "noised", noised())
    reference = compile(ipuc, float_folder, out, "noised")
    q4_0, q8_0 = gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q8_0
    rows = [
        ("ipuc i8", lambda: compile(ipuc, float_folder, out, "i8", "--weights", "i8")),
        ("llama.cpp Q8_0", lambda: compile(ipuc, folder(float_folder, out, "q8_0", llama(q8_0)), out, "q8_0")),
        ("ipuc i4", lambda: compile(ipuc, float_folder, out, "i4", "--weights", "i4")),
        ("ipuc i4, calibrated", lambda: compile(ipuc, float_folder, out, "i4c", "--weights", "i4", "--calibrate", calibration)),
        ("llama.cpp Q4_0", lambda: compile(ipuc, folder(float_folder, out, "q4_0", llama(q4_0)), out, "q4_0")),
        ("MatMulNBits, symmetric", lambda: compile(ipuc, folder(float_folder, out, "nbits", nbits(True)), out, "nbits", "--activations", "keep")),
        ("MatMulNBits, zero points", lambda: compile(ipuc, folder(float_folder, out, "nbitsz", nbits(False)), out, "nbitsz", "--activations", "keep")),
    ]
    chosen = os.environ.get("ROWS")
    print("| weights | perplexity | log ratio to floats | divergence | same token first |\n| --- | --- | --- | --- | --- |")
    for name, make in rows:
        if chosen and name not in chosen.split(";"):
            continue
        command = [ipuc, "compare", make(), reference, "--text", text, "--tokens", tokens, "--json", "-q"]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        ratio = f"{found['log_ratio']:.5f} ± {found['log_ratio_error']:.5f}"
        same = f"{100 * found['same_first'] / found['tokens']:.2f} %"
        print(f"| {name} | {found['perplexity']:.3f} | {ratio} | {found['divergence']:.5f} | {same} |", flush=True)
    print(f"{found['tokens']} tokens in {found['windows']} windows; perplexity of floats {found['reference_perplexity']:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
