"""Which engines are served, by vLLM's own cache configurations: its grouping of layers is what says how many groups there
are. Needs vLLM."""

import os
import sys
import types
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))

try:
    import torch
    from vllm.v1.core.kv_cache_utils import get_kv_cache_groups
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        MambaSpec,
        MLAAttentionSpec,
        SlidingWindowSpec,
    )
    from vllm.v1.kv_cache_layout import KVCacheLayout

    from portolan_vllm.shape import Shape
except ImportError:
    torch = None

HEADS, WIDTH, BLOCK = 4, 32, 32


def full(dtype=None, heads=HEADS, **more):
    return FullAttentionSpec(
        block_size=BLOCK, num_kv_heads=heads, head_size=WIDTH, dtype=dtype or torch.float32, **more
    )


def windowed():
    return SlidingWindowSpec(
        block_size=BLOCK, num_kv_heads=HEADS, head_size=WIDTH, dtype=torch.float32, sliding_window=128
    )


def state():
    # As large as a block of attention: vLLM has all pages alike.
    numbers = 2 * HEADS * WIDTH * BLOCK
    return MambaSpec(block_size=BLOCK, shapes=((numbers,),), dtypes=(torch.float32,))


def config(workers=1, heads=HEADS, pipeline=1, context=1, one_manager=False):
    return types.SimpleNamespace(
        parallel_config=types.SimpleNamespace(
            world_size=workers * pipeline,
            tensor_parallel_size=workers,
            pipeline_parallel_size=pipeline,
            decode_context_parallel_size=context,
            prefill_context_parallel_size=1,
        ),
        model_config=types.SimpleNamespace(get_total_num_kv_heads=lambda: heads),
        scheduler_config=types.SimpleNamespace(disable_hybrid_kv_cache_manager=one_manager),
        attention_config=types.SimpleNamespace(hisparse_config=None),
        speculative_config=None,
        # Each layer's blocks in one piece, as vLLM has them on CPUs.
        cache_config=types.SimpleNamespace(
            block_size=BLOCK, get_resolved_kv_cache_layout=lambda: KVCacheLayout.LBHNC
        ),
        kv_transfer_config=None,
    )


def shape(config, specs, rank=0):
    layers = {f"model.layers.{at}.self_attn.attn": spec for at, spec in enumerate(specs)}
    caches = KVCacheConfig(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=get_kv_cache_groups(config, layers))
    return Shape(config, caches, rank)


@unittest.skipIf(torch is None, "vLLM is not installed")
class Served(unittest.TestCase):
    def test_attention_alone_is(self):
        found = shape(config(), [full()] * 12)
        self.assertIsNone(found.reason)
        self.assertEqual(found.layers[10], "model.layers.10.self_attn.attn")
        self.assertEqual((found.hello["layers"], found.hello["kv_heads"], found.hello["head_dim"]), (12, HEADS, WIDTH))
        self.assertEqual((found.part["rank"], found.part["ranks"]), (0, 1))

    def test_windows_are_where_vllm_keeps_what_leaves_them(self):
        layers = [full(), windowed(), windowed()] * 2
        found = shape(config(one_manager=True), layers)
        self.assertIsNone(found.reason)
        self.assertEqual(found.hello["layers"], 6)

    def test_each_worker_says_which_heads_it_has(self):
        found = shape(config(workers=2), [full(heads=HEADS // 2)] * 4, rank=1)
        self.assertIsNone(found.reason)
        self.assertEqual((found.hello["kv_heads"], found.part["kv_heads"]), (HEADS, HEADS))
        self.assertEqual((found.part["rank"], found.part["ranks"]), (1, 2))
        self.assertNotIn("rank", found.hello)

    def refused(self, found, *words):
        self.assertIsNone(found.hello)
        for word in words:
            self.assertIn(word, found.reason)

    def test_several_groups_are_not(self):
        self.refused(shape(config(), [full(), windowed(), windowed()] * 2), "groups", "SlidingWindowSpec")
        self.refused(shape(config(), [state(), state(), state(), full()] * 2), "groups", "MambaSpec", "FullAttentionSpec")

    def test_windows_alone_are_not(self):
        self.refused(shape(config(), [windowed()] * 4), "SlidingWindowSpec")

    def test_latent_and_quantised_kv_are_not(self):
        latent = MLAAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=WIDTH, dtype=torch.bfloat16)
        self.refused(shape(config(heads=1), [latent] * 4), "MLAAttentionSpec")
        self.refused(shape(config(), [full(dtype=torch.uint8)] * 4), "uint8")

    def test_repeated_heads_pipelines_and_shared_tokens_are_not(self):
        self.refused(shape(config(workers=8), [full(heads=1)] * 4), "repeated over 8")
        self.refused(shape(config(pipeline=2), [full()] * 4), "pipelines")
        self.refused(shape(config(workers=2, context=2), [full(heads=HEADS // 2)] * 4), "tokens of a block")
        self.refused(Shape(config(), KVCacheConfig(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=[]), 0), "no KV")


if __name__ == "__main__":
    unittest.main()
