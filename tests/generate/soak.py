"""Many clients of `ipuc serve` at once, with the `openai` package: right answers, clear errors, and nothing left behind.

    pip install openai
    IPUC=target/release/ipuc python3 tests/generate/soak.py MODEL.ipu [--requests 1000] [--clients 32] [--parallel 8]

MODEL.ipu is any compiled language model with a chat template. The server listens on this machine alone, on a free port, and ends
with the script. Requests are whole texts, texts in pieces, chats, replies that nobody reads to their end, requests that are cut
off, bodies that are too long, malformed, or ask for what is not there. Every text must be the one that `ipuc generate` gives alone
for the same prompt. After the first tenth and after the last request the server's memory, threads and open files are counted.
Exit code 1 where an answer was wrong or something was left behind.
"""

import argparse
import collections
import http.client
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import openai

TOKENS = 16
BODY_BYTES = 64 << 10
# Memory that may be more at the end than after the first tenth: contexts that were not full then, and what allocators keep.
SLACK_BYTES = 32 << 20
PROMPTS = [
    "The capital of France is", "Once upon a time", "A list of colours: red,", "In the beginning", "def add(a, b):",
    "The quick brown fox", "To make tea,", "Dear Sir or Madam,",
]


def greedy(program, model, prompt, *options):
    """The text that the program gives alone."""
    command = [program, "generate", model, "--prompt", prompt, "--max-tokens", str(TOKENS), "--temperature", "0",
               "--repetition-penalty", "1", "--json", "-q", *options]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["text"]


class Soak:
    def __init__(self, given, program, port, process):
        self.given, self.port, self.process = given, port, process
        self.client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="secret", max_retries=0, timeout=600)
        self.model = self.client.models.list().data[0].id
        self.texts = {prompt: greedy(program, given.model, prompt) for prompt in PROMPTS}
        self.chats = {prompt: greedy(program, given.model, prompt, "--chat") for prompt in PROMPTS}
        self.counts, self.wrong, self.lock = collections.Counter(), [], threading.Lock()

    def expect(self, what, found, expected):
        with self.lock:
            self.counts[what] += 1
            if found != expected:
                self.wrong.append(f"{what}: {found!r} in place of {expected!r}")

    def whole(self, prompt):
        reply = self.client.completions.create(model=self.model, prompt=prompt, max_tokens=TOKENS, temperature=0)
        self.expect("text", reply.choices[0].text, self.texts[prompt])

    def pieces(self, prompt):
        stream = self.client.completions.create(model=self.model, prompt=prompt, max_tokens=TOKENS, temperature=0, stream=True)
        self.expect("text in pieces", "".join(piece.choices[0].text for piece in stream), self.texts[prompt])

    def chat(self, prompt):
        messages = [{"role": "user", "content": prompt}]
        reply = self.client.chat.completions.create(model=self.model, messages=messages, max_tokens=TOKENS, temperature=0)
        self.expect("chat", reply.choices[0].message.content, self.chats[prompt])

    def unread(self, prompt):
        """A reply whose reader leaves after its first piece."""
        messages = [{"role": "user", "content": prompt}]
        stream = self.client.chat.completions.create(model=self.model, messages=messages, max_tokens=TOKENS, temperature=0,
                                                     stream=True)
        next(iter(stream))
        stream.close()
        self.expect("reply that is left", None, None)

    def cut(self, prompt):
        """A request that ends in its head, or in its body."""
        body = json.dumps({"model": self.model, "prompt": prompt}).encode()
        request = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.sendall(request[:random.randrange(1, len(request))])
        self.expect("request that is cut off", None, None)

    def refused(self, what, body, status, message):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        found = json.loads(reply.read())["error"]["message"]
        connection.close()
        self.expect(what, (reply.status, message in found or found), (status, True))

    def long(self, prompt):
        self.refused("body that is too long", b" " * (BODY_BYTES + 1), 413, "the body is too long")

    def malformed(self, prompt):
        body, message = random.choice([(b'{"prompt": ', "the body is no request"), (b"\xff\xfe", "the body is no request"),
                                       (b"[]", "the body is no request"), (b"{}", "`prompt` is missing"),
                                       (b'{"prompt": "a", "best_of": 3}', "`best_of` is not supported")])
        self.refused("body that is malformed", body, 400, message)

    def unknown(self, prompt):
        try:
            self.client.completions.create(model="another", prompt=prompt)
            self.expect("model that is not there", "an answer", "an error")
        except openai.NotFoundError as error:
            self.expect("model that is not there", "there is no such model" in str(error), True)

    def run(self, requests):
        """So many requests, by all clients."""
        kinds = [self.whole, self.pieces, self.chat, self.unread, self.cut, self.long, self.malformed, self.unknown]
        numbers = iter(range(requests))

        def work():
            while True:
                with self.lock:
                    number = next(numbers, None)
                if number is None:
                    return
                try:
                    kinds[number % len(kinds)](PROMPTS[number // len(kinds) % len(PROMPTS)])
                except Exception as error:
                    with self.lock:
                        self.wrong.append(f"{kinds[number % len(kinds)].__name__}: {type(error).__name__}: {error}")

        threads = [threading.Thread(target=work) for _ in range(self.given.clients)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]

    def metrics(self):
        text = urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60).read().decode()
        return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))

    def left(self):
        """Resident bytes, threads and open files of the server once no connection but the one that asks is open."""
        self.client.close()
        self.client = openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key="secret", max_retries=0, timeout=600)
        for _ in range(300):
            if self.metrics()["ipuc_connections"] == "1":
                break
            time.sleep(0.1)
        else:
            self.wrong.append(f"{self.metrics()['ipuc_connections']} connections stay open")
        time.sleep(0.5)
        folder = f"/proc/{self.process.pid}"
        resident = next(int(line.split()[1]) << 10 for line in open(f"{folder}/status") if line.startswith("VmRSS"))
        return resident, len(os.listdir(f"{folder}/task")), len(os.listdir(f"{folder}/fd"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--parallel", type=int, default=8)
    given = parser.parse_args()
    random.seed(1)
    program = os.environ.get("IPUC", "ipuc")
    command = [program, "serve", given.model, "--listen", "127.0.0.1:0", "--parallel", str(given.parallel), "--max-request",
               str(BODY_BYTES)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        port = int(process.stdout.readline().rsplit(":", 1)[1])
        soak = Soak(given, program, port, process)
        soak.run(given.requests // 10)
        before = soak.left()
        begun = time.perf_counter()
        soak.run(given.requests - given.requests // 10)
        seconds = time.perf_counter() - begun
        after, metrics = soak.left(), soak.metrics()
    finally:
        process.terminate()
        process.wait()
    for what, count in sorted(soak.counts.items()):
        print(f"{count:6} {what}")
    print(f"{given.requests} requests from {given.clients} clients, the last nine tenths in {seconds:.1f} s; "
          f"{metrics['ipuc_tokens_total']} tokens")
    print(f"after a tenth and at the end: {before[0] >> 20} and {after[0] >> 20} MiB, {before[1]} and {after[1]} threads, "
          f"{before[2]} and {after[2]} open files")
    if after[0] > before[0] + SLACK_BYTES or after[1:] != before[1:]:
        soak.wrong.append("the server keeps what it needs no more")
    print("\n".join(soak.wrong[:20]) or "no answer was wrong, and nothing is left")
    return 1 if soak.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
