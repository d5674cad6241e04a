#!/usr/bin/env python3
"""Time of runs against other engines, in the same minutes on the same machine.

    cargo build --release
    python3 benches/peers/main.py [CASES..] [--models a,b] [--engines onnxruntime,tract] [--threads 1,2] [--rounds 5] \\
        [--seconds 1] [--exporters torchscript,dynamo] [--no-generated] [--table FILE.md]

Everything that it needs is made in --scratch (`target/peers`): a Python environment with pinned packages
(`requirements.txt`; for the models `requirements-models.txt`, which brings torch), models of torchvision, timm and transformers
with random weights (`models.py`), and a small program over tract (`tract/`). What cannot be had is named, and the
others are compared without it. CASES are folders of further models, one folder each with `model.onnx` and
`test_data_set_0/input_K.pb`, as in the ONNX test suite. Of llama.cpp, which runs no ONNX, `benches/generate.py` and
`benches/llama.py` have the comparisons.

Each round starts one process of each engine, one after the other, so that all see the same state of the machine. A process
loads the model, runs it until it is warm, then times runs by itself; loading is not counted. Of all timed runs of all rounds
the medians are compared: a ratio is the peer's time over ours, so that above 1 ipuc is faster. *limit* is the time that
`ipuc bench` says the machine needs at least for the steps of the program (reading memory, multiply-accumulates by type,
measured in the same process), over the median: above 100 % where what is read lies in caches. The last lines have geometric means.
"""

import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import time
import venv

HERE = pathlib.Path(__file__).resolve().parent
ENGINES = ("onnxruntime", "tract")
# Runs before the timed ones.
WARM_RUNS = 2
# By default ONNX Runtime rounds activations to 8 bits where weights of 4 bits come through `DequantizeLinear`, and on processors without VNNI
# adds products of bytes in 16 bits that saturate. With these it does neither.
EXACT_OPTIONS = {"session.qdq_matmulnbits_accuracy_level": "1", "session.x64quantprecision": "1"}
# Types of inputs, as tract's program names them.
RAW_TYPES = {"float32": "f32", "int64": "i64", "int32": "i32", "uint8": "u8"}


class Missing(Exception):
    """Something that cannot be had, with the reason."""


def run(command, **options):
    """The output of a command; [Missing] with its last words where it fails."""
    try:
        result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True, **options)
    except FileNotFoundError as error:
        raise Missing(f"{command[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise Missing(f"{pathlib.Path(str(command[0])).name} does not end in {error.timeout:.0f} s") from error
    except subprocess.CalledProcessError as error:
        words = (error.stderr or error.stdout or "").strip().splitlines() or [f"exit code {error.returncode}"]
        raise Missing(words[-1][:300]) from error
    return result.stdout


# What the comparison needs.


def environment(scratch, requirements):
    """A Python with these packages."""
    folder = scratch / "python"
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    wanted = (HERE / requirements).read_text()
    done = folder / requirements
    if not done.exists() or done.read_text() != wanted:
        run([python, "-m", "pip", "install", "--quiet", "--requirement", HERE / requirements])
        done.write_text(wanted)
    return python


def tract_program(scratch):
    """The program that times tract."""
    target = scratch / "tract"
    run(["cargo", "build", "--release", "--manifest-path", HERE / "tract" / "Cargo.toml", "--target-dir", target])
    return target / "release" / ("peer-tract.exe" if os.name == "nt" else "peer-tract")


def generated(python, scratch, exporters, models):
    """Folders of the models of `models.py`; prints what is missing."""
    command = [python, HERE / "models.py", scratch / "models", "--exporters", exporters]
    command += ["--models", models] if models else []
    result = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, text=True, check=False)
    return [pathlib.Path(line) for line in result.stdout.splitlines()]


# Engines. The child runs in the Python that has the packages.


def inputs(folder):
    """Names, files and arrays of the inputs of the first data set."""
    import onnx

    model = onnx.load(folder / "model.onnx", load_external_data=False)
    weights = {tensor.name for tensor in model.graph.initializer}
    names = [value.name for value in model.graph.input if value.name not in weights]
    found = []
    for index, name in enumerate(names):
        file = folder / "test_data_set_0" / f"input_{index}.pb"
        if not file.exists():
            continue
        tensor = onnx.TensorProto()
        tensor.ParseFromString(file.read_bytes())
        found.append((name, file, onnx.numpy_helper.to_array(tensor)))
    return found


