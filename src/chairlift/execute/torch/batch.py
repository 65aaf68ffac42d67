"""Writes the rows of a step into tensors of the device. The only Python that runs for every row of every step.

Knows rows, positions, blocks and slots; knows nothing of layers and of drawing.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.core.types import PENDING, Work
from chairlift.execute.torch.device import Device


@dataclass(frozen=True, slots=True)
class Batch:
    """One step. Tokens of all rows lie one after another, those of row r from `bounds[r]` to `bounds[r + 1]`.

    The last token of a row sees `contexts[r]` positions, itself included, which lie in the blocks `tables[r]`; what a table
    has beyond them means nothing. Token t of a row of n tokens has position `contexts[r] - n + t`, and its keys and values go
    to `slots`, counted in positions from the first block; -1: nowhere. Padding comes last, all of it in one row or each token
    in a row of its own; it sees nothing (0) and goes nowhere.
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
    """On the host: `contexts`, or what none of them will ever be larger than."""

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return max(self.counts)

    @property
    def furthest(self) -> int:
        """The largest context."""
        return max(self.seen)


Numbers = TypeVar("Numbers", Tensor, NDArray[Any])


class _Buffers(Generic[Numbers]):
    """The numbers of a step. They lie in few pieces, as every piece is a copy to the device."""

    def __init__(self, longs: Numbers, ints: Numbers, tables: Numbers, *, max_tokens: int, max_rows: int) -> None:
        self.longs, self.ints, self.tables = longs, ints, tables
        self.tokens, self.positions, self.slots, self.sources = (
            longs[at * max_tokens : (at + 1) * max_tokens] for at in range(4)
        )
        self.last = longs[4 * max_tokens :]
        self.bounds, self.contexts = ints[: max_rows + 1], ints[max_rows + 1 :]


