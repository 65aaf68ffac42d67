"""Writes the rows of a step into tensors of the device. The only Python that runs for every row of every step.

Knows rows, positions, blocks and slots; knows nothing of layers and of drawing.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from chairlift.core.types import Work
from chairlift.execute.torch.device import Device

PENDING = -1
"""Stands for a token that a plan in flight draws."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One step. Tokens of all rows lie one after another, those of row r from `bounds[r]` to `bounds[r + 1]`.

    The last token of a row sees `contexts[r]` positions, itself included, which lie in the blocks `tables[r]`; what a table
    has beyond them means nothing. A row that sees nothing (0) is a pad. Token t of a row of n tokens has position
    `contexts[r] - n + t`, and its keys and values go to `slots`, counted in positions from the first block; -1: nowhere.
    """

    tokens: Tensor
    """int64 [tokens]"""
    positions: Tensor
    """int64 [tokens]"""
    slots: Tensor
    """int64 [tokens]"""
    bounds: Tensor
    """int32 [rows + 1]"""
    contexts: Tensor
    """int32 [rows]"""
    tables: Tensor
    """int32 [rows, most blocks of any row there may be]"""
    last: Tensor
    """int64 [rows that draw]: the last token of each."""
    pending: Tensor | None
    """int64 [rows that draw]: the last token of each that was pending, -1 of the others. None if there is none."""
    counts: tuple[int, ...]
    """On the host: tokens of each row."""
    seen: tuple[int, ...]
    """On the host: `contexts`."""

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return max(self.counts)

    @property
    def furthest(self) -> int:
        """The largest context."""
        return max(self.seen)


class _Host:
    """What the device's buffers are filled from."""

    def __init__(self, device: Device, longs: int, ints: int, rows: int, most_blocks: int) -> None:
        self.longs = device.host(longs, dtype=torch.int64)
        self.ints = device.host(ints, dtype=torch.int32)
        self.tables = device.host(rows, most_blocks, dtype=torch.int32)


class Batches:
    """Buffers on the device for the largest step there may be: they never move, so that steps can be captured over them.

    `flights` steps may have been filled in and not be done: so many copies of the buffers the machine keeps for the device to
    read from.
    """

    def __init__(
        self,
        device: Device,
        *,
        max_tokens: int,
        max_rows: int,
        num_blocks: int,
        block_size: int,
        most_blocks: int,
        flights: int,
    ) -> None:
        self._device = device
        self._max_tokens, self._max_rows, self._most_blocks = max_tokens, max_rows, most_blocks
        self._num_blocks, self._block_size = num_blocks, block_size
        sizes = (4 * max_tokens + max_rows, 2 * max_rows + 1)
        self._hosts = [_Host(device, *sizes, max_rows, most_blocks) for _ in range(flights)]
        self._longs, self._ints = (
            torch.zeros(size, dtype=kind, device=device.on)
            for size, kind in zip(sizes, (torch.int64, torch.int32), strict=True)
        )
        self._tables = torch.zeros((max_rows, most_blocks), dtype=torch.int32, device=device.on)
        self._turn = 0

    def fill(self, work: Sequence[Work], drawn: Tensor, drawn_by: Mapping[str, int]) -> Batch:
        """Describes a step of at least one row. A token PENDING is the one that `drawn_by` names out of `drawn` int64 [draws].

        The buffers are used again: what was asked of the device before this must be about the last batch, what comes after it
        about this one.
        """
        host = self._hosts[self._turn]
        self._turn = (self._turn + 1) % len(self._hosts)
        counts = [len(row.tokens) for row in work]
        seen = [0 if row.pad else row.start + count for row, count in zip(work, counts, strict=True)]
        total, rows = sum(counts), len(work)
        self._check(work, counts, total)
        pending = self._write(host, work, counts, seen, drawn_by)
        self._device.upload(self._longs, host.longs)
        self._device.upload(self._ints, host.ints)
        self._device.upload(self._tables[:rows], host.tables[:rows])
        tokens, positions, slots, sources = (self._longs[at * self._max_tokens :][:total] for at in range(4))
        drawing = sum(bool(row.draws) and not row.pad for row in work)
        last = self._longs[4 * self._max_tokens :][:drawing]
        if pending:
            torch.where(sources >= 0, drawn[sources.clamp(min=0)], tokens, out=tokens)
        return Batch(
            tokens=tokens,
            positions=positions,
            slots=slots,
            bounds=self._ints[: rows + 1],
            contexts=self._ints[self._max_rows + 1 :][:rows],
            tables=self._tables[:rows],
            last=last,
            pending=torch.where(sources[last] >= 0, tokens[last], PENDING) if pending else None,
            counts=tuple(counts),
            seen=tuple(seen),
        )

    def _write(
        self, host: _Host, work: Sequence[Work], counts: list[int], seen: list[int], drawn_by: Mapping[str, int]
    ) -> bool:
        """Whether any token is pending."""
        longs, ints, tables = host.longs.numpy(), host.ints.numpy(), host.tables.numpy()
        total, rows, size = sum(counts), len(work), self._block_size
        tokens, positions, slots, sources = (longs[at * self._max_tokens :][:total] for at in range(4))
        bounds = ints[: rows + 1]
        np.cumsum(counts, out=bounds[1:])
        ints[self._max_rows + 1 :][:rows] = seen
        joined = array("i")
        for at, row in enumerate(work):
            joined.extend(row.tokens)
            if not row.pad:
                tables[at, : len(row.blocks)] = row.blocks
        tokens[:] = joined
        of_row = np.repeat(np.arange(rows), counts)
        # Pads are computed from position 0 on, wherever they would be: no table of turns is too short for them.
        starts = np.array([0 if row.pad else row.start for row in work])
        positions[:] = np.arange(total) - (bounds[:-1] - starts)[of_row]
        pads = np.array([row.pad for row in work])[of_row]
        slots[:] = np.where(pads, -1, tables[of_row, np.where(pads, 0, positions // size)] * size + positions % size)
        widest = max((len(row.blocks) for row in work if not row.pad), default=0)
        used = tables[:rows, :widest]
        assert 0 <= used.min(initial=0) <= used.max(initial=0) < self._num_blocks, "a block that is not there"
        ends = bounds[1:] - 1
        drawing = [bool(row.draws) and not row.pad for row in work]
        longs[4 * self._max_tokens :][: sum(drawing)] = ends[drawing]
        awaited = [drawn_by.get(row.seq_id, -1) if row.tokens[-1] == PENDING else -1 for row in work]
        if max(awaited) < 0:
            return False
        sources[:] = -1
        sources[ends] = awaited
        return True

    def _check(self, work: Sequence[Work], counts: list[int], total: int) -> None:
        assert total <= self._max_tokens, f"a step of {total} tokens: this executor was built for {self._max_tokens}"
        assert len(work) <= self._max_rows, f"a step of {len(work)} rows: this executor was built for {self._max_rows}"
        for row, count in zip(work, counts, strict=True):
            assert count > 0, f"{row.seq_id}: a row without tokens"
            if not row.pad:
                assert row.start + count <= len(row.blocks) * self._block_size, f"{row.seq_id}: too few blocks"
                assert len(row.blocks) <= self._most_blocks, f"{row.seq_id}: too many blocks"
