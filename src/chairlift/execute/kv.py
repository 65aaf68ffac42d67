"""The keys and values of all sequences, in blocks: reading and writing through a block table, or by the first block alone.

Knows arrays and block numbers; who owns a block, and since when, is the scheduler's business.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from chairlift.core.types import Move


class KVStore:
    """Keys and values [layers, blocks, block_size, kv_heads, head_dim] of every position that is cached.

    Position p of a sequence lies in slot p % block_size of block number `blocks[p // block_size]`. If `contiguous`, that is
    `blocks[0] + p // block_size`: the blocks of a sequence are neighbours, and what it reads is a view of its one piece.
    """

    def __init__(
        self,
        *,
        layers: int,
        num_blocks: int,
        block_size: int,
        kv_heads: int,
        head_dim: int,
        contiguous: bool = False,
        num_host_blocks: int = 0,
    ) -> None:
        self._contiguous = contiguous
        self.num_blocks = num_blocks
        self.block_size = block_size
        shape = (layers, num_blocks, block_size, kv_heads, head_dim)
        host_shape = (layers, num_host_blocks, block_size, kv_heads, head_dim)
        # Left unwritten on purpose: the system commits a page of it when it is first used.
        self._keys, self._values = np.empty(shape, dtype=np.float32), np.empty(shape, dtype=np.float32)
        self._host_keys, self._host_values = np.empty(host_shape, dtype=np.float32), np.empty(host_shape, dtype=np.float32)

    def slots(self, blocks: Sequence[int], positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where positions of a sequence lie, counted in tokens from the start of the first block of the store."""
        if self._contiguous:
            assert blocks[-1] - blocks[0] + 1 == len(blocks), "blocks that are no run"
            return blocks[0] * self.block_size + positions
        table = np.asarray(blocks, dtype=np.int64)
        return table[positions // self.block_size] * self.block_size + positions % self.block_size

    def write(self, layer: int, slots: NDArray[np.int64], keys: NDArray[np.float32], values: NDArray[np.float32]) -> None:
        """Stores keys and values [tokens, kv_heads, head_dim] in these slots."""
        flat = (-1, *keys.shape[1:])
        self._keys[layer].reshape(flat)[slots] = keys
        self._values[layer].reshape(flat)[slots] = values

    def move(self, move: Move) -> None:
        """Everything that one block holds, to another. Those of the host lie beside the others here, and nobody reads them."""
        for device, host in ((self._keys, self._host_keys), (self._values, self._host_values)):
            source = host if move.kind == "load" else device
            target = host if move.kind == "store" else device
            target[:, move.target] = source[:, move.source]

    def read(self, layer: int, blocks: Sequence[int], first: int, end: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Keys and values [end - first, kv_heads, head_dim] of positions `first` to `end` of a sequence."""
        flat = (-1, *self._keys.shape[3:])
        if self._contiguous:
            base = blocks[0] * self.block_size
            keys, values = (store[layer].reshape(flat)[base + first : base + end] for store in (self._keys, self._values))
            return keys, values
        lowest = first // self.block_size
        table = np.asarray(blocks[lowest : -(-end // self.block_size)], dtype=np.int64)
        wanted = slice(first - lowest * self.block_size, end - lowest * self.block_size)
        return self._keys[layer][table].reshape(flat)[wanted], self._values[layer][table].reshape(flat)[wanted]
