"""The client against a host that says what it should and what it should not. Needs neither vLLM nor a real host:
``python -m unittest discover host/engine/vllm-connector/tests``."""

import json
import os
import socket
import sys
import tempfile
import threading
import unittest
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))

from portolan_vllm import client as wire  # noqa: E402
from portolan_vllm.client import Client, Refused, Unreachable  # noqa: E402

HELLO = {"engine": "t", "layers": 1, "kv_heads": 1, "head_dim": 1, "dtype": "f32", "block_tokens": 4}
SIZE = 32


def frame(kind, fields, payload=b"", **wrong):
    text = json.dumps(fields).encode()
    head = wire.HEAD.pack(
        wrong.get("magic", wire.MAGIC),
        wrong.get("version", wire.VERSION),
        kind,
        0,
        wrong.get("length", len(text)),
        wrong.get("checksum", zlib.crc32(text)),
        wrong.get("claimed", len(payload)),
    )
    return head + text + payload


class Host:
    """Answers each frame with what ``reply(kind, fields, payload)`` gives; ``None`` closes the connection."""

    def __init__(self, reply):
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "kv.sock")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.path)
        self.listener.listen()
        self.heard, self.reply = [], reply
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                try:
                    self._serve(connection)
                except OSError:
                    # The client left in the middle of something.
                    pass

    def _serve(self, connection):
        while True:
            head = connection.recv(wire.HEAD.size, socket.MSG_WAITALL)
            if len(head) < wire.HEAD.size:
                return
            _, _, kind, _, length, _, payload = wire.HEAD.unpack(head)
            fields = json.loads(connection.recv(length, socket.MSG_WAITALL))
            payload = connection.recv(payload, socket.MSG_WAITALL) if payload else b""
            self.heard.append((kind, fields, payload))
            if kind == wire.HELLO and self.reply is not refuse:
                answer = frame(wire.WELCOME, {"version": 1, "block_bytes": SIZE, "payload_most": 1})
            else:
                answer = self.reply(kind, fields, payload)
            if answer is None:
                return
            connection.sendall(answer)

    def close(self):
        self.listener.close()
        self.folder.cleanup()


def refuse(kind, fields, payload):
    return frame(wire.REFUSED, {"reason": "blocks of 16 here"})


class Talk(unittest.TestCase):
    def setUp(self):
        self.now = wire.RETRY
        wire.RETRY = 0.0

    def tearDown(self):
        wire.RETRY = self.now

    def host(self, reply):
        host = Host(reply)
        self.addCleanup(host.close)
        return host, Client(host.path, HELLO, timeout=0.5)

    def test_it_finds_loads_and_saves(self):
        blocks = [bytes([n]) * SIZE for n in (1, 2)]

        def reply(kind, fields, payload):
            if kind == wire.FIND:
                return frame(wire.FOUND, {"blocks": 2})
            if kind == wire.LOAD:
                sums = [zlib.crc32(block) for block in blocks]
                return frame(wire.BLOCKS, {"checksums": sums}, b"".join(blocks))
            return frame(wire.SAVED, {"blocks": 2})

        host, client = self.host(reply)
        tokens = list(range(300, 309))
        self.assertEqual(client.find("s", tokens, 5), 2)
        self.assertEqual(client.load("s", tokens[:8], 0), blocks)
        self.assertEqual(client.save("s", tokens[:8], 0, blocks, 9), 2)
        kinds = [kind for kind, _, _ in host.heard]
        self.assertEqual(kinds, [wire.HELLO, wire.FIND, wire.LOAD, wire.SAVE])
        _, fields, payload = host.heard[3]
        self.assertEqual((fields["salt"], fields["tokens"], fields["first"], fields["turn"]), ("s", 8, 0, 9))
        self.assertEqual(host.heard[1][1]["aside"], 5)
        self.assertEqual(payload[:4], (300).to_bytes(4, "little"))
        self.assertEqual(payload[32:], b"".join(blocks))

    def test_a_block_that_is_not_its_checksums_ends_what_came(self):
        good, bad = b"g" * SIZE, b"b" * SIZE
        sums = [zlib.crc32(good), zlib.crc32(bad) ^ 1, zlib.crc32(good)]
        _, client = self.host(lambda *_: frame(wire.BLOCKS, {"checksums": sums}, good + bad + good))
        self.assertEqual(client.load("s", list(range(12)), 0), [good])

    def test_whatever_a_host_says_wrong_is_unreachable_and_the_next_call_begins_anew(self):
        found = {"blocks": 1}
        wrong = [
            None,
            b"HTTP/1.1 400 Bad Request\r\n\r\nnothing here",
            frame(wire.FOUND, found, magic=b"nope"),
            frame(wire.FOUND, found, version=2),
            frame(wire.FOUND, found, checksum=1),
            frame(wire.FOUND, found, length=1 << 30),
            frame(wire.FOUND, found, claimed=1 << 60),
            frame(wire.FOUND, found, claimed=5),
            frame(wire.SAVED, found),
            frame(wire.FOUND, {"blocks": 3}),
            frame(wire.FOUND, {"blocks": -1}),
            frame(wire.FOUND, {"blocks": "1"}),
            frame(wire.FOUND, {}),
        ]
        said = iter(wrong)
        host, client = self.host(lambda *_: next(said, frame(wire.FOUND, found)))
        for what in wrong:
            with self.assertRaises(Unreachable, msg=repr(what)):
                client.find("s", list(range(9)))
        self.assertEqual(client.find("s", list(range(9))), 1)

    def test_a_host_that_refuses_says_why(self):
        _, client = self.host(refuse)
        with self.assertRaisesRegex(Refused, "blocks of 16 here"):
            client.find("s", list(range(9)))

    def test_an_engine_that_hands_nothing_over_says_so_instead_of_a_hello(self):
        host, client = self.host(lambda *_: frame(wire.NOTED, {}))
        client.idle("vllm test", "four groups")
        kind, fields, _ = host.heard[0]
        self.assertEqual((kind, fields), (wire.IDLE, {"engine": "vllm test", "reason": "four groups"}))
        _, client = self.host(lambda *_: frame(wire.REFUSED, {"reason": "an older host"}))
        with self.assertRaisesRegex(Unreachable, "an older host"):
            client.idle("vllm test", "four groups")

    def test_a_host_that_is_not_there_is_not_asked_again_at_once(self):
        wire.RETRY = 60.0
        client = Client("/nowhere/kv.sock", HELLO)
        for reason in ("No such file", "a moment ago"):
            with self.assertRaisesRegex(Unreachable, reason):
                client.find("s", list(range(9)))

    def test_a_host_that_says_nothing_holds_nobody_up(self):
        def silent(*_):
            threading.Event().wait(3)

        _, client = self.host(silent)
        with self.assertRaisesRegex(Unreachable, "timed out"):
            client.find("s", list(range(9)))


if __name__ == "__main__":
    unittest.main()
