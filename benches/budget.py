#!/usr/bin/env python3
"""What a budget costs in which everything fits: runs of small models with and without one, alternately.

    cargo build --release && python3 benches/budget.py target/release/ipuc

Prints, for each model of `fixtures/` below, the median time of a run without a budget, with one of 64 MiB, and how many times the
first the second is: the least median of each of several turns, since other work on the machine only makes runs longer.
It ends with 1 where a budget costs more than LIMIT.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

LIMIT = 1.10
TURNS = 10
RUNS = 200
FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "fixtures"
MODELS = [
    ("silero_vad_16k_op15", ["--state", "state=stateN"], ["--dim", "batch=1", "--dim", "sequence=576"]),
    ("ppocr_v2_cls", [], ["--dim", "x.0=1", "--dim", "x.2=48", "--dim", "x.3=192"]),
]


def median_seconds(program, file, arguments):
    """The median of the runs of one process."""
    command = [program, "bench", file, "--runs", str(RUNS), "--json", "--quiet", *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["median_seconds"]


def main():
    program = str(pathlib.Path(sys.argv[1]).resolve())
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for name, options, arguments in MODELS:
            file = f"{folder}/{name}.ipu"
            model = str(FIXTURES / name / "model.onnx")
            subprocess.run([program, "compile", model, "-o", file, "--quiet", *options], check=True, capture_output=True)
            free, bound = [], []
            for _ in range(TURNS):
                free.append(median_seconds(program, file, arguments))
                bound.append(median_seconds(program, file, [*arguments, "--memory", "64MiB"]))
            ratio = min(bound) / min(free)
            worst = max(worst, ratio)
            print(f"{name}: {min(free) * 1e6:.0f} us, within 64 MiB {min(bound) * 1e6:.0f} us: {ratio:.2f} times as long")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
