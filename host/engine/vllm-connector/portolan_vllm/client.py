"""The engine's side of the socket, protocol version 1 (written down in Portolan's docs/vllm-connector.md).

Every call either gives what was asked for or raises; after it raised the connection is closed and made again by the next
call, at most once in ``RETRY`` seconds. Nothing here knows of vLLM.
"""

import array
import json
import socket
import struct
import sys
import threading
import time
import zlib

MAGIC = b"PTKV"
VERSION = 1
HEAD = struct.Struct("<4sBBHIIQ")

HELLO, WELCOME, FIND, FOUND, LOAD, BLOCKS, SAVE, SAVED, REFUSED, IDLE, NOTED = range(1, 12)

# Longest JSON and payload that are taken from the host.
FIELDS_MOST = 1 << 20
PAYLOAD_MOST = 256 << 20

# What is sent at once, so that no frame comes near the host's bound.
PIECE = 64 << 20

# Seconds until a host that was not there is tried again: a request that is scheduled meanwhile does not wait for it.
RETRY = 1.0


class Unreachable(Exception):
    """The host is not there, or says what cannot be used."""


class Refused(Unreachable):
    """The host is there and will not: its reason."""


class Client:
    """One connection to a host. Calls from several threads take turns.

    ``hello`` says what the engine keeps: engine, layers, kv_heads, head_dim, dtype (``f32``, ``bf16``, ``f16``),
    block_tokens; and which of several workers' parts of it this is: rank, ranks. A block is this worker's part then.
    """

    def __init__(self, path, hello, timeout=5.0):
        self._path = path
        self._hello = dict(hello)
        self._timeout = timeout
        self._socket = None
        self._not_before = 0.0
        self._lock = threading.Lock()
        self.block_bytes = None

    def find(self, salt, tokens, aside=0):
        """How many whole blocks of the prompt lie with the host, from the first on. ``aside``: requests that were left
        alone since the last time."""
        fields, _ = self._ask(FIND, FOUND, {"salt": salt, "aside": aside}, tokens)
        blocks = fields.get("blocks")
        most = len(tokens) // self._hello["block_tokens"]
        if not isinstance(blocks, int) or not 0 <= blocks <= most:
            raise self._broken(f"{blocks!r} blocks were found; at most {most} were asked for")
        return blocks

    def load(self, salt, tokens, first):
        """The blocks from ``first`` to the end of ``tokens``, each with the checksum it was saved with; fewer where some
        are gone. A block whose bytes are not those of its checksum ends them."""
        fields, payload = self._ask(LOAD, BLOCKS, {"salt": salt, "first": first}, tokens)
        checksums, size = fields.get("checksums"), self.block_bytes
        if not isinstance(checksums, list) or len(payload) != len(checksums) * size:
            raise self._broken("the blocks that came are not as many as their checksums")
        blocks = []
        for at, checksum in enumerate(checksums):
            block = payload[at * size : (at + 1) * size]
            if zlib.crc32(block) != checksum:
                break
            blocks.append(block)
        return blocks

    def save(self, salt, tokens, first, blocks, turn=0):
        """Hands over blocks, the first of which is the prompt's block ``first``. How many the host keeps. Parts of several
        workers are one block where they have the same ``turn``."""
        checksums = [zlib.crc32(block) for block in blocks]
        fields = {"salt": salt, "first": first, "checksums": checksums, "turn": turn}
        fields, _ = self._ask(SAVE, SAVED, fields, tokens, blocks)
        return fields.get("blocks", 0)

    def idle(self, engine, reason):
        """Says that no KV will come from this engine, and why. Instead of a hello: the connection is of no further use."""
        with self._lock:
            try:
                self._open()
                self._send(IDLE, {"engine": engine, "reason": reason}, [])
                self._receive(NOTED)
            except (OSError, ValueError) as error:
                raise Unreachable(f"{self._path}: {error}") from error
            finally:
                self._drop()

    def close(self):
        with self._lock:
            self._drop()

    def _ask(self, kind, expected, fields, tokens, blocks=()):
        fields["tokens"] = len(tokens)
        ids = array.array("I", tokens)
        if sys.byteorder == "big":
            ids.byteswap()
        with self._lock:
            try:
                self._connect()
                self._send(kind, fields, [ids.tobytes(), *blocks])
                return self._receive(expected)
            except Refused:
                self._drop()
                raise
            except (OSError, ValueError) as error:
                self._drop()
                raise Unreachable(f"{self._path}: {error}") from error

    def _connect(self):
        if self._socket is not None:
            return
        if time.monotonic() < self._not_before:
            raise OSError("it was not there a moment ago")
        self._not_before = time.monotonic() + RETRY
        self._open()
        self._send(HELLO, self._hello, [])
        welcome, _ = self._receive(WELCOME)
        self.block_bytes = welcome["block_bytes"]

    def _open(self):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(self._timeout)
        self._socket.connect(self._path)

    def _send(self, kind, fields, payload):
        text = json.dumps(fields).encode()
        length = sum(len(part) for part in payload)
        head = HEAD.pack(MAGIC, VERSION, kind, 0, len(text), zlib.crc32(text), length)
        self._socket.sendall(head + text)
        for part in payload:
            self._socket.sendall(part)

    def _receive(self, expected):
        magic, version, kind, _, length, checksum, payload = HEAD.unpack(self._read(HEAD.size))
        if (magic, version) != (MAGIC, VERSION):
            raise ValueError(f"this is no host of version {VERSION}: {magic!r}, {version}")
        if length > FIELDS_MOST or payload > PAYLOAD_MOST:
            raise ValueError(f"a frame of {length} and {payload} bytes")
        text = self._read(length)
        if zlib.crc32(text) != checksum:
            raise ValueError("a frame came damaged")
        fields = json.loads(text)
        payload = self._read(payload)
        if kind == REFUSED:
            raise Refused(fields.get("reason", "without a reason"))
        if kind != expected:
            raise ValueError(f"a frame of kind {kind} came, not {expected}")
        return fields, payload

    def _read(self, length):
        buffer = bytearray()
        while len(buffer) < length:
            part = self._socket.recv(min(length - len(buffer), 1 << 20))
            if not part:
                raise OSError("the host closed the connection")
            buffer += part
        return bytes(buffer)

    def _broken(self, why):
        self.close()
        return Unreachable(f"{self._path}: {why}")

    def _drop(self):
        if self._socket is not None:
            self._socket.close()
            self._socket = None
