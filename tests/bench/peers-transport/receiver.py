"""The receiving end of one peer library: registers a buffer, says where it is, and answers questions on standard input.

receiver.py mooncake|nixl BYTES

    -> one line of JSON: where the buffer is
    cpu     -> seconds of processor time of this process
    sum     -> SHA-256 of the buffer
"""

import base64
import hashlib
import json
import os
import resource
import sys

import numpy as np

from peers import mooncake_engine, nixl_agent


def main() -> None:
    library, size = sys.argv[1], int(sys.argv[2])
    buffer = np.zeros(size, dtype=np.uint8)
    if library == "mooncake":
        engine = mooncake_engine()
        engine.register_memory(buffer.ctypes.data, size)
        place = {"name": f"127.0.0.1:{engine.get_rpc_port()}", "address": buffer.ctypes.data}
    else:
        agent = nixl_agent("receiver", progress_thread=True)
        agent.register_memory([(buffer.ctypes.data, size, 0, "")], "DRAM")
        metadata = base64.b64encode(agent.get_agent_metadata()).decode()
        place = {"name": "receiver", "address": buffer.ctypes.data, "metadata": metadata}
    say(place)
    for line in sys.stdin:
        if line.strip() == "cpu":
            used = resource.getrusage(resource.RUSAGE_SELF)
            say(used.ru_utime + used.ru_stime)
        else:
            say(hashlib.sha256(buffer.tobytes()).hexdigest())
    # The libraries do not survive their own clean-up.
    os._exit(0)


def say(value: object) -> None:
    print(json.dumps(value), flush=True)


main()
