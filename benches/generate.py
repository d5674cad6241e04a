#!/usr/bin/env python3
"""Greedy text of ipuc beside onnxruntime-genai, of one folder: tokens, and tokens a second.

    python benches/generate.py FOLDER [IPUC [TOKENS [THREADS [LLAMA_BENCH MODEL.gguf]]]]

Needs onnxruntime-genai, onnxruntime, onnx and numpy. IPUC is the program (default `ipuc`), LLAMA_BENCH llama.cpp's of that name
(`benches/llama.py` says how it is built), which reads a file of the same model. For each prompt the continuations are
compared up to the first token that differs. Both read the same prompts with the same number of threads, one after the other.
Then there are medians of tokens a second, of prompts of 128 tokens and of continuations, and of eight texts side by side and one
after the other, within a quarter of the weights; what guesses gain on a text that repeats itself; and how much memory a process
has that makes 4,000 tokens within half of the weights. At last ipuc reads the texts of onnxruntime-genai; each position where the
best tokens differ is printed with how far the two are apart, and whether rounding explains it (`scores.py`). The exit code is
1 where it does not.
"""
import json, os, pathlib, re, statistics, subprocess, sys, tempfile, time
import onnxruntime_genai as genai
from scores import Differences, Scores

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time there was a small robot who",
    "The three laws of thermodynamics are",
    "List of planets in the solar system:\n1.",
    "In 1969, the first man on the moon",
    "To make a good cup of tea, first",
    "Dear Sir or Madam,\n\nI am writing to",
    "Question: What is photosynthesis?\nAnswer:",
    "The quick brown fox jumps over the lazy dog. The quick brown",
]


def run_genai(model, tokenizer, prompt, tokens):
    """Numbers of the continuation, and seconds of prompt and continuation."""
    numbers = prompt if isinstance(prompt, list) else list(tokenizer.encode(prompt))
    parameters = genai.GeneratorParams(model)
    parameters.set_search_options(max_length=len(numbers) + tokens, do_sample=False)
    generator = genai.Generator(model, parameters)
    begun = time.perf_counter()
    generator.append_tokens(numbers)
    generator.generate_next_token()
    read = time.perf_counter()
    while not generator.is_done():
        generator.generate_next_token()
    ended = time.perf_counter()
    found = [int(number) for number in generator.get_sequence(0)]
    return found[len(numbers):], read - begun, ended - read


