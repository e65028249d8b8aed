"""The official openai client completes, chats and streams against two sites that serve a tiny model."""

import contextlib
import pathlib
import subprocess
import sys
import tempfile
import unittest

import openai

HERE = pathlib.Path(__file__).resolve().parent
MODEL = HERE.parent / "conformance" / "oracle" / "tiny-qwen3"
PORTOLAN = sys.argv.pop(1)

CONFIG = """
data_dir: data
operator_keys: [admin]
models: [{{name: tiny, path: '{model}'}}]
sites:
  - {{name: paris, jurisdiction: eu, listen: '127.0.0.1:0', instances: [{{name: p1, model: tiny}}]}}
  - {{name: virginia, jurisdiction: us, listen: '127.0.0.1:0', instances: [{{name: v1, model: tiny}}]}}
links: [{{from: virginia, to: paris, capacity_mbps: 1000}}]
tenants: [{{name: acme, keys: [acme-key]}}]
"""


@contextlib.contextmanager
def portolan():
    """A running host; gives the address of its first site."""
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "portolan.yaml"
        config.write_text(CONFIG.format(model=MODEL))
        host = subprocess.Popen([PORTOLAN, "serve", "--config", str(config)], stdout=subprocess.PIPE, text=True)
        try:
            line = host.stdout.readline()
            assert "listens on" in line, f"the host did not start: {line!r}"
            yield line.split()[-1]
        finally:
            host.terminate()
            host.wait(timeout=20)


class OpenAiClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(portolan())
        cls.client = openai.OpenAI(base_url=f"{cls.server}/v1", api_key="acme-key", max_retries=0)

    def test_models_are_listed(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["tiny"])

    def test_a_completion_and_its_stream_agree(self):
        ask = dict(model="tiny", prompt="Hello, world! The cat sat on the mat and", max_tokens=16, temperature=0)
        whole = self.client.completions.create(**ask)
        self.assertEqual(whole.usage.prompt_tokens, 17)
        self.assertLessEqual(whole.usage.completion_tokens, 16)
        self.assertTrue(whole.choices[0].text)
        pieces = [chunk.choices[0] for chunk in self.client.completions.create(**ask, stream=True)]
        self.assertEqual("".join(piece.text for piece in pieces), whole.choices[0].text)
        self.assertEqual(pieces[-1].finish_reason, whole.choices[0].finish_reason)

    def test_a_chat_and_its_stream_agree(self):
        ask = dict(
            model="tiny",
            messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
            max_tokens=12,
            temperature=0,
        )
        whole = self.client.chat.completions.create(**ask)
        self.assertEqual(whole.choices[0].message.role, "assistant")
        stream = self.client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
        text, usage = "", None
        for chunk in stream:
            usage = chunk.usage or usage
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(usage.total_tokens, whole.usage.total_tokens)

    def test_prefill_at_the_other_site_gives_the_same_answer(self):
        ask = dict(model="tiny", prompt=list(range(100, 300)), max_tokens=8, temperature=0)
        modes = ["local_only", "remote_preferred"]
        texts = {
            self.client.completions.create(**ask, extra_body={"prefill_policy": mode}).choices[0].text for mode in modes
        }
        self.assertEqual(len(texts), 1)

    def test_errors_are_the_client_s_own_classes(self):
        with self.assertRaises(openai.NotFoundError):
            self.client.completions.create(model="other", prompt="x")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.completions.create(model="tiny", prompt=[1] * 5000)
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        stranger = openai.OpenAI(base_url=f"{self.server}/v1", api_key="wrong", max_retries=0)
        with self.assertRaises(openai.AuthenticationError):
            stranger.models.list()


if __name__ == "__main__":
    unittest.main(verbosity=2)