class _Host:
    """What the device's buffers are filled from: the same memory as tensors and as arrays of NumPy."""

    def __init__(self, longs: Tensor, ints: Tensor, tables: Tensor, *, max_tokens: int, max_rows: int) -> None:
        self.longs, self.ints, self.tables = longs, ints, tables
        arrays = longs.numpy(), ints.numpy(), tables.numpy()
        self.numbers: _Buffers[NDArray[Any]] = _Buffers(*arrays, max_tokens=max_tokens, max_rows=max_rows)
        self.kept: list[array[int] | None] = [None] * max_rows
        """Whose blocks stand in `tables`. Arrays of blocks are never changed, but replaced."""


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
        """`max_rows` without the one of padding. No row has more than `most_blocks` blocks."""
        self._device = device
        self.max_tokens, self._max_rows, self._most_blocks = max_tokens, max_rows, most_blocks
        self._num_blocks, self._block_size = num_blocks, block_size
        rows = max_rows + 1
        longs, ints = 4 * max_tokens + rows, 2 * rows + 1

        def pieces(zeros: Callable[..., Tensor]) -> tuple[Tensor, Tensor, Tensor]:
            return zeros(longs, dtype=torch.int64), zeros(ints, dtype=torch.int32), zeros(rows, most_blocks, dtype=torch.int32)

        self._hosts = [_Host(*pieces(device.host), max_tokens=max_tokens, max_rows=rows) for _ in range(flights)]
        own = pieces(partial(torch.zeros, device=device.on))
        self._own: _Buffers[Tensor] = _Buffers(*own, max_tokens=max_tokens, max_rows=rows)
        self._every = torch.arange(max_rows, device=device.on)
        self._turn = 0

    def single(self, rows: int, *, furthest: int) -> Batch:
        """The buffers as a step of `rows` rows of one token, all of which draw, whatever `fill` has put there when it is done.

        On the host a row only seems to see `furthest` positions: it must be as many as any of them may ever see.
        """
        assert rows <= self._max_rows, f"a step of {rows} rows: this executor was built for {self._max_rows}"
        own = self._own
        return Batch(
            tokens=own.tokens[:rows],
            positions=own.positions[:rows],
            slots=own.slots[:rows],
            bounds=own.bounds[: rows + 1],
            contexts=own.contexts[:rows],
            tables=own.tables[:rows],
            last=self._every[:rows],
            pending=None,
            counts=(1,) * rows,
            seen=(furthest,) * rows,
        )

    def fill(self, work: Sequence[Work], drawn: Tensor, drawn_by: Mapping[str, int], *, rows: int | None = None) -> Batch:
        """Describes a step of at least one row. A token PENDING is the one that `drawn_by` names out of `drawn` int64 [draws].

        A step all of whose rows have one token may be padded to so many `rows`, each of one token: as `single` has it.

        The buffers are used again: what was asked of the device before this must be about the last batch, what comes after it
        about this one.
        """
        host, own = self._hosts[self._turn], self._own
        self._turn = (self._turn + 1) % len(self._hosts)
        real = [row for row in work if not row.pad]
        counts, seen = [len(row.tokens) for row in real], [row.end for row in real]
        self._check(work, real)
        self._write_rows(host, real, counts, seen)
        pending = self._write_sources(host.numbers, real, drawn_by)
        padding = _padding(work, len(real), rows)
        self._write_padding(host.numbers, sum(counts), padding, len(real))
        counts += padding
        seen += [0] * len(padding)
        total, height = sum(counts), len(counts)
        self._device.upload(own.longs, host.longs)
        self._device.upload(own.ints, host.ints)
        self._device.upload(own.tables[:height], host.tables[:height])
        tokens, last = own.tokens[:total], own.last[: sum(bool(row.draws) for row in real)]
        if pending:
            sources = own.sources[:total]
            torch.where(sources >= 0, drawn[sources.clamp(min=0)], tokens, out=tokens)
        return Batch(
            tokens=tokens,
            positions=own.positions[:total],
            slots=own.slots[:total],
            bounds=own.bounds[: height + 1],
            contexts=own.contexts[:height],
            tables=own.tables[:height],
            last=last,
            pending=torch.where(own.sources[last] >= 0, tokens[last], PENDING) if pending else None,
            counts=tuple(counts),
            seen=tuple(seen),
        )

    def _write_rows(self, host: _Host, rows: Sequence[Work], counts: list[int], seen: list[int]) -> None:
        """Everything but where pending tokens come from."""
        height, total, size = len(rows), sum(counts), self._block_size
        numbers = host.numbers
        bounds, tables, positions = numbers.bounds, numbers.tables, numbers.positions[:total]
        tokens = array("i")
        for at, row in enumerate(rows):
            tokens.extend(row.tokens)
            if host.kept[at] is not row.blocks:
                self._write_table(host, at, row)
        np.cumsum(counts, out=bounds[1 : height + 1])
        numbers.contexts[:height] = seen
        numbers.tokens[:total] = tokens
        of_row = np.repeat(np.arange(height), counts)
        positions[:] = np.arange(total) + (np.array(seen, dtype=np.int64) - bounds[1 : height + 1])[of_row]
        numbers.slots[:total] = tables[of_row, positions // size].astype(np.int64) * size + positions % size
        ends = bounds[1 : height + 1][[bool(row.draws) for row in rows]]
        numbers.last[: len(ends)] = ends - 1

    def _write_table(self, host: _Host, at: int, row: Work) -> None:
        blocks = row.blocks
        assert len(blocks) <= self._most_blocks, f"{row.seq_id}: too many blocks"
        assert 0 <= min(blocks) <= max(blocks) < self._num_blocks, f"{row.seq_id}: no such block"
        host.numbers.tables[at, : len(blocks)] = blocks
        host.kept[at] = blocks

    def _write_sources(self, numbers: _Buffers[NDArray[Any]], rows: Sequence[Work], drawn_by: Mapping[str, int]) -> bool:
        """Where among the draws of the last step each pending token is. False if there is none."""
        awaited = [drawn_by[row.seq_id] if row.tokens[-1] == PENDING else -1 for row in rows]
        if max(awaited, default=-1) < 0:
            return False
        numbers.sources[:] = -1
        numbers.sources[numbers.bounds[1 : len(rows) + 1] - 1] = awaited
        return True

    def _write_padding(self, numbers: _Buffers[NDArray[Any]], first: int, counts: list[int], row: int) -> None:
        """Rows from `row` on of tokens from `first` on that are computed and dropped, whatever they are."""
        place, height = slice(first, first + sum(counts)), len(counts)
        numbers.tokens[place] = 0
        numbers.positions[place] = 0
        numbers.slots[place] = -1
        numbers.bounds[row + 1 : row + 1 + height] = first + np.cumsum(counts)
        numbers.contexts[row : row + height] = 0

    def _check(self, work: Sequence[Work], rows: Sequence[Work]) -> None:
        total = sum(len(row.tokens) for row in work)
        assert total <= self.max_tokens, f"a step of {total} tokens: this executor was built for {self.max_tokens}"
        assert len(rows) <= self._max_rows, f"a step of {len(rows)} rows: this executor was built for {self._max_rows}"
        for row in rows:
            assert row.tokens, f"{row.seq_id}: a row without tokens"
            assert row.end <= len(row.blocks) * self._block_size, f"{row.seq_id}: too few blocks"


def _padding(work: Sequence[Work], real: int, rows: int | None) -> list[int]:
    """Tokens of each row of padding: one row of all of them, or as many rows of one token as are missing to `rows`."""
    if rows is not None:
        return [1] * (rows - real)
    count = sum(len(row.tokens) for row in work if row.pad)
    return [count] if count else []
