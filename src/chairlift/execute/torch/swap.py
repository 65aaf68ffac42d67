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

PINNED_BYTES = 256 << 20
"""PyTorch rounds what is pinned up to a power of two: in pieces of nearly one, little is lost by that."""


class HostStore:
    """`num_blocks` blocks beside those of `kv` [layers, blocks, 2, block_size, kv_heads, head_dim].

    A block of the host is one stretch of memory, all layers of it, so that it is sent in one transfer, for whose end nobody
    waits. All is asked for in the order of the device's work: what computed a block is done before it is stored, and a load is
    done before anything that reads what was loaded. Nothing else ever looks at the host's blocks.
    """

    def __init__(
        self,
        device: Device,
        kv: Tensor,
        *,
        num_blocks: int,
        pinned_bytes: int = PINNED_BYTES,
        staged_bytes: int = STAGED_BYTES,
    ) -> None:
        """`pinned_bytes` is what is allocated of the host's memory at once, `staged_bytes` what is gathered on the device."""
        self._device = device
        self._blocks = kv.transpose(0, 1)
        shape, block_bytes = self._blocks.shape[1:], kv[:, 0].nbytes
        self._of_a_piece = _at_least_one(pinned_bytes, block_bytes)
        counts = [min(self._of_a_piece, num_blocks - first) for first in range(0, num_blocks, self._of_a_piece)]
        self._pieces = [device.host(count, *shape, dtype=kv.dtype) for count in counts]
        staged = min(num_blocks, _at_least_one(staged_bytes, block_bytes))
        self._staged = torch.empty((staged, *shape), dtype=kv.dtype, device=kv.device)

    def store(self, moves: Sequence[Move]) -> None:
        """Device to host. No two moves have one target."""
        for part, staged in self._on_the_way(moves):
            torch.index_select(self._blocks, 0, self._numbers([move.source for move in part]), out=staged)
            for move, block in zip(part, staged, strict=True):
                self._of_host(move.target).copy_(block, non_blocking=True)

    def load(self, moves: Sequence[Move]) -> None:
        """Host to device. No two moves have one target."""
        for part, staged in self._on_the_way(moves):
            for move, block in zip(part, staged, strict=True):
                block.copy_(self._of_host(move.source), non_blocking=True)
            self._blocks.index_copy_(0, self._numbers([move.target for move in part]), staged)

    def _on_the_way(self, moves: Sequence[Move]) -> Iterator[tuple[Sequence[Move], Tensor]]:
        """As many at a time as the device has room for beside its own. It is used again: the device does one after another."""
        most = len(self._staged)
        for first in range(0, len(moves), most):
            part = moves[first : first + most]
            yield part, self._staged[: len(part)]

    def _of_host(self, block: int) -> Tensor:
        return self._pieces[block // self._of_a_piece][block % self._of_a_piece]

    def _numbers(self, blocks: list[int]) -> Tensor:
        return self._device.put(np.array(blocks, dtype=np.int64))


def _at_least_one(limit_bytes: int, block_bytes: int) -> int:
    return max(1, limit_bytes // block_bytes)
