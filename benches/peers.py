#!/usr/bin/env python3
"""Time of a run against ONNX Runtime, in the same minutes on the same machine.

    cargo build --release
    pip install onnx onnxruntime
    python3 benches/peers.py CASES [--models a,b] [--threads 1,2] [--rounds 5] [--seconds 1]

CASES is a folder with one folder a model: `model.onnx` and `test_data_set_0/input_K.pb`, as in the ONNX test suite.

Each round starts one process of either side, one after the other, so that both see the same state of the machine. A
process loads the model, runs it until it is warm, then times runs by itself; loading is not counted. Of all timed runs
of all rounds the medians are compared: a ratio below 1 says that ipuc is faster.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

MODELS = (
    "resnet50_half,bert_mini,whisper_encoder,ppocr_v4_det,unet_diffusion,silero_vad,llama_decode,"
    "ppocr_v2_cls,mixtral_decode,lstm_gru_tagger"
)
# Runs before the timed ones.
WARM_RUNS = 2


def inputs(folder):
    """Names and files of the inputs of the first data set."""
    import onnx

    model = onnx.load(folder / "model.onnx", load_external_data=False)
    weights = {tensor.name for tensor in model.graph.initializer}
    names = [value.name for value in model.graph.input if value.name not in weights]
    files = [folder / "test_data_set_0" / f"input_{index}.pb" for index in range(len(names))]
    return [(name, file) for name, file in zip(names, files) if file.exists()]


def time_onnx_runtime(folder, threads, seconds):
    """The timed runs of ONNX Runtime, in this process."""
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
    given = {}
    for name, file in inputs(folder):
        tensor = onnx.TensorProto()
        tensor.ParseFromString(file.read_bytes())
        given[name] = onnx.numpy_helper.to_array(tensor)
    for _ in range(WARM_RUNS):
        session.run(None, given)
    times = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        session.run(None, given)
        times.append(time.perf_counter() - start)
    return times


def time_ipuc(program, model, folder, threads, runs):
    """The timed runs of `ipuc bench`, in a process of its own."""
    command = [program, "bench", model, "--json", "--quiet", "--threads", threads, "--runs", runs]
    for name, file in inputs(folder):
        command += ["--input", f"{name}={file}"]
    result = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, check=True)
    return [run["seconds"] for run in json.loads(result.stdout)["runs"]][WARM_RUNS:]


def compare(program, folder, threads, rounds, seconds, scratch):
    """Medians of both sides, in seconds."""
    model = scratch / f"{folder.name}.ipu"
    if not model.exists():
        subprocess.run([program, "compile", "--quiet", folder / "model.onnx", "-o", model], check=True)
    ours, theirs = [], []
    first = statistics.median(time_ipuc(program, model, folder, threads, WARM_RUNS + 3))
    runs = WARM_RUNS + max(3, int(seconds / first))
    for _ in range(rounds):
        child = [sys.executable, __file__, "--child", folder, "--threads", threads, "--seconds", seconds]
        result = subprocess.run([str(part) for part in child], stdout=subprocess.PIPE, check=True)
        theirs += json.loads(result.stdout)
        ours += time_ipuc(program, model, folder, threads, runs)
    return statistics.median(ours), statistics.median(theirs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="?", type=pathlib.Path)
    parser.add_argument("--child", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--program", type=pathlib.Path, default=pathlib.Path("target/release/ipuc"))
    parser.add_argument("--scratch", type=pathlib.Path, default=pathlib.Path("target/peers"))
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of timed runs, a side and round")
    given = parser.parse_args()
    if given.child:
        json.dump(time_onnx_runtime(given.child, int(given.threads), given.seconds), sys.stdout)
        return
    if given.cases is None:
        parser.error("the folder of cases is missing")
    given.scratch.mkdir(parents=True, exist_ok=True)
    print(f"{'model':24}{'threads':>8}{'ipuc, ms':>12}{'ORT, ms':>12}{'ratio':>8}")
    for name in given.models.split(","):
        for threads in map(int, given.threads.split(",")):
            folder = given.cases / name
            ours, theirs = compare(given.program, folder, threads, given.rounds, given.seconds, given.scratch)
            line = f"{name:24}{threads:8}{ours * 1e3:12.3f}{theirs * 1e3:12.3f}{ours / theirs:8.2f}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
