"""The native engine and llama.cpp by turns: a round of one, a round of the other. Prints medians and their ratios."""

import argparse
import concurrent.futures
import json
import os
import socket
import statistics
import subprocess
import time
import urllib.request

PROMPT, SHORT_PROMPT, ANSWER, BATCH, THREADS = 512, 32, 64, 8, 2


class Ours:
    def __init__(self, program, model):
        environment = os.environ | {"RAYON_NUM_THREADS": str(THREADS)}
        self.process = subprocess.Popen(
            [program, model], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def round(self, _number):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("the native engine ended early")
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=30)


class LlamaCpp:
    def __init__(self, model):
        import xllamacpp

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        params = xllamacpp.CommonParams()
        params.model.path = model
        params.hostnames = ["127.0.0.1"]
        params.port = port
        params.n_ctx = BATCH * 1024
        params.n_parallel = BATCH
        params.cpuparams.n_threads = THREADS
        params.cpuparams_batch.n_threads = THREADS
        self.server = xllamacpp.Server(params)
        self.url = f"http://127.0.0.1:{port}/completion"

    def answer(self, prompt, tokens):
        body = {"prompt": prompt, "n_predict": tokens, "cache_prompt": False, "temperature": 0, "ignore_eos": True}
        request = urllib.request.Request(self.url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["timings"]

    def round(self, number):
        prompt = [(i * 7919 + number * 104729) % 40000 + 100 for i in range(PROMPT)]
        prefill = self.answer(prompt, 1)["prompt_per_second"]
        decode = self.answer(prompt[:SHORT_PROMPT], ANSWER)["predicted_per_second"]
        with concurrent.futures.ThreadPoolExecutor(BATCH) as threads:
            started = time.monotonic()
            all_timings = list(threads.map(lambda _: self.answer(prompt[:SHORT_PROMPT], ANSWER), range(BATCH)))
            took = time.monotonic() - started
        # Its prefill is in the wall time; the share of eight short prompts is taken out by their own times.
        took -= sum(timings["prompt_ms"] for timings in all_timings) / BATCH / 1000
        return {"prefill": prefill, "decode": decode, "decode_batch": BATCH * ANSWER / took}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ours", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    ours, theirs = Ours(asked.ours, asked.model), LlamaCpp(asked.model)
    rounds = []
    for number in range(asked.rounds + 1):
        rounds.append((ours.round(number), theirs.round(number)))
    ours.close()
    rounds = rounds[1:]  # The first round reads the files and wakes the threads.

    print(f"{asked.rounds} rounds by turns, {THREADS} threads each, load average {os.getloadavg()[0]:.1f}\n")
    print("| tokens a second, median (least to most) | native | llama.cpp | ratio, median of the rounds' |")
    print("|---|---|---|---|")
    names = {
        "prefill": f"prefill, {PROMPT} tokens",
        "decode": f"decode, one answer of {ANSWER} tokens",
        "decode_batch": f"decode, {BATCH} answers at once",
    }
    for key, name in names.items():
        columns = [[one[key] for one, _ in rounds], [two[key] for _, two in rounds]]
        cells = [f"{statistics.median(c):.1f} ({min(c):.1f} to {max(c):.1f})" for c in columns]
        ratio = statistics.median(one[key] / two[key] for one, two in rounds)
        print(f"| {name} | {cells[0]} | {cells[1]} | {ratio:.2f} |")
    gain = statistics.median(one["decode_batch"] / one["decode"] for one, _ in rounds)
    print(f"| native: {BATCH} answers at once against one | {gain:.2f} × | | |")


main()
