"""The arrangement of blocks, against backends that arrange them in every known way and in one that is not. Needs torch;
with vLLM for CPUs installed, its own kernel is asked too."""

import os
import sys
import types
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))

try:
    import torch

    from portolan_vllm.arrangement import ARRANGEMENTS, Arrangement
except ImportError:
    torch = None

TOKENS, HEADS, WIDTH = 32, 2, 8


def layer(write):
    """An attention layer whose backend puts a token at ``slot`` as ``write(cache, block, offset, key, value)`` says."""

    def update(_, keys, values, cache, slots):
        for key, value, slot in zip(keys, values, slots.tolist()):
            write(cache[slot // TOKENS], slot % TOKENS, key, value)

    return types.SimpleNamespace(impl=types.SimpleNamespace(do_kv_cache_update=update))


def packed(block, at, key, value):
    block[:, at, :WIDTH], block[:, at, WIDTH:] = key, value


def halves(block, at, key, value):
    parts = block.view(HEADS, 2, TOKENS, WIDTH)
    parts[:, 0, at], parts[:, 1, at] = key, value


def across(block, at, key, value):
    block.view(HEADS, 2, WIDTH, TOKENS)[:, 0, :, at] = key
    block.view(HEADS, 2, TOKENS, WIDTH)[:, 1, at] = value


def values_first(block, at, key, value):
    packed(block, at, value, key)


@unittest.skipIf(torch is None, "torch is not installed")
class Arranged(unittest.TestCase):
    def cache(self, dtype=None):
        return torch.zeros(4, HEADS, TOKENS, 2 * WIDTH, dtype=dtype or torch.float32)

    def test_each_is_found_by_what_the_backend_does_and_bytes_come_back(self):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for name, write in zip(ARRANGEMENTS, (packed, halves, across)):
                found = Arrangement.found(layer(write), self.cache(dtype), TOKENS, WIDTH)
                self.assertEqual(found.name, name)
                block = torch.randn(HEADS, TOKENS, 2 * WIDTH).to(dtype)
                data = found.read(block)
                self.assertEqual(len(data), 2 * HEADS * TOKENS * WIDTH * dtype.itemsize)
                other = self.cache(dtype)[0]
                found.write(other, data)
                self.assertTrue(torch.equal(other, block))

    def test_bytes_are_the_same_whatever_the_arrangement(self):
        keys, values = torch.randn(TOKENS, HEADS, WIDTH), torch.randn(TOKENS, HEADS, WIDTH)
        said = set()
        for write in (packed, halves, across):
            found, block = Arrangement.found(layer(write), self.cache(), TOKENS, WIDTH), self.cache()[0]
            for at in range(TOKENS):
                write(block, at, keys[at], values[at])
            said.add(found.read(block))
        wanted = torch.stack((keys, values)).permute(0, 2, 1, 3).contiguous().numpy().tobytes()
        self.assertEqual(said, {wanted})

    def test_one_that_is_not_known_is_not_guessed(self):
        self.assertIsNone(Arrangement.found(layer(values_first), self.cache(), TOKENS, WIDTH))
        self.assertIsNone(Arrangement.found(layer(packed), self.cache(), TOKENS, WIDTH + 1))

    def test_what_a_backend_cannot_be_asked_is_not_known_and_nothing_breaks(self):
        def raises(*_):
            raise NotImplementedError

        self.assertIsNone(Arrangement.found(layer(raises), self.cache(), TOKENS, WIDTH))
        self.assertIsNone(Arrangement.found(types.SimpleNamespace(impl=None), self.cache(), TOKENS, WIDTH))
        # Blocks of 64 tokens, which the backend cuts into two.
        self.assertIsNone(Arrangement.found(layer(packed), self.cache(), 2 * TOKENS, WIDTH))
        for cache in (torch.zeros(2, 4, TOKENS, HEADS, WIDTH), [self.cache()]):
            self.assertIsNone(Arrangement.found(layer(packed), cache, TOKENS, WIDTH))

    def test_the_kernel_of_vllm_for_cpus_is_understood(self):
        try:
            import vllm._C  # noqa: F401
            from vllm import _custom_ops as ops
        except ImportError:
            self.skipTest("vLLM is not installed")
        width = 32
        cache = torch.zeros(4, HEADS, TOKENS, 2 * width)

        def update(_, keys, values, cache, slots):
            parts = cache.view(-1, HEADS, 2 * TOKENS, width).chunk(2, dim=2)
            scale = {"k_scale": 1.0, "v_scale": 1.0, "kv_cache_dtype": "auto"}
            ops.cpu_attn_reshape_and_cache(keys, values, *parts, slots, "vec", **scale)

        one = types.SimpleNamespace(impl=types.SimpleNamespace(do_kv_cache_update=update))
        self.assertIsNotNone(Arrangement.found(one, cache, TOKENS, width))


if __name__ == "__main__":
    unittest.main()
