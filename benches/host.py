#!/usr/bin/env python3
"""What `ipuc simulate` predicts for this machine beside what `ipuc bench` measures on it.

    cargo build --release
    pip install onnx
    python3 benches/host.py CASES [--models a,b] [--threads N] [--rounds 3] [--runs 10] [--seconds 0.3]

CASES is a folder with one folder a model: `model.onnx` and `test_data_set_0/input_K.pb`, as in the ONNX test suite.

In each round the machine is calibrated once (`ipuc targets calibrate`), and every model is simulated and measured, one after
the other, so that all of them see the same state of the machine. The median over the rounds of what is predicted is compared with
the least of the medians that are measured, as what else runs on a machine adds to these: the error is how far the greater of both
is above the other. Models that are refused are listed with the reason.
"""

import argparse
import json
import math
import pathlib
import statistics
import subprocess
import tempfile


def inputs(folder):
    """Names and files of the inputs of the first data set, and the sizes that they give to open dimensions."""
    import onnx

    model = onnx.load(folder / "model.onnx", load_external_data=False)
    weights = {tensor.name for tensor in model.graph.initializer}
    values = [value for value in model.graph.input if value.name not in weights]
    given, sizes = [], {}
    for index, value in enumerate(values):
        file = folder / "test_data_set_0" / f"input_{index}.pb"
        if not file.exists() or not value.type.HasField("tensor_type"):
            continue
        given.append((value.name, file))
        tensor = onnx.TensorProto()
        tensor.ParseFromString(file.read_bytes())
        for axis, (dimension, extent) in enumerate(zip(value.type.tensor_type.shape.dim, tensor.dims)):
            if any(letter.isalnum() for letter in dimension.dim_param):
                sizes[dimension.dim_param] = extent
            elif dimension.dim_value <= 0:
                # One without a name is named after its place.
                sizes["%s.%d" % (value.name, axis)] = extent
    return given, sizes


def call(program, *arguments):
    """What a command prints as JSON, or its error."""
    command = [str(part) for part in (program, *arguments, "--json", "--quiet")]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines() or ["no message"]
        return None, lines[0]
    return json.loads(result.stdout), None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=pathlib.Path)
    parser.add_argument("--program", type=pathlib.Path, default=pathlib.Path("target/release/ipuc"))
    parser.add_argument("--models")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", type=int, default=10, help="least number of runs of a model in a round")
    parser.add_argument("--seconds", type=float, default=0.3, help="least time that these take together")
    arguments = parser.parse_args()
    program = arguments.program.resolve()
    wanted = arguments.models.split(",") if arguments.models else None
    folders = [folder for folder in sorted(arguments.cases.iterdir()) if (folder / "model.onnx").exists()]
    folders = [folder for folder in folders if wanted is None or folder.name in wanted]
    threads = ["--threads", arguments.threads] if arguments.threads else []
    predicted, measured, refused = {}, {}, {}
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        for _ in range(arguments.rounds):
            _, error = call(program, "targets", "calibrate", *threads, "-o", scratch / "host.toml")
            if error:
                raise SystemExit(error)
            for folder in folders:
                name = folder.name
                if name in refused:
                    continue
                given, sizes = inputs(folder)
                model = scratch / f"{name}.ipu"
                if not model.exists():
                    _, refused_by = call(program, "compile", folder / "model.onnx", "-o", model)
                    if refused_by:
                        refused[name] = refused_by
                        continue
                dimensions = [part for size in sizes.items() for part in ("--dim", "%s=%d" % size)]
                simulated, error = call(program, "simulate", model, "--target", scratch / "host.toml", *dimensions)
                if error:
                    refused[name] = error
                    continue
                files = [part for name_file in given for part in ("--input", "%s=%s" % name_file)]
                runs = arguments.runs
                run, error = call(program, "bench", model, *threads, "--runs", runs, *files)
                if error:
                    refused[name] = error
                    continue
                enough = math.ceil(arguments.seconds / statistics.median(one["seconds"] for one in run["runs"]))
                if enough > runs:
                    run, error = call(program, "bench", model, *threads, "--runs", enough, *files)
                    if error:
                        refused[name] = error
                        continue
                predicted.setdefault(name, []).append(simulated["seconds"])
                measured.setdefault(name, []).append(statistics.median(one["seconds"] for one in run["runs"]))
    errors = []
    print("| model | predicted ms | measured ms | ratio |")
    print("| --- | --- | --- | --- |")
    for name in predicted:
        left, right = statistics.median(predicted[name]), min(measured[name])
        ratio = left / right
        errors.append(max(ratio, 1 / ratio) - 1)
        print(f"| {name} | {left * 1e3:.3f} | {right * 1e3:.3f} | {ratio:.2f} |")
    for name, reason in refused.items():
        print(f"| {name} | refused | | {reason} |")
    if errors:
        within = sum(error <= 0.25 for error in errors)
        print(f"\nmedian error {statistics.median(errors) * 100:.1f} %, {within} of {len(errors)} within 25 %")


if __name__ == "__main__":
    main()
