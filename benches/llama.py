#!/usr/bin/env python3
"""Weights streamed within a limit of memory, against llama.cpp under the same limit.

    cargo build --release
    pip install numpy onnx cmake ninja
    pip download --no-deps --no-binary llama-cpp-python llama-cpp-python && tar xf llama_cpp_python-*.tar.gz
    cmake -S llama_cpp_python-*/vendor/llama.cpp -B BUILD -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \\
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_CURL=OFF
    ninja -C BUILD llama-bench
    python3 benches/llama.py BUILD WORK [--limits 25,50,75] [--rounds 3] [--passes 5] [--threads 2]
    python3 benches/llama.py BUILD WORK --layers 44 --first [--limits 50,110]

WORK is a folder on the disk that is measured, with 7 GB free. It keeps the models for the next time.

Both are a random Llama with 1.1 billion weights in float16 (the shapes of TinyLlama), which decodes token by token: theirs
mapped, ours a folder as onnxruntime-genai has them, whose external data are those very bytes. Activations and caches are f32
on our side, f16 caches on theirs. A token uses all matrices once, the embedding but by row.

Each round starts one process of either side in a memory cgroup of its own (version 1 or 2, as root), with nothing of
the files in the page cache. Limits are percents of the bytes of all matrices. Ours is told `--memory` of the limit less
32 MiB, twice what a process was seen to have besides its budget. One pass, or token, warms up and is not counted.
llama.cpp runs with each number of threads up to ours, and the one that is fastest here counts: its threads wait for
each other without spinning, which would collapse where anything else runs. Printed are medians over all rounds:

- *raw*: GB a second of direct reads of our file, before and after each round;
- *llama.cpp*, *ipuc*: GB of matrices that are used a second, and the *ratio*; *least* is that of the least times, which
  leaves out what other processes, or a host that hands out fresh memory, do to either side;
- *device*: what our passes read a second, of the raw rate;
- *peak*: most memory that our cgroup was charged;
- *batch*: tokens a second of eight texts side by side, over those of one, under the same limit (`generate --batch`, without
  the time for prompts of one token each).

With --first, what is printed is the time of a process that generates one token with nothing cached, over that of reading what
it has to read (the matrices, once) as fast as the disk gives them, at budgets that are percents of the matrices: 44 layers are
4.1 GB.

Where memory cgroups are missing, or with --reader, a process that maps the file and touches its pages in order takes
the place of llama.cpp; it computes nothing. Without a cgroup it gives up itself what lies further back than the limit,
which costs less than a kernel that has to look for memory.
"""

import argparse
import contextlib
import ctypes
import json
import mmap
import os
import pathlib
import statistics
import struct
import subprocess
import sys
import threading
import time

LAYERS = 22
WIDTH = 2048
KEY_WIDTH = 256
HEADS = 32
KEY_HEADS = 4
INNER_WIDTH = 5632
VOCABULARY = 32000
CONTEXT = 2048
# Name in a layer, inputs, outputs.
LAYER_MATRICES = (
    ("attn_q", WIDTH, WIDTH),
    ("attn_k", WIDTH, KEY_WIDTH),
    ("attn_v", WIDTH, KEY_WIDTH),
    ("attn_output", WIDTH, WIDTH),
    ("ffn_gate", WIDTH, INNER_WIDTH),
    ("ffn_up", WIDTH, INNER_WIDTH),
    ("ffn_down", INNER_WIDTH, WIDTH),
)
MATRICES, MATRIX_BYTES = [], 0
# Least ratio to llama.cpp, by percent of the weights.
GOALS = {25: 1.7, 50: 2.2, 75: 3.5}
# Texts of a batch, and tokens of each.
BATCH = 8
BATCH_TOKENS = 6
# Twice what a process was seen to have besides its budget.
SLACK_BYTES = 32 << 20
# What the mapping reader touches, and gives up, at a time.
READER_BYTES = 16 << 20
BLOCK_BYTES = 2 << 20
RAW_BYTES = 2 << 30
# Types of GGUF, and its alignment of tensors.
GGUF_U32, GGUF_F32, GGUF_STRING = 4, 6, 8
TENSOR_F32, TENSOR_F16 = 0, 1
GGUF_ALIGNMENT = 32


