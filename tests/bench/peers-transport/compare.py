"""Portolan's transport beside iperf3, Mooncake and NIXL, over loopback, in one run.

compare.py --portolan BINARY [--mib 256] [--rounds 7]

Each round measures every subject once, one after another, so that whatever else the machine does falls on all alike.
Printed are medians over the rounds: GiB a second, seconds of processor time for each GiB (both ends), and the ratio to
the fastest peer. Portolan checks every chunk and the whole; Mooncake, NIXL and iperf3 check nothing.
"""

import argparse
import hashlib
import json
import pathlib
import resource
import signal
import statistics
import subprocess
import sys
import time

import numpy as np

from peers import Mooncake, Nixl

HERE = pathlib.Path(__file__).parent
GIB = 1 << 30


class Peer:
    """A sender in this process and a receiver in another."""

    def __init__(self, library: str, sender: type, buffer: np.ndarray) -> None:
        self.receiver = subprocess.Popen(
            [sys.executable, HERE / "receiver.py", library, str(buffer.nbytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.buffer = buffer
        # What the libraries log lies between the answers.
        self.sender = sender(buffer, self.answer())
        self.pause()

    def answer(self):
        for line in self.receiver.stdout:
            try:
                return json.loads(line)
            except json.JSONDecodeError:
                print(line, end="", file=sys.stderr)
        raise RuntimeError("the receiver ended")

    def ask(self, what: str):
        self.receiver.stdin.write(what + "\n")
        self.receiver.stdin.flush()
        return self.answer()

    def pause(self) -> None:
        """A receiver that waits keeps a core busy, which the next subject would miss."""
        self.receiver.send_signal(signal.SIGSTOP)

    def measure(self) -> tuple[float, float]:
        self.receiver.send_signal(signal.SIGCONT)
        # Other bytes each time: what is verified is this transfer's.
        self.buffer[:] = np.random.default_rng().integers(0, 256, self.buffer.nbytes, dtype=np.uint8)
        cpu = self.cpu()
        began = time.perf_counter()
        self.sender.write()
        took = time.perf_counter() - began
        cpu = self.cpu() - cpu
        if self.ask("sum") != hashlib.sha256(self.buffer.tobytes()).hexdigest():
            raise RuntimeError("other bytes arrived than were sent")
        self.pause()
        share = self.buffer.nbytes / GIB
        return share / took, cpu / share

    def cpu(self) -> float:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime + self.ask("cpu")

    def end(self) -> None:
        self.receiver.send_signal(signal.SIGCONT)
        self.receiver.stdin.close()
        self.receiver.wait(timeout=20)


def portolan(binary: str, mib: int, *options: str) -> tuple[float, float]:
    command = [binary, "bench", "transport", "--mib", str(mib), "--connections", "4", "--json", *options]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    if not found["verified"]:
        raise RuntimeError("Portolan did not verify what arrived")
    return found["gib_per_s"], found["cpu_s_per_gib"]


def iperf3(mib: int, streams: int) -> tuple[float, float]:
    port = 20_000 + streams
    server = subprocess.Popen(["iperf3", "-s", "-1", "-p", str(port)], stdout=subprocess.DEVNULL)
    try:
        time.sleep(0.3)
        command = ["iperf3", "-c", "127.0.0.1", "-p", str(port), "-P", str(streams), "-l", "1M", "-n", f"{mib}M", "-J"]
        end = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["end"]
    finally:
        server.wait(timeout=20)
    received = end["sum_received"]
    usage = end["cpu_utilization_percent"]
    busy = (usage["host_total"] + usage["remote_total"]) / 100 * received["seconds"]
    return received["bits_per_second"] / 8 / GIB, busy / (received["bytes"] / GIB)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--portolan", required=True)
    options.add_argument("--mib", type=int, default=256)
    options.add_argument("--rounds", type=int, default=7)
    options = options.parse_args()
    buffer = np.zeros(options.mib << 20, dtype=np.uint8)
    peers = {
        "Mooncake, write, unchecked": Peer("mooncake", Mooncake, buffer),
        "NIXL, write, unchecked": Peer("nixl", Nixl, buffer),
    }
    subjects = {
        "Portolan, checksums": lambda: portolan(options.portolan, options.mib),
        "Portolan, checksums, TLS 1.3": lambda: portolan(options.portolan, options.mib, "--tls"),
        **{name: peer.measure for name, peer in peers.items()},
        **{f"iperf3, {n} streams": (lambda n=n: iperf3(options.mib, n)) for n in (1, 2, 4)},
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in subjects}
    for number in range(options.rounds + 1):
        for name, measure in subjects.items():
            figures = measure()
            # The first round makes connections and touches memory for the first time.
            if number:
                found[name].append(figures)
    for peer in peers.values():
        peer.end()
    medians = {name: tuple(statistics.median(column) for column in zip(*rows)) for name, rows in found.items()}
    fastest = max(speed for name, (speed, _) in medians.items() if "unchecked" in name)
    print(f"| {options.mib} MiB, {options.rounds} rounds | GiB/s | CPU s/GiB | of the fastest unchecked peer |")
    print("|---|---|---|---|")
    for name, (speed, cpu) in medians.items():
        print(f"| {name} | {speed:.2f} | {cpu:.2f} | {speed / fastest:.2f} × |")


if __name__ == "__main__":
    main()
