"""What an engine keeps, and whether a host takes it: blocks of attention over all tokens, one kind in every layer.

Layers that look at a window of tokens are such blocks where vLLM keeps what leaves the window, as it does with its hybrid
cache manager off (``--disable-hybrid-kv-cache-manager``). Each of several tensor parallel workers has some heads of
every block; the host puts their parts together.
"""

import torch
from vllm import __version__ as vllm_version
from vllm.v1.kv_cache_interface import FullAttentionSpec

DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


class Shape:
    """What the engine keeps, if it is of the kind that a host takes; else ``reason`` says why not.

    ``hello`` is said by who speaks for all of the engine, ``part`` by the worker ``rank``.
    """

    def __init__(self, config, caches, rank):
        self.hello = self.part = None
        parallel, groups = config.parallel_config, caches.kv_cache_groups
        self.reason = _workers(parallel) or _groups(groups)
        if self.reason:
            return
        spec, ranks = groups[0].kv_cache_spec, parallel.tensor_parallel_size
        heads = config.model_config.get_total_num_kv_heads()
        if spec.num_kv_heads * ranks != heads:
            self.reason = f"{heads} heads of keys are not parted but repeated over {ranks} workers"
            return
        self.layers = sorted(groups[0].layer_names, key=_number)
        self.width, self.block = spec.head_size, spec.block_size
        self.hello = {
            "engine": f"vllm {vllm_version}",
            "layers": len(self.layers),
            "kv_heads": heads,
            "head_dim": spec.head_size,
            "dtype": DTYPES[spec.dtype],
            "block_tokens": spec.block_size,
        }
        self.part = {**self.hello, "rank": rank, "ranks": ranks}


def _workers(parallel):
    """Why the engine's workers are not served."""
    if parallel.world_size != parallel.tensor_parallel_size:
        stages = parallel.world_size // parallel.tensor_parallel_size
        return f"its layers lie with {stages} workers; pipelines are not served"
    if getattr(parallel, "decode_context_parallel_size", 1) != 1:
        return "its workers share the tokens of a block, not the heads"
    return None


def _groups(groups):
    """Why the engine's cache groups are not served."""
    if not groups:
        return "it keeps no KV"
    kinds = sorted({type(group.kv_cache_spec).__name__ for group in groups})
    if len(groups) != 1:
        # A load that fails is told to vLLM by the block, which it does not take where there are several groups.
        return f"its KV is {len(groups)} groups of blocks ({', '.join(kinds)}), not one"
    spec = groups[0].kv_cache_spec
    if type(spec) is not FullAttentionSpec:
        return f"its KV is {kinds[0]}, not blocks of attention over all tokens"
    if spec.dtype not in DTYPES or getattr(spec, "head_size_v", None) not in (None, spec.head_size):
        return f"its KV is {spec.dtype}, keys of {spec.head_size} and values of {spec.head_size_v}"
    return None


def _number(layer):
    return [int(part) for part in layer.split(".") if part.isdigit()]