def run_ipuc(program, file, prompt, tokens, threads):
    command = [program, "generate", file, "--prompt", prompt, "--max-tokens", str(tokens), "--threads", threads]
    command += ["--temperature", "0", "--repetition-penalty", "1", "--json", "-q"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def run_llama(program, model, threads):
    """Tokens a second of llama.cpp: of a prompt of 128 tokens, and of 64 tokens; the better of threads that spin and that sleep."""
    command = [program, "-m", model, "-t", threads, "-ngl", "0", "-p", "128", "-n", "64", "-r", "5", "-o", "json"]
    found = {"prompt": 0.0, "text": 0.0}
    for policy in ("active", "passive"):
        waits = {**os.environ, "OMP_WAIT_POLICY": policy}
        ran = subprocess.run(command, check=True, capture_output=True, text=True, env=waits)
        for test in json.loads(ran.stdout):
            kind = "prompt" if test["n_gen"] == 0 else "text"
            found[kind] = max(found[kind], statistics.median(test["samples_ts"]))
    print(f"llama.cpp: prompt {found['prompt']:.0f} tokens/s, text {found['text']:.1f} tokens/s")


REPEATED = """The committee of the harbour met on Monday. The committee of the harbour said that ships longer than ninety metres
shall wait outside, that pilots shall be paid by the hour, and that the lamp on the northern pier shall be lit at dusk. """


def lookup(program, file, threads):
    """What guesses from the text gain where it repeats itself: the same tokens, faster."""
    runs = {}
    for guesses in ("0", "8", "0", "8", "0", "8"):
        command = [program, "generate", file, "--prompt", REPEATED * 3, "--max-tokens", "120", "--ignore-end", "--threads", threads]
        command += ["--temperature", "0", "--repetition-penalty", "1", "--lookup", guesses, "--json", "-q"]
        run = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        runs.setdefault(guesses, []).append(run)
    assert len({tuple(run["numbers"]) for each in runs.values() for run in each}) == 1
    rate = {guesses: statistics.median(run["tokens_per_second"] for run in each) for guesses, each in runs.items()}
    print(f"ipuc on a text that repeats itself: {rate['8'] / rate['0']:.2f} times the tokens with guesses, "
          f"{runs['8'][0]['accepted']} of {runs['8'][0]['guessed']} right")


def memory(program, file, threads, tokens=4000):
    """The most memory of a process that makes many tokens within half of the weights, over its budget."""
    inspected = subprocess.run([program, "inspect", file, "--json"], check=True, capture_output=True, text=True).stdout
    budget = json.loads(inspected)["weights_bytes"] // 2
    command = [program, "generate", file, "--prompt", PROMPTS[2], "--max-tokens", str(tokens), "--ignore-end", "--temperature", "0"]
    child = subprocess.Popen([*command, "--memory", str(budget), "--threads", threads, "-q"], stdout=subprocess.DEVNULL)
    # Its own high-water mark: `ru_maxrss` would begin with the memory of this process, which starts it.
    most = 0
    while child.poll() is None:
        status = pathlib.Path(f"/proc/{child.pid}/status").read_text()
        most = max(most, *(int(kibibytes) << 10 for kibibytes in re.findall(r"VmHWM:\s+(\d+) kB", status)), 0)
        time.sleep(0.1)
    assert child.returncode == 0, f"{tokens} tokens within {budget} bytes: {child.returncode}"
    print(f"ipuc, {tokens} tokens within {budget >> 20} MiB: {most - budget >> 20} MiB besides")


def run_batch(program, file, prompts, size, memory, tokens, threads):
    command = [program, "generate", file, "--batch", prompts, "--batch-size", str(size), "--memory", str(memory)]
    command += ["--max-tokens", str(tokens), "--ignore-end", "--threads", threads, "--temperature", "0", "--json", "-q"]
    ran = subprocess.run(command, capture_output=True, text=True)
    return json.loads(ran.stdout) if ran.returncode == 0 else ran.stderr.strip()


def batches(program, file, scratch, tokens, threads):
    """Eight texts within a quarter of the weights, one after the other and side by side: the same tokens."""
    path = os.path.join(scratch, "prompts.txt")
    with open(path, "w") as prompts:
        prompts.writelines(json.dumps(prompt) + "\n" for prompt in PROMPTS[:8])
    inspected = subprocess.run([program, "inspect", file, "--json"], check=True, capture_output=True, text=True).stdout
    weights = json.loads(inspected)["weights_bytes"]
    found = {size: run_batch(program, file, path, size, weights // 4, tokens, threads) for size in (1, 8)}
    for size, run in found.items():
        if isinstance(run, str):
            print(f"ipuc within {weights // 4 / 1e6:.0f} MB of {weights / 1e6:.0f} MB, {size} at a time: {run}")
            return
    assert [text["numbers"] for text in found[1]["texts"]] == [text["numbers"] for text in found[8]["texts"]]
    for size, run in found.items():
        read = run["read_bytes"] / run["tokens"] / 1e6
        print(f"ipuc within {weights // 4 / 1e6:.0f} MB of {weights / 1e6:.0f} MB, {size} at a time: "
              f"{run['tokens_per_second']:.1f} tokens/s, {read:.1f} MB read a token")
    print(f"{found[8]['tokens_per_second'] / found[1]['tokens_per_second']:.1f} times the tokens of one at a time")


def explain(scores, tokenizer, texts):
    """Print where best tokens differ, text by text; says whether rounding explains each."""
    differences = Differences()
    for number, (prompt, text, at) in enumerate(texts):
        print(f"prompt {number}, given the text of onnxruntime-genai:")
        first = differences.add(scores, tokenizer, [int(token) for token in prompt], text)
        assert first == at, f"the texts differ from token {at} on, the best tokens of the same text from {first} on"
    return differences.summary()


def main(folder, program="ipuc", tokens="200", threads="2", llama=None, gguf=None):
    tokens = int(tokens)
    config = genai.Config(folder)
    config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": int(threads)}}}}))
    model = genai.Model(config)
    tokenizer = genai.Tokenizer(model)
    with tempfile.TemporaryDirectory() as scratch:
        file = os.path.join(scratch, "model.ipu")
        subprocess.run([program, "compile", folder, "-o", file, "-q"], check=True)
        rates = {"ipuc": [], "onnxruntime-genai": []}
        same, texts = 0, []
        for number, prompt in enumerate(PROMPTS):
            expected, _, seconds = run_genai(model, tokenizer, prompt, tokens)
            ours = run_ipuc(program, file, prompt, tokens, threads)
            found = ours["numbers"]
            rates["ipuc"].append(ours["tokens_per_second"])
            rates["onnxruntime-genai"].append((len(expected) - 1) / seconds if len(expected) > 1 else 0.0)
            pairs = list(zip(found, expected))
            at = next((at for at, (one, other) in enumerate(pairs) if one != other), None)
            if at is None and abs(len(found) - len(expected)) <= 1:
                same += 1
                print(f"prompt {number}: {len(pairs)} tokens are the same")
            else:
                print(f"prompt {number}: token {len(pairs) if at is None else at} differs")
            texts.append((list(tokenizer.encode(prompt)), expected, at))
        print(f"{same} of {len(PROMPTS)} continuations are the same")
        long = (" ".join(PROMPTS) * 4)
        prompt = list(tokenizer.encode(long))[:128]
        text = tokenizer.decode(prompt)
        reads = {"ipuc": [], "onnxruntime-genai": []}
        for _ in range(5):
            _, seconds, _ = run_genai(model, tokenizer, prompt, 2)
            reads["onnxruntime-genai"].append(len(prompt) / seconds)
            reads["ipuc"].append(run_ipuc(program, file, text, 1, threads)["prompt_tokens_per_second"])
        for name in rates:
            print(f"{name}: prompt {statistics.median(reads[name]):.0f} tokens/s, text {statistics.median(rates[name]):.1f} tokens/s")
        if llama:
            run_llama(llama, gguf, threads)
        batches(program, file, scratch, 64, threads)
        lookup(program, file, threads)
        memory(program, file, threads)
        return 0 if explain(Scores(folder, model, program, file, scratch, threads), tokenizer, texts) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
