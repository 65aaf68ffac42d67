"""The keys and values of all sequences as the attention kernels read them: 16 positions at a time.

A layer's keys are [blocks, block_size / 16, kv_heads, head, 16 positions], its values [..., kv_heads, 16 positions, head], and
the steps of 8-bit ones [..., kv_heads, 16 positions] of float32.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from chairlift.execute.cpu.memory import aligned
from chairlift.execute.cpu.operations import KV_BYTES

PLACE = 16


class KVCache:
    """Memory for `num_blocks` blocks. It is left unwritten: the system commits a page of it when it is first used."""

    def __init__(self, *, layers: int, num_blocks: int, block_size: int, kv_heads: int, head: int, kind: str) -> None:
        assert kind in KV_BYTES
        assert block_size % PLACE == 0, f"block_size must be a multiple of {PLACE}"
        self.kind = kind
        self.num_blocks = num_blocks
        self.block_size = block_size
        vectors = num_blocks * block_size * kv_heads
        self._keys = [aligned(vectors * head * KV_BYTES[kind], np.uint8) for _ in range(layers)]
        self._values = [aligned(vectors * head * KV_BYTES[kind], np.uint8) for _ in range(layers)]
        steps = vectors if kind == "int8" else 0
        self._key_steps = [aligned(steps, np.float32) for _ in range(layers)]
        self._value_steps = [aligned(steps, np.float32) for _ in range(layers)]

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Everything that these blocks hold, each to its target, as if one after the other; no target is a later source.

        In NumPy, as it happens once in the life of a choice and moves memory in stretches as long as a block's part of a layer.
        """
        origins, goals = np.array(sources), np.array(targets)
        for part in chain(self._keys, self._values, self._key_steps, self._value_steps):
            blocks = part.reshape(self.num_blocks, -1)
            blocks[goals] = blocks[origins]

    @property
    def position_bytes(self) -> int:
        """Keys and values of one position in one layer, with their steps."""
        parts = (self._keys, self._values, self._key_steps, self._value_steps)
        return sum(part[0].nbytes for part in parts) // (self.num_blocks * self.block_size)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (*self._keys, *self._values, *self._key_steps, *self._value_steps))

    def keys(self, layer: int) -> int:
        return self._keys[layer].ctypes.data

    def values(self, layer: int) -> int:
        return self._values[layer].ctypes.data

    def key_steps(self, layer: int) -> int:
        return self._key_steps[layer].ctypes.data

    def value_steps(self, layer: int) -> int:
        return self._value_steps[layer].ctypes.data
