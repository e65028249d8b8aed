"""Portolan's gateway beside other routers, before the same two engines.

Each round takes every subject through every load once, one after another, so that whatever else the machine does falls on
all alike. Printed are medians over the rounds: what a lone request takes longer than at the engine itself, requests a second
with 64 connections, and processor time for each request of everything but the client: of the router, and of the engines, which
one of the routers has tokenise for it.
"""

import argparse
import json
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).parent
TICKS = os.sysconf("SC_CLK_TCK")
SECONDS = 3
LOADS = {
    "200 characters": (200, 1, "false"),
    "16,000 characters": (16_000, 1, "false"),
    "200 characters, 32 tokens as a stream": (200, 32, "true"),
}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Program:
    """A process and its children, ended with it."""

    def __init__(self, name: str, command: list, folder: pathlib.Path, **environment: str) -> None:
        self.name = name
        with open(folder / f"{name.replace(' ', '-')}.log", "w") as log:
            self.process = subprocess.Popen(
                [str(part) for part in command],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | environment,
                start_new_session=True,
            )

    def members(self) -> list[int]:
        group = self.process.pid
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                except OSError:
                    continue
                if int(fields[2]) == group:
                    found.append(int(entry.name))
        return found

    def cpu(self) -> float:
        total = 0
        for member in self.members():
            try:
                fields = pathlib.Path(f"/proc/{member}/stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            total += int(fields[11]) + int(fields[12])
        return total / TICKS

    def mib(self) -> float:
        pages = 0
        for member in self.members():
            try:
                pages += int(pathlib.Path(f"/proc/{member}/statm").read_text().split()[1])
            except OSError:
                continue
        return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)

    def wait_until(self, url: str, within: float = 60.0) -> None:
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise SystemExit(f"{self.name} ended at its start")
            try:
                with urllib.request.urlopen(url, timeout=2):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        raise SystemExit(f"{self.name} did not answer at {url} within {within:.0f} s")

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, 15)
            try:
                self.process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, 9)
                self.process.wait()


