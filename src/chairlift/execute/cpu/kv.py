"""The keys and values of all sequences as the attention kernels read them: 16 positions at a time.

A layer's keys are [blocks, block_size / 16, kv_heads, head, 16 positions], its values [..., kv_heads, 16 positions, head], and
the steps of 8-bit ones [..., kv_heads, 16 positions] of float32.
"""

from collections.abc import Iterable, Sequence
from itertools import chain, groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chairlift.core.types import Move
from chairlift.execute.cpu.memory import aligned
from chairlift.execute.cpu.operations import KV_BYTES

PLACE = 16


class KVCache:
    """Memory for `num_blocks` blocks. It is left unwritten: the system commits a page of it when it is first used.

    `num_host_blocks` more lie beside them, for sequences that are swapped. Kernels do not read those.
    """

    def __init__(
        self,
        *,
        layers: int,
        num_blocks: int,
        block_size: int,
        kv_heads: int,
        head: int,
        kind: str,
        num_host_blocks: int = 0,
    ) -> None:
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
        self._device = [part.reshape(num_blocks, -1) for part in self._parts if part.size]
        self._host = [_rows(num_host_blocks, part.shape[1], part.dtype) for part in self._device]

    def move(self, moves: Sequence[Move]) -> None:
        """Everything that these blocks hold, each to its target, as if one after the other.

        Of neighbouring moves of a kind no target is a later source. In NumPy, as it happens now and then in the life of a
        sequence, and moves memory in stretches as long as a block's part of a layer.
        """
        for kind, alike in groupby(moves, key=lambda move: move.kind):
            pairs = np.array([(move.source, move.target) for move in alike])
            sources = self._host if kind == "load" else self._device
            targets = self._host if kind == "store" else self._device
            for source, target in zip(sources, targets, strict=True):
                target[pairs[:, 1]] = source[pairs[:, 0]]

    @property
    def position_bytes(self) -> int:
        """Keys and values of one position in one layer, with their steps."""
        parts = (self._keys, self._values, self._key_steps, self._value_steps)
        return sum(part[0].nbytes for part in parts) // (self.num_blocks * self.block_size)

    @property
    def nbytes(self) -> int:
        """Of the blocks that are computed with."""
        return sum(part.nbytes for part in self._parts)

    @property
    def _parts(self) -> Iterable[NDArray[Any]]:
        return chain(self._keys, self._values, self._key_steps, self._value_steps)

    def keys(self, layer: int) -> int:
        return self._keys[layer].ctypes.data

    def values(self, layer: int) -> int:
        return self._values[layer].ctypes.data

    def key_steps(self, layer: int) -> int:
        return self._key_steps[layer].ctypes.data

    def value_steps(self, layer: int) -> int:
        return self._value_steps[layer].ctypes.data


def _rows(count: int, width: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    return aligned(count * width, dtype).reshape(count, width)