def set_layers(count):
    """Have models of so many layers."""
    global LAYERS, MATRICES, MATRIX_BYTES
    LAYERS = count
    MATRICES = [(f"blk.{layer}.{name}", *shape) for layer in range(LAYERS) for name, *shape in LAYER_MATRICES]
    MATRICES.append(("output", WIDTH, VOCABULARY))
    MATRIX_BYTES = sum(2 * inputs * outputs for _, inputs, outputs in MATRICES)


def gguf_header(tensors):
    """The bytes before the data of these tensors (name, extents with the innermost first, type, offset)."""

    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    def field(key, kind, value):
        stored = text(value) if kind == GGUF_STRING else struct.pack("<I" if kind == GGUF_U32 else "<f", value)
        return text(key) + struct.pack("<I", kind) + stored

    fields = [
        field("general.architecture", GGUF_STRING, "llama"),
        field("llama.vocab_size", GGUF_U32, VOCABULARY),
        field("llama.context_length", GGUF_U32, CONTEXT),
        field("llama.embedding_length", GGUF_U32, WIDTH),
        field("llama.block_count", GGUF_U32, LAYERS),
        field("llama.feed_forward_length", GGUF_U32, INNER_WIDTH),
        field("llama.rope.dimension_count", GGUF_U32, WIDTH // HEADS),
        field("llama.attention.head_count", GGUF_U32, HEADS),
        field("llama.attention.head_count_kv", GGUF_U32, KEY_HEADS),
        field("llama.attention.layer_norm_rms_epsilon", GGUF_F32, 1e-5),
        field("tokenizer.ggml.model", GGUF_STRING, "no_vocab"),
    ]
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields)) + b"".join(fields)
    for name, extents, kind, offset in tensors:
        header += text(name) + struct.pack("<I", len(extents))
        header += struct.pack(f"<{len(extents)}Q", *extents) + struct.pack("<IQ", kind, offset)
    return header + bytes(-len(header) % GGUF_ALIGNMENT)


