"""Random graphs against ONNX Runtime with its optimizations off.

    IPUC=target/debug/ipuc python3 tests/differential/fuzz.py [--seconds 60 | --count 10000] [--seed 1] [--keep DIR] [--folded]

Each graph is a handful of nodes over a few shapes and element types, with random attributes, of one of several operator sets; now
and then extents of its inputs are open. It is compiled and run by the program, and its outputs are compared within the tolerances
of `ipuc verify` with what ONNX Runtime computes node by node. Graphs that ONNX Runtime does not run, or whose outputs are not
finite, do not count. A graph that differs or that ends in a panic is kept in DIR; what is refused is counted by operator, with
one reason each. Exit code 1 where anything differed.

With `--folded` each graph is one node, with special numbers among its floats, and is run twice: with inputs, and with their values
stored in the model. What is computed while compiling must have the bits of what is run.
"""

import argparse
import collections
import multiprocessing
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import further
import kinds
import makers
import numpy as np
import onnx
import templates
from graph import Graph, run
from onnx import numpy_helper

MAKERS = [*makers.MAKERS, *further.MAKERS, *kinds.MAKERS, *templates.MAKERS]


def random_graph(seed, most_nodes):
    graph = Graph(np.random.default_rng(seed))
    for _ in range(int(graph.random.integers(1, most_nodes + 1))):
        graph.pick(*MAKERS)(graph)
    return graph


def store(folder, model, inputs, expected):
    """A model with a set of data, as the ONNX backend suite has them."""
    data = folder / "test_data_set_0"
    data.mkdir(parents=True, exist_ok=True)
    for old in data.iterdir():
        old.unlink()
    onnx.save(model, folder / "model.onnx")
    for role, values in [("input", inputs), ("output", expected)]:
        for number, (name, value) in enumerate(values.items()):
            (data / f"{role}_{number}.pb").write_bytes(numpy_helper.from_array(value, name).SerializeToString())


# What names a node that is not compiled, and why.
REFUSAL = re.compile(r"node `[^`]*` \(((?:ai|com)[\w.]*)\.(\w+), opset \d+\): (.*)")


