"""How much KV memory to use, and how many blocks that makes. Arithmetic only: what the machine has comes in as an argument."""

import math
from typing import NamedTuple

from chairlift.core.errors import ConfigError

DEFAULT_SHARE = 0.25
"""Of the free memory, unless a size is asked for: weights and the rest of the machine need the other part."""


class KVSize(NamedTuple):
    """The KV pool of an engine. `max_model_len` is what was asked for, or what fits if nothing was."""

    num_blocks: int
    max_model_len: int
    kv_bytes: int

    def full_contexts(self, block_size: int) -> float:
        """How many requests of the longest length fit at the same time."""
        return self.num_blocks / math.ceil(self.max_model_len / block_size)


def host_blocks(kv: KVSize, *, block_size: int, max_num_seqs: int, swap_bytes: int) -> int:
    """Blocks of a store in host memory for those who are swapped: no more than all places together could fill."""
    block_bytes = kv.kv_bytes // kv.num_blocks
    if swap_bytes < block_bytes:
        raise ConfigError(f"swap_space is less than the {block_bytes} bytes of one block of the KV cache")
    return min(swap_bytes // block_bytes, max_num_seqs * math.ceil(kv.max_model_len / block_size))


def bytes_per_token(*, layers: int, kv_heads: int, head_dim: int, itemsize: int) -> int:
    """Keys and values of one position in all layers."""
    return 2 * layers * kv_heads * head_dim * itemsize


def size_pool(
    *,
    token_bytes: int,
    block_size: int,
    max_num_seqs: int,
    context: int,
    free_bytes: int,
    max_model_len: int | None = None,
    kv_bytes: int | None = None,
    share: float = DEFAULT_SHARE,
) -> KVSize:
    """The pool for a model of `context` tokens on a machine with `free_bytes` to spare.

    Without `kv_bytes` it takes a `share` of what is free, but no more than `max_num_seqs` full contexts could use. Without
    `max_model_len` the context shrinks to what fits, so that every request of a legal length can run.
    """
    if max_model_len is not None and max_model_len > context:
        raise ConfigError(f"max_model_len ({max_model_len}) is more than the {context} tokens that the model was made for")
    wanted = max_model_len or context
    block_bytes = token_bytes * block_size
    useful = max_num_seqs * math.ceil(wanted / block_size)
    budget = kv_bytes if kv_bytes is not None else int(share * free_bytes)
    num_blocks = min(useful, budget // block_bytes)
    if num_blocks < 1:
        raise ConfigError(f"the KV cache needs at least {block_bytes} bytes for one block; it was given {budget}")
    if max_model_len is None:
        wanted = min(wanted, num_blocks * block_size)
    elif num_blocks * block_size < max_model_len:
        raise ConfigError(
            f"max_model_len ({max_model_len}) does not fit into the KV cache: {budget} bytes hold"
            f" {num_blocks * block_size} tokens; lower it or raise kv_cache_memory_bytes"
        )
    return KVSize(num_blocks, wanted, num_blocks * block_bytes)
