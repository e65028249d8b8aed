"""Blocks of an engine's cache as bytes, ``[2, kv_heads, tokens, head_dim]`` a layer, keys first: what a Portolan host
keeps, whatever the arrangement in the engine's memory.

How a backend arranges a block within ``[kv_heads, block_tokens, 2 * head_dim]`` is its own business and not asked for: the
backend writes known keys and values into a cache of two blocks, and the arrangement that gives them back is taken.
Where none does, no block is read or written.
"""

import torch


def _packed(block, tokens, width):
    # A token's key and value lie side by side.
    return torch.stack((block[..., :width], block[..., width:]))


def _halves(block, tokens, width):
    # All keys of a head, then all its values.
    return block.reshape(block.shape[0], 2, tokens, width).transpose(0, 1)


def _halves_keys_across(block, tokens, width):
    # The same, keys with tokens as columns: what vLLM's kernels for CPUs read.
    keys, values = _halves(block, tokens, width)
    return torch.stack((keys.reshape(-1, width, tokens).transpose(1, 2), values))


def _from_packed(piece, tokens, width):
    return torch.cat((piece[0], piece[1]), dim=-1)


def _from_halves(piece, tokens, width):
    return piece.transpose(0, 1).reshape(piece.shape[1], tokens, 2 * width)


def _from_halves_keys_across(piece, tokens, width):
    keys = piece[0].transpose(1, 2).reshape(-1, tokens, width)
    return _from_halves(torch.stack((keys, piece[1])), tokens, width)


ARRANGEMENTS = {
    "packed": (_packed, _from_packed),
    "halves": (_halves, _from_halves),
    "halves, keys across": (_halves_keys_across, _from_halves_keys_across),
}


class Arrangement:
    """How the layers of one engine arrange a block."""

    def __init__(self, name, tokens, width):
        self.name = name
        self._tokens = tokens
        self._width = width
        self._read, self._write = ARRANGEMENTS[name]

    @classmethod
    def found(cls, layer, cache, tokens, width):
        """The arrangement of ``layer`` (an attention layer of vLLM) in caches like ``cache``, of blocks of ``tokens``; none
        where it is none of those known here. A backend may cut the engine's blocks into smaller ones of its own."""
        if getattr(cache, "ndim", 0) != 4 or tuple(cache.shape[2:]) != (tokens, 2 * width):
            return None
        heads = cache.shape[1]
        scratch = torch.zeros_like(cache[:2])
        count = tokens + 1
        ramp = torch.arange(count * heads * width, device=cache.device, dtype=torch.float32)
        # Every value of a block apart from the others, and exact in eight bits of mantissa.
        keys = ((ramp % 251) + 1).reshape(count, heads, width).to(cache.dtype)
        values = -((ramp % 241) + 1).reshape(count, heads, width).to(cache.dtype)
        slots = torch.arange(tokens - 1, tokens - 1 + count, device=cache.device)
        try:
            layer.impl.do_kv_cache_update(layer, keys, values, scratch, slots)
        except Exception:  # Whatever a backend says that is not asked this way: it is not known here.
            return None
        # The second block is full: tokens 1 and on.
        wanted = torch.stack((keys[1:], values[1:])).permute(0, 2, 1, 3)
        for name in ARRANGEMENTS:
            found = cls(name, tokens, width)
            read = found._read(scratch[1], tokens, width)
            written = found._write(read, tokens, width)
            if torch.equal(read, wanted) and torch.equal(written, scratch[1]):
                return found
        return None

    def read(self, block):
        """A block as bytes."""
        piece = self._read(block, self._tokens, self._width).contiguous().cpu()
        return piece.view(torch.uint8).numpy().tobytes()

    def write(self, block, data):
        """Bytes into a block."""
        heads = block.shape[0]
        piece = torch.frombuffer(bytearray(data), dtype=block.dtype)
        piece = piece.reshape(2, heads, self._tokens, self._width)
        block.copy_(self._write(piece, self._tokens, self._width))
