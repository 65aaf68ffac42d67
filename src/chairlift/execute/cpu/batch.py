"""Writes a plan into the arrays that a step reads. The only Python that runs for every row of every step.

Knows rows, positions, blocks and draws; knows nothing of layers.
"""

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chairlift.core.types import Work
from chairlift.execute.cpu import words
from chairlift.execute.cpu.arena import Arena
from chairlift.execute.cpu.draws import Draws
from chairlift.execute.cpu.memory import Words

SEGMENT = 1024
"""Positions of a segment of attention (`kernels.attention`)."""
MAX_ROWS = 32
"""Queries of a piece of attention, all heads counted."""


class Batch:
    """Fills the arrays of an arena, and tells the state where they are and how much of them counts."""

    def __init__(self, arena: Arena, state: Words, *, vocab: int, num_blocks: int, block_size: int, queries_a_key: int) -> None:
        self._arena, self._state = arena, state
        self._vocab, self._num_blocks, self._block_size = vocab, num_blocks, block_size
        self._tile = max(1, MAX_ROWS // queries_a_key)
        self._pad_blocks = array("i", range(num_blocks, num_blocks + pad_blocks(arena.tokens, block_size)))
        self._tables: NDArray[Any] = np.zeros(0, dtype=np.int32)
        self._work: NDArray[Any] = np.zeros((0, len(words.WORK_ITEM)), dtype=np.int64)
        self.draws = Draws((), vocab=vocab)
        state.set(
            token_ids=arena.token_ids.ctypes.data,
            positions=arena.positions.ctypes.data,
            slots=arena.slots.ctypes.data,
            last=arena.last.ctypes.data,
        )

    def fill(self, work: Sequence[Work]) -> int:
        """Describes a step of at least one row. The highest position in it."""
        for row in work:
            self._check(row)
        lengths = [len(row.tokens) for row in work]
        count = sum(lengths)
        arena = self._arena
        assert count <= arena.tokens, f"a step of {count} tokens: this executor was built for {arena.tokens}"
        tokens, blocks = array("i"), array("i")
        tables: list[int] = []
        for row in work:
            tokens.extend(row.tokens)
            tables.append(len(blocks))
            blocks.extend(self._pad_blocks if row.pad else row.blocks)
        self._tables = np.frombuffer(blocks, dtype=np.int32)
        starts = np.array([0 if row.pad else row.start for row in work], dtype=np.int64)
        ends = np.cumsum(lengths, dtype=np.int64)
        positions = np.arange(count, dtype=np.int64) + np.repeat(starts - (ends - lengths), lengths)
        first_block = np.repeat(np.array(tables, dtype=np.int64), lengths)
        size = self._block_size
        arena.token_ids[:count] = np.frombuffer(tokens, dtype=np.int32)
        arena.positions[:count] = positions
        arena.slots[:count] = self._tables[first_block + positions // size].astype(np.int64) * size + positions % size
        self._fill_work(starts, ends, lengths, tables)
        drawing = [(row, end - 1) for row, end in zip(work, ends.tolist(), strict=True) if row.draws and not row.pad]
        self._fill_draws(drawing)
        self._state.set(tokens=count, drawing=len(drawing), items=len(self._work), tables=self._tables.ctypes.data)
        return int(positions.max())

    def _fill_work(self, starts: NDArray[np.int64], ends: NDArray[np.int64], lengths: list[int], tables: list[int]) -> None:
        items: list[tuple[int, ...]] = []
        for start, end, length, table in zip(starts.tolist(), ends.tolist(), lengths, tables, strict=True):
            for first in range(0, length, self._tile):
                tokens = min(self._tile, length - first)
                position = start + first
                segments = (position + tokens - 1) // SEGMENT + 1
                items.append((end - length + first, position, tokens, table, 0, segments, -1, 0))
        # The longest first, so that no thread begins one when the others are through.
        items.sort(key=lambda item: -(item[1] + 1) * item[2])
        self._work = np.array(items, dtype=np.int64).reshape(-1, len(words.WORK_ITEM))
        self._state.set(work=self._work.ctypes.data)

    def _fill_draws(self, drawing: Sequence[tuple[Work, int]]) -> None:
        arena, count = self._arena, len(drawing)
        assert count <= arena.rows, f"{count} rows draw: this executor was built for {arena.rows}"
        self.draws = Draws([row.draws for row, _ in drawing], vocab=self._vocab)
        arena.last[:count] = [last for _, last in drawing]
        self._state.set(
            draws=self.draws.words.ctypes.data,
            row_draws=self.draws.bounds.ctypes.data,
            answers=self.draws.answers.ctypes.data,
        )

    def _check(self, row: Work) -> None:
        assert len(row.tokens) > 0, f"{row.seq_id}: a row without tokens"
        assert min(row.tokens) >= 0, f"{row.seq_id}: a negative token id"
        assert max(row.tokens) < self._vocab, f"{row.seq_id}: a token id beyond the vocabulary"
        if row.pad:
            return
        assert row.start + len(row.tokens) <= len(row.blocks) * self._block_size, f"{row.seq_id}: too few blocks"
        assert 0 <= min(row.blocks) <= max(row.blocks) < self._num_blocks, f"{row.seq_id}: no such block"


def pad_blocks(tokens: int, block_size: int) -> int:
    """Blocks behind all others, where padded rows leave their keys and values."""
    return -(-tokens // block_size)