def make_gguf(path):
    """Write the random Llama, if it is not there; return where the data of each matrix lie in the file."""
    import numpy

    tensors, offset = [], 0
    for name, inputs, outputs in [("token_embd", WIDTH, VOCABULARY)] + MATRICES:
        tensors.append((f"{name}.weight", (inputs, outputs), TENSOR_F16, offset))
        offset += 2 * inputs * outputs
    norms = [f"blk.{layer}.{name}" for layer in range(LAYERS) for name in ("attn_norm", "ffn_norm")]
    for name in norms + ["output_norm"]:
        tensors.append((f"{name}.weight", (WIDTH,), TENSOR_F32, offset))
        offset += 4 * WIDTH
    header = gguf_header(tensors)
    if not path.exists():
        random = numpy.random.default_rng(1)
        unfinished = path.with_suffix(".part")
        with open(unfinished, "wb") as file:
            file.write(header)
            for _, extents, kind, _ in tensors:
                if kind == TENSOR_F32:
                    numpy.ones(extents, numpy.float32).tofile(file)
                    continue
                values = random.random(extents[0] * extents[1], numpy.float32)
                # Variance 1 over the inputs: what comes out of a product is as large as what goes in.
                ((values - 0.5) * (12 / extents[0]) ** 0.5).astype(numpy.float16).tofile(file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(path)
    return {name.removesuffix(".weight"): len(header) + offset for name, _, _, offset in tensors}


def make_folder(folder, data, offsets):
    """Write the model of the same matrices, as onnxruntime-genai has language models; its matrices lie in the file `data` there.

    The bytes of a matrix are those of llama.cpp's, read as its transpose, which for random numbers is another such matrix.
    """
    import numpy
    import onnx
    from onnx import TensorProto, helper

    nodes, size = [], WIDTH // HEADS
    angles = numpy.arange(CONTEXT)[:, None] * 10000.0 ** (-numpy.arange(size // 2) / (size // 2))
    numbers = {"norm": numpy.ones(WIDTH, numpy.float32), "cos": numpy.cos(angles), "sin": numpy.sin(angles)}
    numbers = {name: array.astype(numpy.float32) for name, array in numbers.items()}
    numbers |= {"one": numpy.array([1], numpy.int64), "axis": numpy.array([1], numpy.int64)}
    initializers = [onnx.numpy_helper.from_array(array, name) for name, array in numbers.items()]

    def node(operator, inputs, output, domain="", **attributes):
        outputs = [output] if isinstance(output, str) else output
        nodes.append(helper.make_node(operator, inputs, outputs, name=outputs[0], domain=domain, **attributes))
        return outputs[0]

    def product(row, name):
        return node("MatMul", [row, node("Cast", [name], f"{name}.f32", to=TensorProto.FLOAT)], f"{name}.out")

    def normal(row, name):
        return node("SimplifiedLayerNormalization", [row, "norm"], name, axis=-1, epsilon=1e-5)

    for name, inputs, outputs in [("token_embd", VOCABULARY, WIDTH)] + MATRICES:
        weight = TensorProto(name=name, dims=[inputs, outputs], data_type=TensorProto.FLOAT16)
        weight.data_location = TensorProto.EXTERNAL
        for key, value in (("location", data), ("offset", offsets[name]), ("length", 2 * inputs * outputs)):
            weight.external_data.add(key=key, value=str(value))
        initializers.append(weight)
    last = node("Sub", [node("ReduceSum", ["attention_mask", "axis"], "seen", keepdims=0), "one"], "last")
    last = node("Cast", [last], "last_key", to=TensorProto.INT32)
    total = node("Shape", ["attention_mask"], "total_shape", start=1, end=2)
    total = node("Cast", [node("Squeeze", [total], "total")], "total_length", to=TensorProto.INT32)
    row = node("Cast", [node("Gather", ["token_embd", "input_ids"], "embedded")], "row", to=TensorProto.FLOAT)
    caches = []
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        before = normal(row, f"{block}.attn_norm")
        rows = [product(before, f"{block}.attn_{name}") for name in "qkv"]
        past, present = ([f"{name}.{layer}.{kind}" for kind in ("key", "value")] for name in ("past_key_values", "present"))
        caches.append((past, present))
        attended = node("GroupQueryAttention", [*rows, *past, last, total, "cos", "sin"], [f"{block}.attended", *present],
                        "com.microsoft", num_heads=HEADS, kv_num_heads=KEY_HEADS, do_rotary=1)
        row = node("Add", [row, product(attended, f"{block}.attn_output")], f"{block}.middle")
        before = normal(row, f"{block}.ffn_norm")
        gate, up = (product(before, f"{block}.ffn_{name}") for name in ("gate", "up"))
        open_share = node("Sigmoid", [gate], f"{block}.open_share")
        gated = node("Mul", [node("Mul", [gate, open_share], f"{block}.swish"), up], f"{block}.gated")
        row = node("Add", [row, product(gated, f"{block}.ffn_down")], f"{block}.end")
    head = product(normal(row, "output_norm"), "output")
    node("Identity", [head], "logits")
    port = helper.make_tensor_value_info
    integers = [port("input_ids", TensorProto.INT64, ["batch", "sequence"])]
    integers += [port("attention_mask", TensorProto.INT64, ["batch", "total"])]
    cache = lambda names, extent: [port(name, TensorProto.FLOAT, ["batch", KEY_HEADS, extent, size]) for name in names]
    inputs = integers + [one for past, _ in caches for one in cache(past, "past")]
    outputs = [port("logits", TensorProto.FLOAT, ["batch", "sequence", VOCABULARY])]
    outputs += [one for _, present in caches for one in cache(present, "all")]
    graph = helper.make_graph(nodes, "llama", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    named = lambda kind: {f"{kind}_{one}_names": f"{'past_key_values' if kind == 'past' else kind}.%d.{one}" for one in ("key", "value")}
    decoder = {"filename": "model.onnx", "outputs": {"logits": "logits", **named("present")},
               "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask", **named("past")}}
    config = {"model": {"type": "llama", "context_length": CONTEXT, "eos_token_id": 0, "decoder": decoder}, "search": {}}
    (folder / "genai_config.json").write_text(json.dumps(config))
    tokens = {"type": "WordLevel", "vocab": {f"w{number}": number for number in range(VOCABULARY)}, "unk_token": "w1"}
    tokenizer = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": tokens}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


class Group:
    """A new memory cgroup with a limit."""

    def __init__(self, limit):
        first = pathlib.Path("/sys/fs/cgroup/memory")
        self.second_version = not (first / "memory.limit_in_bytes").exists()
        root = pathlib.Path("/sys/fs/cgroup") if self.second_version else first
        self.folder = root / f"llama-bench-{os.getpid()}"
        if self.second_version:
            (root / "cgroup.subtree_control").write_text("+memory")
        self.folder.mkdir()
        try:
            name = "memory.max" if self.second_version else "memory.limit_in_bytes"
            (self.folder / name).write_text(str(limit))
            for name, most in (("memory.swap.max", 0), ("memory.memsw.limit_in_bytes", limit)):
                if (self.folder / name).exists():
                    (self.folder / name).write_text(str(most))
        except OSError:
            self.folder.rmdir()
            raise

    def run(self, command):
        """What this command prints when it runs in the group."""
        # The shell enters the group and then becomes the program.
        return printed(["sh", "-c", 'echo $$ > "$0" && exec "$@"', self.folder / "cgroup.procs", *command])

    def peak(self):
        """Most bytes that the group was charged, page cache included; None where the kernel does not say."""
        file = self.folder / ("memory.peak" if self.second_version else "memory.max_usage_in_bytes")
        return int(file.read_text()) if file.exists() else None

    def remove(self):
        """Remove the group, whose processes may take a moment to leave it."""
        for _ in range(100):
            with contextlib.suppress(OSError):
                return self.folder.rmdir()
            time.sleep(0.05)
        raise SystemExit(f"{self.folder} cannot be removed")


def has_groups():
    """Whether memory cgroups can be made here."""
    try:
        Group(1 << 30).remove()
    except OSError:
        return False
    return True


def printed(command):
    """What a command prints on its standard output."""
    result = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if result.returncode:
        raise SystemExit(f"{command[0]} ended with {result.returncode}:\n{result.stderr.decode()[-2000:]}")
    return result.stdout


def under_limit(limit, files, command):
    """What a command prints under a limit, with nothing of the files cached before; and the peak of its memory."""
    for path in files:
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    group = Group(limit)
    try:
        return group.run(command), group.peak()
    finally:
        group.remove()


def seconds_of_llama(given, limit, files):
    """Seconds of each token of llama.cpp, by number of threads."""
    program = given.build / "bin" / "llama-bench"
    # Newer versions have one option for all ways to load a file.
    mapped = ["-lm", "mmap"] if b"--load-mode" in printed([program, "--help"]) else ["-mmp", 1]
    command = ["env", "OMP_WAIT_POLICY=passive", program, "-m", files[0], *mapped]
    command += ["-ngl", 0, "-p", 0, "-n", 1, "-r", given.passes, "-o", "json"]
    command += ["-t", ",".join(str(threads) for threads in range(1, given.threads + 1))]
    text, _ = under_limit(limit, files, command)
    return {test["n_threads"]: [each * 1e-9 for each in test["samples_ns"]] for test in json.loads(text)}


def passes_of_ipuc(given, limit, files):
    """The passes as `ipuc bench` reports them, and the peak of its memory."""
    command = [given.program, "bench", files[1], "--json", "--quiet", "--threads", given.threads]
    command += ["--memory", limit - SLACK_BYTES, "--runs", given.passes, "--entry", "decode"]
    for dimension, extent in (("batch", 1), ("sequence", 1), ("past", 0), ("total", 1)):
        command += ["--dim", f"{dimension}={extent}"]
    if given.has_groups:
        text, peak = under_limit(limit, files, command)
        return json.loads(text)["runs"], peak
    result = json.loads(printed(command))
    return result["runs"], result["peak_rss_bytes"]


def rate_of_batch(given, limit, files, size):
    """Tokens a second of this many texts side by side."""
    prompts = given.work / f"prompts.{size}.txt"
    prompts.write_text("".join(f"w{number + 2}\n" for number in range(size)))
    command = [given.program, "generate", files[1], "--batch", prompts, "--batch-size", size, "--json", "--quiet"]
    command += ["--max-tokens", BATCH_TOKENS, "--ignore-end", "--threads", given.threads, "--memory", limit - SLACK_BYTES]
    text = under_limit(limit, files, command)[0] if given.has_groups else printed(command)
    return json.loads(text)["tokens_per_second"]


def seconds_of_reader(given, limit, files):
    """Seconds of each pass of the mapping reader, which has one thread."""
    command = [sys.executable, __file__, files[0], "-", "--read", limit, "--passes", given.passes]
    if given.has_groups:
        text, _ = under_limit(limit, files, command)
    else:
        text = printed([*command, "--drop-behind"])
    return {1: json.loads(text)}


def read_mapped(path, limit, passes, drop_behind):
    """Map a file and touch its pages in order; the seconds of each pass but the first.

    With `drop_behind` it gives up what lies further back than the limit, as a kernel that evicts what was used least
    recently.
    """
    import numpy

    with open(path, "rb") as file:
        file_map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        file_map.madvise(mmap.MADV_SEQUENTIAL)
        bytes_of_map = numpy.frombuffer(file_map, numpy.uint8)
        blocks = -(-len(bytes_of_map) // READER_BYTES)
        seconds = []
        for _ in range(passes + 1):
            start = time.perf_counter()
            for block in range(blocks):
                offset = block * READER_BYTES
                bytes_of_map[offset : offset + READER_BYTES : mmap.PAGESIZE].sum()
                if drop_behind:
                    offset = (block - limit // READER_BYTES) % blocks * READER_BYTES
                    length = min(READER_BYTES, len(bytes_of_map) - offset)
                    file_map.madvise(mmap.MADV_DONTNEED, offset, length)
                    os.posix_fadvise(file.fileno(), offset, length, os.POSIX_FADV_DONTNEED)
            # The file holds the embedding as well, which a token does not use.
            seconds.append((time.perf_counter() - start) * MATRIX_BYTES / len(bytes_of_map))
        return seconds[1:]


class Raw:
    """Direct reads of a file from its begin on, into memory on huge pages that was touched before."""

    def __init__(self, path):
        self.file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        self.memory = mmap.mmap(-1, 9 * BLOCK_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.memory.madvise(mmap.MADV_HUGEPAGE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        first = -address % BLOCK_BYTES
        view = memoryview(self.memory)
        self.blocks = [view[first + index * BLOCK_BYTES :][:BLOCK_BYTES] for index in range(8)]
        for block in self.blocks:
            block[:] = bytes([1]) * BLOCK_BYTES
        self.length = min(os.fstat(self.file).st_size // BLOCK_BYTES * BLOCK_BYTES, RAW_BYTES)

    def rate(self):
        """Bytes a second with the best number of reads in flight."""
        return max(self.rate_of(in_flight) for in_flight in (1, 2, 4, 8))

    def rate_of(self, in_flight):
        """Bytes a second with this many threads that each read the next block of their own."""

        def read(lane):
            for offset in range(lane * BLOCK_BYTES, self.length, in_flight * BLOCK_BYTES):
                if os.preadv(self.file, [self.blocks[lane]], offset) != BLOCK_BYTES:
                    raise OSError("a direct read ended early")

        threads = [threading.Thread(target=read, args=(lane,)) for lane in range(in_flight)]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.length / (time.perf_counter() - start)


def compare(given, percent, files, raw, theirs):
    """Run both sides under one limit and print the row."""
    limit = MATRIX_BYTES * percent // 100
    raw_rates, tokens, passes, peaks, batches = [raw.rate()], {}, [], [], []
    for _ in range(given.rounds):
        for threads, seconds in theirs(given, limit, files).items():
            tokens.setdefault(threads, []).extend(seconds)
        runs, peak = passes_of_ipuc(given, limit, files)
        passes += runs
        peaks.append(peak)
        batches.append(rate_of_batch(given, limit, files, BATCH) / rate_of_batch(given, limit, files, 1))
        raw_rates.append(raw.rate())
    threads = min(tokens, key=lambda threads: statistics.median(tokens[threads]))
    their_median = statistics.median(tokens[threads])
    their_least = min(min(seconds) for seconds in tokens.values())
    our_median = statistics.median(run["seconds"] for run in passes)
    our_least = min(run["seconds"] for run in passes)
    raw_rate = statistics.median(raw_rates)
    device_rate = statistics.median(run["bytes_read"] / run["seconds"] for run in passes)
    cells = [f"{percent} %", limit >> 20, f"{raw_rate / 1e9:.2f}"]
    cells += [threads, f"{MATRIX_BYTES / their_median / 1e9:.2f}", f"{MATRIX_BYTES / our_median / 1e9:.2f}"]
    cells += [f"{their_median / our_median:.2f}", GOALS.get(percent, "-"), f"{their_least / our_least:.2f}"]
    cells += [f"{device_rate / raw_rate:.2f}", max(peaks) >> 20 if all(peaks) else "-"]
    cells.append(f"{statistics.median(batches):.2f}")
    row(cells)


def first_token(given, percent, file, raw):
    """Run a process for one token with nothing cached and print the row."""
    ratios, times, rates = [], [], []
    for _ in range(given.rounds):
        before = raw.rate()
        with open(file, "rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        command = [given.program, "generate", file, "--prompt", "w2", "--max-tokens", 1, "--threads", given.threads]
        begun = time.perf_counter()
        printed([*command, "--memory", MATRIX_BYTES * percent // 100, "--quiet"])
        times.append(time.perf_counter() - begun)
        rates.append((before + raw.rate()) / 2)
        ratios.append(times[-1] * rates[-1] / MATRIX_BYTES)
    cells = [f"{percent} %", f"{statistics.median(rates) / 1e9:.2f}", f"{statistics.median(times):.2f}"]
    row([*cells, f"{statistics.median(ratios):.2f}", f"{min(ratios):.2f}", "1.2"])


def row(cells):
    """Print a row of the table."""
    print("".join(f"{cell:>11}" for cell in cells), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path, help="folder of the llama.cpp build")
    parser.add_argument("work", type=pathlib.Path, help="folder of the models")
    parser.add_argument("--program", type=pathlib.Path, default=pathlib.Path("target/release/ipuc"))
    parser.add_argument("--limits", default="25,50,75", help="percents of the weights")
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--first", action="store_true", help="time the first token of a process")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--passes", type=int, default=5, help="passes, or tokens, a side and round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--reader", action="store_true", help="compare with a mapping reader instead of llama.cpp")
    parser.add_argument("--read", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--drop-behind", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    set_layers(given.layers)
    if given.read:
        json.dump(read_mapped(given.build, given.read, given.passes, given.drop_behind), sys.stdout)
        return
    given.work.mkdir(parents=True, exist_ok=True)
    theirs_file, our_file = (given.work / f"llama.{given.layers}.{kind}" for kind in ("gguf", "ipu"))
    offsets = make_gguf(theirs_file)
    if not our_file.exists():
        make_folder(given.work, theirs_file.name, offsets)
        subprocess.run([given.program, "compile", "--quiet", given.work, "-o", our_file], check=True)
    print(f"{MATRIX_BYTES / 1e9:.3f} GB of matrices a pass, {given.threads} threads")
    given.has_groups = has_groups()
    if not given.has_groups:
        print("no memory cgroups here: a reader that maps the file takes the place of llama.cpp")
    if given.first:
        raw = Raw(our_file)
        row(["budget", "raw GB/s", "seconds", "ratio", "least", "goal"])
        for percent in map(int, given.limits.split(",")):
            first_token(given, percent, our_file, raw)
        return
    with_reader = given.reader or not given.has_groups
    name, theirs = ("reader", seconds_of_reader) if with_reader else ("llama.cpp", seconds_of_llama)
    raw = Raw(our_file)
    row(["limit", "MiB", "raw GB/s", "threads", name, "ipuc", "ratio", "goal", "least", "device", "peak MiB", "batch"])
    for percent in map(int, given.limits.split(",")):
        compare(given, percent, [theirs_file, our_file], raw, theirs)


if __name__ == "__main__":
    sys.exit(main())
