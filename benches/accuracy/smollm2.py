#!/usr/bin/env python3
"""Perplexity of a trained language model whose weights are rounded, by ipuc and by its peers at the same bits.

    python benches/accuracy/smollm2.py FOLDER OUT [IPUC [TOKENS]]

FOLDER is SmolLM2-135M-Instruct in floats as onnxruntime-genai's model builder writes it. Its weights were decoded from codes of
4 bits (blocks of 32 with a scale and a minimum), which any quantizer with the same blocks could find again: seeded uniform
noise, half a step to both sides, is added to those of products, and the noised model is the one that all others are made of.
OUT receives the models. All of them are read by ipuc, so that only weights differ: those of peers are decoded to floats, as
llama.cpp rounds them (package gguf) or onnxruntime's quantizers do; the last product has 8 bits in all of them (Q8_0 in those of
peers, which is finer). The text is that of Python's help pages, read in windows of 512 tokens; other pages calibrate.
ROWS, names with ; between them, chooses rows. What one run has measured is kept in OUT/results.json, and printed again.

Needs onnx, onnxruntime, numpy, gguf, tokenizers, and torch for HQQ.
"""
import json, os, pydoc_data.topics, shutil, subprocess, sys
import gguf, numpy, onnx
from onnx.external_data_helper import convert_model_to_external_data

BLOCK = 32
CALIBRATION_TOKENS = 8192
WINDOW = 512


def folder(source, out, name, change):
    """A copy of a model's folder with other weights; `change` gets the model with its weights in memory."""
    path = os.path.join(out, name)
    done = os.path.join(path, "done")
    if os.path.exists(done):
        return path
    # Read where it is copied to: onnx refuses data with several hard links, as the builder may leave it.
    shutil.copytree(source, path, ignore=shutil.ignore_patterns("done"), dirs_exist_ok=True)
    model = change(onnx.load(os.path.join(path, "model.onnx")))
    os.remove(os.path.join(path, "model.onnx.data"))
    convert_model_to_external_data(model, location="model.onnx.data", size_threshold=1024, convert_attribute=False)
    onnx.save(model, os.path.join(path, "model.onnx"))
    open(done, "w").close()
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
    """As llama.cpp rounds."""
    kind = gguf.GGMLQuantizationType[kind]
    return lambda name, weight: gguf.quants.dequantize(gguf.quants.quantize(weight, kind), kind)


def rounded(weight, block, scheme):
    """onnxruntime's rounding to nearest by blocks: `quant_tensor` of its neural_compressor, codes less zero points times scales."""
    from onnxruntime.quantization.neural_compressor.weight_only import quant_tensor
    codes, scale, zero = quant_tensor(weight.copy(), 4, block, scheme, "uint")
    return ((codes.astype(numpy.float32) - zero) * scale).reshape(weight.shape)


def k_quant(block):
    def change(name, weight):
        from onnxruntime.quantization.neural_compressor.weight_only import quant_tensor_k_quant_cpu
        codes, scale, zero = quant_tensor_k_quant_cpu(weight.copy(), 4, block)
        return ((codes.astype(numpy.float32) - zero) * scale).reshape(weight.shape)
    return change


