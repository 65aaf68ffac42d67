"""Keys and values of those who are swapped, in the machine's memory: to there and back, in the order of the device's work.

Knows tensors and moves; whose blocks they are is the scheduler's business.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from chairlift.core.types import Move
from chairlift.execute.torch.device import Device
from chairlift.execute.torch.sizing import STAGED_BYTES


class HostStore:
    """`num_blocks` blocks beside those of `kv` [layers, blocks, 2, block_size, kv_heads, head_dim].

    A block of the host is one piece, all layers of it, so that it is sent in one transfer, of which nobody waits for the end.
    All is asked for in the order of the device's work: what computed a block is done before it is stored, and a load is done
    before anything that reads what was loaded. Nothing else ever looks at the host's blocks.
    """

    def __init__(self, device: Device, kv: Tensor, *, num_blocks: int) -> None:
        self._device = device
        self._blocks = kv.transpose(0, 1)
        shape = self._blocks.shape[1:]
        self._host = device.host(num_blocks, *shape, dtype=kv.dtype)
        self._staged = torch.empty((staged_blocks(num_blocks, kv[:, 0].nbytes), *shape), dtype=kv.dtype, device=kv.device)

    def store(self, moves: Sequence[Move]) -> None:
        """Device to host. No two moves have one target."""
        for part, staged in self._staged_for(moves):
            torch.index_select(self._blocks, 0, self._numbers([move.source for move in part]), out=staged)
            for move, block in zip(part, staged, strict=True):
                self._host[move.target].copy_(block, non_blocking=True)

    def load(self, moves: Sequence[Move]) -> None:
        """Host to device. No two moves have one target."""
        for part, staged in self._staged_for(moves):
            for move, block in zip(part, staged, strict=True):
                block.copy_(self._host[move.source], non_blocking=True)
            self._blocks.index_copy_(0, self._numbers([move.target for move in part]), staged)

    def _staged_for(self, moves: Sequence[Move]) -> Iterator[tuple[Sequence[Move], Tensor]]:
        """As many at a time as there is room for on the way. It is used again: the device takes one after another."""
        most = len(self._staged)
        for first in range(0, len(moves), most):
            part = moves[first : first + most]
            yield part, self._staged[: len(part)]

    def _numbers(self, blocks: list[int]) -> Tensor:
        return self._device.put(np.array(blocks, dtype=np.int64))


def staged_blocks(num_blocks: int, block_bytes: int) -> int:
    """How many blocks are on the way at once: one is, however large."""
    return min(num_blocks, max(1, STAGED_BYTES // block_bytes))