def time_onnx_runtime(folder, threads, seconds, equal_precision):
    """The timed runs of ONNX Runtime, in this process."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    for key, value in EXACT_OPTIONS.items() if equal_precision else ():
        options.add_session_config_entry(key, value)
    session = onnxruntime.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
    given = {name: array for name, _, array in inputs(folder)}
    for _ in range(WARM_RUNS):
        session.run(None, given)
    times = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        session.run(None, given)
        times.append(time.perf_counter() - start)
    return times


def describe(folder, scratch):
    """The inputs as ipuc and tract take them: `name=file`, and `type:shape:raw file`."""
    ours, raw = [], []
    for index, (name, file, array) in enumerate(inputs(folder)):
        ours.append(f"{name}={file}")
        kind = RAW_TYPES.get(str(array.dtype))
        elements = scratch / f"{folder.name}.{index}.raw"
        elements.write_bytes(array.tobytes())
        raw.append(f"{kind}:{'x'.join(map(str, array.shape))}:{elements}" if kind else None)
    return {"ours": ours, "raw": None if None in raw else raw}


class Comparison:
    """One model, with a program of ours and the inputs."""

    def __init__(self, given, python, tract, folder):
        self.given, self.python, self.tract, self.folder = given, python, tract, folder
        self.model = given.scratch / "compiled" / f"{folder.name}.ipu"
        self.model.parent.mkdir(parents=True, exist_ok=True)
        newest = max(file.stat().st_mtime for file in (given.program, folder / "model.onnx"))
        if not self.model.exists() or self.model.stat().st_mtime < newest:
            run([given.program, "compile", "--quiet", folder / "model.onnx", "-o", self.model])
        child = [python, __file__, "--child", "describe", folder, "--scratch", given.scratch]
        self.inputs = json.loads(run(child))

    def ours(self, threads, runs):
        command = [self.given.program, "bench", self.model, "--json", "--quiet", "--threads", threads, "--runs", runs]
        for value in self.inputs["ours"]:
            command += ["--input", value]
        summary = json.loads(run(command, timeout=300))
        return [one["seconds"] for one in summary["runs"]][WARM_RUNS:], summary["limit_share"]

    def theirs(self, engine, threads):
        seconds = self.given.seconds
        if engine == "onnxruntime":
            child = [self.python, __file__, "--child", engine, self.folder, "--threads", threads, "--seconds", seconds]
            child += ["--equal-precision"] if self.given.equal_precision else []
            return json.loads(run(child, timeout=300))
        if threads != 1:
            raise Missing("it has one thread")
        if self.inputs["raw"] is None:
            raise Missing("its program does not read these inputs")
        return json.loads(run([self.tract, self.folder / "model.onnx", seconds, *self.inputs["raw"]], timeout=300))

    def measure(self, engines, threads):
        """Medians by engine, in seconds, and the share of the limits; engines that cannot are told."""
        times, shares, gone = {engine: [] for engine in ("ipuc", *engines)}, [], {}
        first, _ = self.ours(threads, WARM_RUNS + 3)
        runs = WARM_RUNS + max(3, int(self.given.seconds / statistics.median(first)))
        for _ in range(self.given.rounds):
            for engine in engines:
                if engine in gone:
                    continue
                try:
                    times[engine] += self.theirs(engine, threads)
                except Missing as error:
                    gone[engine] = str(error)
            own, share = self.ours(threads, runs)
            times["ipuc"] += own
            shares.append(share)
        medians = {engine: statistics.median(all) for engine, all in times.items() if all and engine not in gone}
        share = statistics.median(shares) if None not in shares else None
        return medians, share, gone


# The table.


def row(name, threads, medians, share, engines):
    ours = medians["ipuc"]
    ratio = lambda engine: f"{medians[engine] / ours:.2f}" if engine in medians else "-"
    limit = "-" if share is None else f"{100 * share:.0f} %"
    return [name, str(threads), f"{ours * 1e3:.3f}", *map(ratio, engines), limit]


def geometric(values):
    return math.exp(statistics.fmean(map(math.log, values)))


def means(rows, threads, engines):
    """Lines with the geometric mean, the least ratio and how often each engine is ahead."""
    for engine in engines:
        known = [(medians[engine] / medians["ipuc"], name) for name, of, medians, _ in rows if of == threads and engine in medians]
        if known:
            least = min(known)
            ahead = sum(ratio >= 1 for ratio, _ in known)
            yield (
                f"{engine}, {threads} threads: {geometric([ratio for ratio, _ in known]):.2f} in the geometric mean of "
                f"{len(known)} models, ipuc ahead on {ahead}, least {least[0]:.2f} ({least[1]})"
            )


def compare(given, python, tract, folders, engines):
    named = {"onnxruntime": "equal precision"} if given.equal_precision else {}
    heading = ["model", "threads", "ipuc, ms", *(named.get(engine, engine) for engine in engines), "limit"]
    print("".join(f"{title:>12}" if index else f"{title:36}" for index, title in enumerate(heading)), flush=True)
    rows = []
    for folder in folders:
        try:
            comparison = Comparison(given, python, tract, folder)
            for threads in map(int, given.threads.split(",")):
                medians, share, gone = comparison.measure(engines, threads)
                rows.append((folder.name, threads, medians, share))
                cells = row(folder.name, threads, medians, share, engines)
                print("".join(f"{cell:>12}" if index else f"{cell:36}" for index, cell in enumerate(cells)), flush=True)
                for engine, reason in gone.items():
                    if reason != "it has one thread":
                        print(f"  {engine} is missing: {reason}", flush=True)
        except Missing as error:
            print(f"{folder.name} is missing: {error}", flush=True)
    for threads in map(int, given.threads.split(",")):
        for line in means(rows, threads, engines):
            print(line)
    if given.table:
        lines = ["| " + " | ".join(heading) + " |", "| --- " * len(heading) + "|"]
        lines += ["| " + " | ".join(row(*one, engines)) + " |" for one in rows]
        given.table.write_text("\n".join(lines) + "\n")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", type=pathlib.Path)
    parser.add_argument("--child", choices=("onnxruntime", "describe"), help=argparse.SUPPRESS)
    parser.add_argument("--program", type=pathlib.Path, default=pathlib.Path("target/release/ipuc"))
    parser.add_argument("--scratch", type=pathlib.Path, default=pathlib.Path("target/peers"))
    parser.add_argument("--models", help="names of cases and of generated models; all where it is left out")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--exporters", default="torchscript,dynamo")
    parser.add_argument("--no-generated", action="store_true", help="cases only, without torch")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument(
        "--equal-precision",
        action="store_true",
        help="ONNX Runtime without its roundings of activations to 8 bits and its sums that saturate at 16",
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of timed runs, an engine and round")
    parser.add_argument("--table", type=pathlib.Path, help="write the rows as a table for README.md, too")
    return parser, parser.parse_args()


def main():
    parser, given = arguments()
    if given.child == "onnxruntime":
        times = time_onnx_runtime(given.cases[0], int(given.threads), given.seconds, given.equal_precision)
        json.dump(times, sys.stdout)
        return
    given.scratch.mkdir(parents=True, exist_ok=True)
    if given.child == "describe":
        json.dump(describe(given.cases[0], given.scratch), sys.stdout)
        return
    engines = [engine for engine in given.engines.split(",") if engine]
    unknown = [engine for engine in engines if engine not in ENGINES]
    if unknown:
        parser.error(f"there is no engine {', '.join(unknown)}; there are {', '.join(ENGINES)}")
    if not given.program.exists():
        parser.error(f"{given.program} is missing: cargo build --release")
    try:
        python = environment(given.scratch, "requirements.txt")
    except Missing as error:
        sys.exit(f"the Python environment is missing: {error}")
    tract = None
    if "tract" in engines:
        try:
            tract = tract_program(given.scratch)
        except Missing as error:
            print(f"tract is missing: {error}", flush=True)
            engines.remove("tract")
    wanted = set(given.models.split(",")) if given.models else None
    named = lambda folder: wanted is None or folder.name in wanted or folder.name.rpartition(".")[0] in wanted
    folders = [one for case in given.cases for one in sorted(case.iterdir()) if (one / "model.onnx").exists()]
    if not given.no_generated:
        try:
            makers = environment(given.scratch, "requirements-models.txt")
            folders += generated(makers, given.scratch, given.exporters, None)
        except Missing as error:
            print(f"generated models are missing: {error}", flush=True)
    compare(given, python, tract, [folder for folder in folders if named(folder)], engines)


if __name__ == "__main__":
    main()