def nbits(symmetric):
    """onnxruntime's default: its own native rounding of MatMulNBits."""
    def change(name, weight):
        from onnxruntime.capi._pybind_state import quantize_matmul_4bits
        outputs, inputs = weight.shape
        blocks = inputs // BLOCK
        packed = numpy.zeros((outputs, blocks, BLOCK // 2), numpy.uint8)
        scales = numpy.zeros((outputs, blocks), numpy.float32)
        zeros = numpy.zeros((outputs, (blocks + 1) // 2), numpy.uint8)
        quantize_matmul_4bits(packed, numpy.ascontiguousarray(weight.T), scales, zeros, BLOCK, outputs, inputs, symmetric)
        codes = numpy.stack([packed & 15, packed >> 4], -1).reshape(outputs, blocks, BLOCK).astype(numpy.float32)
        zero = numpy.stack([zeros & 15, zeros >> 4], -1).reshape(outputs, -1)[:, :blocks].astype(numpy.float32)
        zero = 8.0 if symmetric else zero[..., None]
        return ((codes - zero) * scales.reshape(outputs, blocks, 1)).reshape(weight.shape)
    return change


def hqq(block):
    def change(name, weight):
        import torch
        from onnxruntime.quantization.matmul_nbits_quantizer import HQQWeightOnlyQuantizer
        codes, scale, zero = HQQWeightOnlyQuantizer(None).quantize_internal(torch.from_numpy(weight), bits=4, group_size=block)
        codes = codes[:, :weight.shape[1]]
        spread = lambda parameter: parameter.repeat_interleave(block, 1)[:, :weight.shape[1]]
        return ((codes - spread(zero)) * spread(scale)).numpy()
    return change


def moments(source, text):
    """Second moments of what each product reads over the calibration, by the name of its weight."""
    import onnxruntime, tokenizers
    tokens = tokenizers.Tokenizer.from_file(os.path.join(source, "tokenizer.json")).encode(open(text).read()).ids[:CALIBRATION_TOKENS]
    model = onnx.load(os.path.join(source, "model.onnx"), load_external_data=False)
    read = {node.input[1]: node.input[0] for node in model.graph.node if node.op_type == "MatMul"}
    del model.graph.output[:]
    names = sorted(set(read.values()))
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
    path = os.path.join(source, "observed.onnx")
    onnx.save(model, path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    heads = json.load(open(os.path.join(source, "genai_config.json")))["model"]["decoder"]
    sums = {name: 0.0 for name in names}
    for first in range(0, len(tokens), WINDOW):
        row = numpy.array([tokens[first:first + WINDOW]], numpy.int64)
        given = {"input_ids": row, "attention_mask": numpy.ones_like(row), "position_ids": numpy.arange(row.size)[None]}
        for tensor in session.get_inputs():
            if tensor.name.startswith("past_key_values"):
                given[tensor.name] = numpy.zeros([1, heads["num_key_value_heads"], 0, heads["head_size"]], numpy.float32)
        given = {tensor.name: given[tensor.name] for tensor in session.get_inputs()}
        for name, value in zip(names, session.run(names, given)):
            value = value.reshape(-1, value.shape[-1]).astype(numpy.float64)
            sums[name] = sums[name] + 2 * value.T @ value
    return {weight: sums[name] for weight, name in read.items()}


def gptq(source, text, block, scheme, mse):
    """onnxruntime's GPTQ: its own function over moments of all products at once, which it would measure one after another."""
    known = {}
    def change(name, weight):
        from onnxruntime.quantization.neural_compressor import weight_only
        if not known:
            known.update(moments(source, text))
        found = weight_only.gptq(weight.T.copy(), known[name].copy(), 4, block, scheme, mse=mse).T
        return rounded(numpy.ascontiguousarray(found), block, scheme)
    return change


def compile(ipuc, source, out, name, *options):
    path = os.path.join(out, name + ".ipu")
    subprocess.run([ipuc, "compile", source, "-o", path, "-q", *options], check=True, stdout=subprocess.DEVNULL)
    return path


def main(source, out, ipuc="ipuc", tokens="20480"):
    os.makedirs(out, exist_ok=True)
    topics = pydoc_data.topics.topics
    text = os.path.join(out, "help.txt")
    with open(text, "w") as file:
        file.write("\n".join(topics[key] for key in sorted(topics)))
    # Another part of the same kind of text: pages whose tokens are not compared.
    calibration = os.path.join(out, "calibration.txt")
    with open(calibration, "w") as file:
        file.write("\n".join(topics[key] for key in sorted(topics, reverse=True)[:24]))
    float_folder = folder(source, out, "noised", noised())

    def ours(*options):
        name = "-".join(option.strip("-").replace(":", "_") for option in options if option != calibration)
        return lambda: compile(ipuc, float_folder, out, name, *options)

    def peer(name, change):
        def eight(weight_name, weight):
            return (llama("Q8_0") if weight_name.startswith("lm_head") else change)(weight_name, weight)
        return lambda: compile(ipuc, folder(float_folder, out, name, with_weights(eight)), out, name)

    def calibrated(kind):
        return ours("--weights", kind, "--calibrate", calibration)

    # Name, bits of a weight of a product, and what makes the file.
    rows = [
        ("`i8`", 8, ours("--weights", "i8")),
        ("`i8:32`", 8.5, ours("--weights", "i8:32")),
        ("`fp8`", 8, ours("--weights", "fp8")),
        ("`fp8_e5m2`", 8, ours("--weights", "fp8_e5m2")),
        ("llama.cpp's Q8_0", 8.5, peer("q8_0", llama("Q8_0"))),
        ("`i4`", 4.5, ours("--weights", "i4")),
        ("`i4`, calibrated", 4.5, calibrated("i4")),
        ("`i4_e4m3`", 4.5, ours("--weights", "i4_e4m3")),
        ("`i4_e4m3`, calibrated", 4.5, calibrated("i4_e4m3")),
        ("`nvfp4`", 4.5, ours("--weights", "nvfp4")),
        ("`nvfp4`, calibrated", 4.5, calibrated("nvfp4")),
        ("`mxfp4`", 4.25, ours("--weights", "mxfp4")),
        ("`mxfp4`, calibrated", 4.25, calibrated("mxfp4")),
        ("llama.cpp's Q4_0", 4.5, peer("q4_0", llama("Q4_0"))),
        ("llama.cpp's Q4_1", 5, peer("q4_1", llama("Q4_1"))),
        ("`MatMulNBits`, default, symmetric", 5, peer("nbits", nbits(True))),
        ("`MatMulNBits`, default", 5.125, peer("nbitsz", nbits(False))),
        ("`MatMulNBits`, k_quant", 5.125, peer("kquant", k_quant(BLOCK))),
        ("`MatMulNBits`, HQQ, blocks of 128", 4.5, peer("hqq128", hqq(128))),
        ("`MatMulNBits`, HQQ", 6, peer("hqq32", hqq(BLOCK))),
        ("`MatMulNBits`, GPTQ, symmetric", 5, peer("gptq", gptq(float_folder, calibration, BLOCK, "sym", False))),
        ("`MatMulNBits`, GPTQ, its `mse`", 5.125, peer("gptqm", gptq(float_folder, calibration, BLOCK, "asym", True))),
        ("`i2`, calibrated", 2.5, calibrated("i2")),
        ("`i2:16`, calibrated", 3, calibrated("i2:16")),
    ]
    reference = compile(ipuc, float_folder, out, "noised")
    chosen = os.environ.get("ROWS")
    kept = os.path.join(out, f"results-{tokens}.json")
    results = json.load(open(kept)) if os.path.exists(kept) else {}
    print("| weights | bits | perplexity | log ratio to floats | divergence | same token first |\n| --- | --- | --- | --- | --- | --- |")
    for name, bits, make in rows:
        asked = chosen is None or name.replace("`", "") in chosen.split(";")
        if asked:
            command = [ipuc, "compare", make(), reference, "--text", text, "--tokens", tokens, "--json", "-q"]
            results[name] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            with open(kept, "w") as file:
                json.dump(results, file)
        if name in results:
            found = results[name]
            ratio = f"{found['log_ratio']:.5f} ± {found['log_ratio_error']:.5f}"
            same = f"{100 * found['same_first'] / found['tokens']:.2f} %"
            print(f"| {name} | {bits} | {found['perplexity']:.3f} | {ratio} | {found['divergence']:.5f} | {same} |", flush=True)
    for found in list(results.values())[:1]:
        print(f"{found['tokens']} tokens in {found['windows']} windows; perplexity of floats {found['reference_perplexity']:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