class Bench:
    def __init__(self, options: argparse.Namespace, folder: pathlib.Path) -> None:
        self.options, self.folder = options, folder
        self.programs: list[Program] = []
        self.engines = [self.engine(number) for number in range(2)]
        self.urls = [url for _, url in self.engines]
        self.subjects: dict[str, tuple[Program | None, str]] = {"the engine itself": (None, self.urls[0])}

    def start(self, *arguments, **environment) -> Program:
        program = Program(*arguments, self.folder, **environment)
        self.programs.append(program)
        return program

    def engine(self, number: int) -> tuple[Program, str]:
        port = free_port()
        command = [self.options.portolan, "engine", "modelled", "--profile", HERE / "engine.json", "--name", "bench"]
        command += ["--model", self.options.model, "--listen", f"127.0.0.1:{port}"]
        engine = self.start(f"engine {number}", command)
        url = f"http://127.0.0.1:{port}"
        engine.wait_until(url + "/health")
        return engine, url

    def router(self, name: str, program: str, policy: str) -> None:
        port, metrics = free_port(), free_port()
        command = [self.options.routers / program, *(["launch"] if program == "smg" else [])]
        command += ["--host", "127.0.0.1", "--port", port, "--worker-urls", *self.urls, "--policy", policy]
        command += ["--prometheus-port", metrics]
        router = self.start(name, command)
        router.wait_until(f"http://127.0.0.1:{port}/health")
        self.subjects[name] = (router, f"http://127.0.0.1:{port}")

    def portolan(self, name: str, components: dict[str, str]) -> None:
        port, transport = free_port(), free_port()
        instances = [
            {"name": f"engine-{number}", "model": "bench", "engine": "vllm", "server": {"url": url}, "decode_slots": 256}
            for number, url in enumerate(self.urls)
        ]
        data = self.folder / name.replace(" ", "-").replace(",", "")
        config = {
            "data_dir": str(data),
            "operator_keys": ["operator"],
            "models": [{"name": "bench", "path": str(self.options.model)}],
            "sites": [
                {
                    "name": "paris",
                    "region": "eu-west",
                    "jurisdiction": "eu",
                    "listen": f"127.0.0.1:{port}",
                    "transport": f"127.0.0.1:{transport}",
                    "instances": instances,
                }
            ],
            "tenants": [{"name": "bench", "keys": ["bench"]}],
        }
        path = self.folder / f"{data.name}.json"
        path.write_text(json.dumps(config))
        host = self.start(name, [self.options.portolan, "serve", "--config", path])
        url = f"http://127.0.0.1:{port}"
        host.wait_until(url + "/health")
        for question, file in components.items():
            command = [self.options.portolan, "policy", "push", self.options.plugins / file, "--tenant", "_platform"]
            command += ["--question", question, "--server", url, "--key", "operator", "--reason", "measured"]
            subprocess.run(command, check=True, capture_output=True)
        self.subjects[name] = (host, url)

    def ready(self, url: str) -> None:
        """Until the subject's answers come from an engine."""
        body = {"model": "bench", "max_tokens": 1, "messages": [{"role": "user", "content": "ready?"}]}
        headers = {"Content-Type": "application/json", "Authorization": "Bearer bench"}
        deadline = time.monotonic() + 60
        while True:
            try:
                request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), headers)
                with urllib.request.urlopen(request, timeout=10) as answer:
                    assert json.load(answer)["usage"]["completion_tokens"] == 1
                    return
            except (urllib.error.URLError, OSError) as error:
                if time.monotonic() > deadline:
                    raise SystemExit(f"{url} gives no answer: {error}") from error
                time.sleep(0.2)

    def measure(self, subject: str, load: tuple, connections: int, seconds: int = SECONDS) -> dict:
        router, url = self.subjects[subject]
        engines = [engine for engine, _ in self.engines]
        before = (router.cpu() if router else 0.0, sum(engine.cpu() for engine in engines))
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "20s", "-s", HERE / "chat.lua", url, "--"]
        said = subprocess.run([*map(str, command), *map(str, load)], check=True, capture_output=True, text=True).stdout
        found = json.loads(said.strip().splitlines()[-1])
        if found["failed"] or not found["requests"]:
            raise SystemExit(f"{subject}: {found['failed']} of {found['requests']} requests failed")
        router_cpu = (router.cpu() if router else 0.0) - before[0]
        engine_cpu = sum(engine.cpu() for engine in engines) - before[1]
        found["router_ms"] = router_cpu * 1000 / found["requests"]
        found["engine_ms"] = engine_cpu * 1000 / found["requests"]
        found["per_second"] = found["requests"] / found["seconds"]
        return found

    def end(self) -> None:
        for program in reversed(self.programs):
            program.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--portolan", required=True, type=pathlib.Path)
    parser.add_argument("--routers", required=True, type=pathlib.Path)
    parser.add_argument("--model", required=True, type=pathlib.Path)
    parser.add_argument("--plugins", required=True, type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="portolan-routers-"))
    bench = Bench(options, folder)
    try:
        bench.portolan("Portolan", {})
        bench.portolan(
            "Portolan, components decide",
            {"residency": "jurisdiction.wasm", "cost": "ttft.wasm", "routing": "prefix-affinity.wasm"},
        )
        bench.router("vLLM Router 0.1.17, cache_aware", "vllm-router", "cache_aware")
        bench.router("vLLM Router 0.1.17, round_robin", "vllm-router", "round_robin")
        bench.router("SGLang Model Gateway 0.3.2, cache_aware", "smg", "cache_aware")
        report(bench, options.rounds)
    finally:
        bench.end()
        shutil.rmtree(folder, ignore_errors=True)


def report(bench: Bench, rounds: int) -> None:
    for _, url in bench.subjects.values():
        bench.ready(url)
    for subject in bench.subjects:
        for load in LOADS.values():
            bench.measure(subject, load, 8, 1)
    for load_name, load in LOADS.items():
        lone: dict[str, list] = {subject: [] for subject in bench.subjects}
        full: dict[str, list] = {subject: [] for subject in bench.subjects}
        for _ in range(rounds):
            for subject in bench.subjects:
                lone[subject].append(bench.measure(subject, load, 1))
                full[subject].append(bench.measure(subject, load, 64))
        median = lambda found, key: statistics.median(one[key] for one in found)
        direct = median(lone["the engine itself"], "p50_ms")
        print(f"\n| {load_name}; {rounds} rounds of {SECONDS} s | lone, ms | of it added | P99, ms | 64 connections, requests/s "
              "| P99, ms | CPU ms a request: router | engines | MiB |")
        print("|---|---|---|---|---|---|---|---|---|")
        for subject, (router, _) in bench.subjects.items():
            one, many = lone[subject], full[subject]
            added = f"{median(one, 'p50_ms') - direct:.2f}" if router else ""
            cpu = f"{median(many, 'router_ms'):.3f}" if router else ""
            print(
                f"| {subject} | {median(one, 'p50_ms'):.2f} | {added} | {median(one, 'p99_ms'):.2f} "
                f"| {median(many, 'per_second'):,.0f} | {median(many, 'p99_ms'):.1f} | {cpu} "
                f"| {median(many, 'engine_ms'):.3f} | {f'{router.mib():.0f}' if router else ''} |",
                flush=True,
            )
    print(f"\nload average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