def check(program, graph, folder):
    """`None` where ONNX Runtime does not run the whole, else `agrees`, `refused OPERATOR: why`, or what is wrong."""
    model, inputs, outputs = graph.model()
    if not outputs or run(model, inputs, outputs) is None:
        return None
    store(folder, model, inputs, {name: graph.values[name] for name in outputs})
    command = [program, "verify", folder / "model.onnx", "--data", folder, "--no-cache"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return "it does not end within 60 s"
    if done.returncode == 0:
        return "agrees"
    refusal = REFUSAL.search(done.stderr)
    if refusal and "panicked" not in done.stderr:
        return f"refused {refusal[1]}.{refusal[2]}: {refusal[3]}"
    return (done.stdout + done.stderr).strip()


# Numbers that end up in other branches of kernels.
SPECIAL = [-0.0, np.nan, np.inf, -np.inf, 1e-40, -1e-42, 3e38, -3.2e38, 6e4, 1.0, 0.5, 0.0]


def run_stored(program, model, inputs, folder):
    """What the program computes, by name; `None` and what it says where it does not."""
    onnx.save(model, folder / "model.onnx")
    command = [program, "run", folder / "model.onnx", "--no-cache", "--quiet", "-o", folder / "outputs.npz"]
    for number, (name, value) in enumerate(inputs.items()):
        np.save(folder / f"{number}.npy", value)
        command += ["--input", f"{name}={folder / str(number)}.npy"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        return None, done.stderr.strip()
    with np.load(folder / "outputs.npz") as stored:
        return {name: stored[name] for name in stored.files}, ""


def same_bits(one, two):
    if one.dtype != two.dtype or one.shape != two.shape:
        return False
    numbers = one.dtype.kind == "f"
    different = one.view(f"u{one.itemsize}") != two.view(f"u{two.itemsize}") if numbers else one != two
    return not (different & ~(np.isnan(one) & np.isnan(two)) if numbers else different).any()


def check_folded(program, graph, folder):
    """As `check`, for the values of one node that are computed while compiling."""
    if len(graph.nodes) != 1:
        return None
    model, inputs, outputs = graph.model()
    if not inputs or not outputs or any(value.dtype.kind not in "fiub" for value in inputs.values()):
        return None
    folder.mkdir(parents=True, exist_ok=True)
    inputs = {name: value.copy() for name, value in inputs.items()}
    for value in inputs.values():
        if value.dtype.kind == "f" and value.size and graph.random.random() < 0.7:
            places = graph.random.integers(0, value.size, 1 + value.size // 3)
            with np.errstate(over="ignore"):
                value.flat[places] = graph.random.choice(SPECIAL, len(places)).astype(value.dtype)
    found, reason = run_stored(program, model, inputs, folder)
    if found is None:
        # Sizes that special numbers stand for are refused by a run, too.
        return reason if "panicked" in reason else None
    folded = onnx.ModelProto()
    folded.CopyFrom(model)
    kept = [port for port in folded.graph.input if port.name not in inputs]
    del folded.graph.input[:]
    folded.graph.input.extend(kept)
    folded.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in inputs.items())
    again, reason = run_stored(program, folded, {}, folder)
    if again is None:
        return f"stored inputs: {reason}"
    different = [name for name in found if not same_bits(found[name], again[name])]
    return f"folded bits of {', '.join(different)} are others" if different else "agrees"


def report(counts, refused, operators, wrong):
    for operator, reasons in sorted(refused.items()):
        print(f"refused {operator}: {sum(reasons.values())}, such as: {reasons.most_common(1)[0][0]}")
    compared = counts["agrees"] + counts["wrong"]
    print(
        f"{compared} graphs with {len(operators)} operators are compared: {counts['agrees']} agree, {counts['wrong']} differ; "
        f"{counts['refused']} are refused, {counts['not counted']} do not run in ONNX Runtime"
    )
    if wrong:
        print("differ: " + " ".join(map(str, wrong)))


def compare(connection, program, keep, seed, folded):
    """Graphs from this seed on, one after the other: seed, operators, what came of it; before each its seed alone."""
    with tempfile.TemporaryDirectory() as scratch:
        while True:
            connection.send((seed, None, None))
            graph, compared = random_graph(seed, 1 if folded else 6), check_folded if folded else check
            result = compared(program, graph, pathlib.Path(scratch)) if graph.nodes else None
            if result and not result.startswith(("agrees", "refused ")):
                compared(program, graph, keep / str(seed))
            connection.send((seed, [(node.domain, node.op_type) for node in graph.nodes], result))
            seed += 1


def results(program, keep, seed, folded):
    """What `compare` sends, by a process of its own: on some inputs ONNX Runtime ends it."""
    while True:
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=compare, args=(theirs, program, keep, seed, folded), daemon=True)
        process.start()
        theirs.close()
        try:
            while True:
                seed, operators, result = ours.recv()
                if operators is not None:
                    yield seed, operators, result
        except EOFError:
            process.join()
            yield seed, [], None
            seed += 1
        finally:
            process.kill()


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--seconds", type=float, default=60)
    arguments.add_argument("--count", type=int, help="graphs to compare, however long that takes")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--keep", type=pathlib.Path, default=pathlib.Path("differential_failures"))
    arguments.add_argument("--folded", action="store_true", help="compare what is computed while compiling with what is run")
    given = arguments.parse_args()
    target = os.environ.get("CARGO_TARGET_DIR", "target")
    program = os.environ.get("IPUC", f"{target}/debug/ipuc")
    start = time.monotonic()
    counts, refused, operators, wrong = collections.Counter(), collections.defaultdict(collections.Counter), set(), []
    for seed, used, result in results(program, given.keep, given.seed * 1_000_000, given.folded):
        if result is None:
            counts["not counted"] += 1
        elif result.startswith("refused "):
            operator, reason = result.removeprefix("refused ").split(": ", 1)
            refused[operator][reason] += 1
            counts["refused"] += 1
        else:
            operators.update(used)
            counts["agrees" if result == "agrees" else "wrong"] += 1
            if result != "agrees":
                wrong.append(seed)
                print(f"seed {seed}: {' '.join(name for _, name in used)}: {result}", flush=True)
        done = counts["agrees"] + counts["wrong"]
        if done >= given.count if given.count else time.monotonic() > start + given.seconds:
            break
    report(counts, refused, operators, wrong)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
