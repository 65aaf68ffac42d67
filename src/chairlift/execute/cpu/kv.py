"""The keys and values of all sequences as the attention kernels read them: 16 positions at a time.

A layer's keys are [blocks, block_size / 16, kv_heads, head, 16 positions], its values [..., kv_heads, 16 positions, head].
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from chairlift.execute.cpu.memory import aligned
from chairlift.execute.cpu.operations import KV_KINDS

PLACE = 16


class KVCache:
    """Memory for `num_blocks` blocks. It is left unwritten: the system commits a page of it when it is first used."""

    def __init__(self, *, layers: int, num_blocks: int, block_size: int, kv_heads: int, head: int, kind: str) -> None:
        assert kind in KV_KINDS
        assert block_size % PLACE == 0, f"block_size must be a multiple of {PLACE}"
        self.kind = kind
        self.num_blocks = num_blocks
        self.block_size = block_size
        elements = num_blocks * block_size * kv_heads * head
        dtype = np.float32 if kind == "f32" else np.uint16
        self._keys: list[NDArray[Any]] = [aligned(elements, dtype) for _ in range(layers)]
        self._values: list[NDArray[Any]] = [aligned(elements, dtype) for _ in range(layers)]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (*self._keys, *self._values))

    def keys(self, layer: int) -> int:
        return self._keys[layer].ctypes.data

    def values(self, layer: int) -> int:
        return self._values[layer].ctypes.data
