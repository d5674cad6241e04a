#!/usr/bin/env python3
"""Distance of quantized graphs from the models in floats that they were made of, in ipuc and in ONNX Runtime.

    python benches/accuracy/distance.py CASES OUT [IPUC]

CASES is a folder of models as of ONNX's tests. The pairs are those of it that were quantized with ONNX Runtime's tools, and bert_mini
through `quantize_dynamic`, made here. Both run the same graph on the same data sets; the distance of an output is the root
mean square of its differences from the model in floats, as ONNX Runtime computes it without optimizations, over that of the
output; of several the greatest.

Needs onnx, onnxruntime and numpy.
"""
import glob, json, os, shutil, subprocess, sys
import numpy, onnx, onnxruntime

PAIRS = [
    ("resnet50_half_qdq_s8", "resnet50_half"),
    ("resnet50_half_qoperator_u8", "resnet50_half"),
    ("llama_decode_int4_qdq", "llama_decode"),
    ("bert_mini_dynamic", "bert_mini"),
]


def data_sets(case, model):
    names = [tensor.name for tensor in onnx.load(model, load_external_data=False).graph.input]
    for folder in sorted(glob.glob(os.path.join(case, "test_data_set_*"))):
        given = {}
        for index, name in enumerate(names):
            tensor = onnx.TensorProto()
            tensor.ParseFromString(open(os.path.join(folder, f"input_{index}.pb"), "rb").read())
            given[name] = onnx.numpy_helper.to_array(tensor)
        yield given


def outputs(model, sets, optimized):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return [session.run(None, given) for given in sets]


def distance(found, expected):
    squares = numpy.zeros([2, len(expected[0])])
    for own, right in zip(found, expected):
        for index, (one, two) in enumerate(zip(own, right)):
            difference = one.astype(numpy.float64) - two
            squares[:, index] += (difference ** 2).sum(), (two.astype(numpy.float64) ** 2).sum()
    return numpy.sqrt(squares[0] / squares[1]).max()


def main(cases, out, ipuc="ipuc"):
    os.makedirs(out, exist_ok=True)
    print("| graph | ipuc | ONNX Runtime | without optimizations |\n| --- | --- | --- | --- |")
    for name, floats in PAIRS:
        case, reference = os.path.join(cases, name), os.path.join(cases, floats, "model.onnx")
        model = os.path.join(case, "model.onnx")
        if name == "bert_mini_dynamic":
            from onnxruntime.quantization import QuantType, quantize_dynamic
            case, model = os.path.join(cases, floats), os.path.join(out, name + ".onnx")
            source = os.path.join(out, floats + ".onnx")
            shutil.copy(reference, source)
            os.chmod(source, 0o644)
            quantize_dynamic(source, model, weight_type=QuantType.QInt8)
        sets = list(data_sets(case, model))
        expected = outputs(reference, sets, False)
        command = [ipuc, "compare", model, reference, "--data", case, "--json", "-q", "--no-cache"]
        found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        own = max(output["relative"] for output in found["outputs"] if output["relative"] is not None)
        peers = [distance(outputs(model, sets, optimized), expected) for optimized in (True, False)]
        print(f"| {name} | {own:.5f} | {peers[0]:.5f} | {peers[1]:.5f} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
