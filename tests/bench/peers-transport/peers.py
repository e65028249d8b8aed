"""Mooncake's transfer engine and NIXL over TCP, each in the configuration that was fastest here."""

import base64
import os
import time

# Seconds between two looks at a transfer. A loop without a pause takes the core that the transfer needs.
PAUSE = 0.001


def mooncake_engine():
    """An engine on a free port of this machine, found without a metadata server."""
    from mooncake.engine import TransferEngine

    engine = TransferEngine()
    if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
        raise RuntimeError("Mooncake's engine does not start")
    return engine


def nixl_agent(name: str, progress_thread: bool):
    """An agent over UCX's TCP. A receiver needs the progress thread; a sender that looks for itself is faster without."""
    os.environ.setdefault("UCX_TLS", "tcp")
    from nixl_cu12 import _api

    return _api.nixl_agent(name, _api.nixl_agent_config(enable_prog_thread=progress_thread, backends=["UCX"]))


class Mooncake:
    """Writes by `transfer_submit_write`, looked at every millisecond."""

    def __init__(self, buffer, place: dict) -> None:
        self.engine, self.buffer, self.place = mooncake_engine(), buffer, place
        self.engine.register_memory(buffer.ctypes.data, buffer.nbytes)

    def write(self) -> None:
        batch = self.engine.transfer_submit_write(
            self.place["name"], self.buffer.ctypes.data, self.place["address"], self.buffer.nbytes
        )
        while (state := self.engine.transfer_check_status(batch)) == 0:
            time.sleep(PAUSE)
        if state != 1:
            raise RuntimeError(f"Mooncake's transfer failed: {state}")


class Nixl:
    """One WRITE of one descriptor, looked at every millisecond."""

    def __init__(self, buffer, place: dict) -> None:
        self.agent = nixl_agent("sender", progress_thread=False)
        self.agent.register_memory([(buffer.ctypes.data, buffer.nbytes, 0, "")], "DRAM")
        peer = self.agent.add_remote_agent(base64.b64decode(place["metadata"]))
        here = self.agent.get_xfer_descs([(buffer.ctypes.data, buffer.nbytes, 0)], "DRAM")
        there = self.agent.get_xfer_descs([(place["address"], buffer.nbytes, 0)], "DRAM")
        self.handle = self.agent.initialize_xfer("WRITE", here, there, peer)

    def write(self) -> None:
        state = self.agent.transfer(self.handle)
        while state == "PROC":
            time.sleep(PAUSE)
            state = self.agent.check_xfer_state(self.handle)
        if state != "DONE":
            raise RuntimeError(f"NIXL's transfer failed: {state}")
