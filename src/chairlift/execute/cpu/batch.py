"""Writes a plan into the arrays that a step reads. The only Python that runs for every row of every step.

Knows rows, positions, blocks and draws; knows nothing of layers. Arrays of the standard library are filled, as for a few dozen
numbers they are faster than NumPy's.
"""

from array import array
from collections.abc import Sequence
from itertools import chain

import numpy as np

from chairlift.core.types import Work
from chairlift.execute.cpu.draws import Draws
from chairlift.execute.cpu.memory import Words

SEGMENT = 1024
"""Positions of a segment of attention (`kernels.attention`)."""
MAX_ROWS = 32
"""Queries of a piece of attention, all heads counted."""
MAX_PARTIALS = 128
"""Segments in one step that can be computed apart and joined."""
PIECES_A_THREAD = 4
"""With fewer pieces of attention than this, long contexts are split."""


class Batch:
    """One step after another: its arrays, which live until the next is filled in, and where the state says they are.

    At most `max_tokens` tokens and `max_rows` drawing rows make a step. If `contiguous`, the blocks of each row are neighbours,
    and no tables are written.
    """

    def __init__(
        self,
        state: Words,
        *,
        max_tokens: int,
        max_rows: int,
        vocab: int,
        num_blocks: int,
        block_size: int,
        heads: int,
        kv_heads: int,
        threads: int,
        contiguous: bool = False,
    ) -> None:
        self._state = state
        self._contiguous = contiguous
        self._max_tokens, self._max_rows = max_tokens, max_rows
        self._vocab, self._num_blocks, self._block_size = vocab, num_blocks, block_size
        self._tile = max(1, MAX_ROWS // (heads // kv_heads))
        self._few = -(-PIECES_A_THREAD * threads // kv_heads) if threads > 1 else 0
        self._pad_blocks = array("i", range(num_blocks, num_blocks + pad_blocks(max_tokens, block_size)))
        self._arrays: dict[str, array[int]] = {}
        self.draws = Draws((), vocab=vocab)

    def fill(self, work: Sequence[Work]) -> int:
        """Describes a step of at least one row. The highest position in it."""
        # All padded rows write to the same blocks, one over the other, as nobody reads what they computed.
        tables = self._pad_blocks[:] if not self._contiguous and any(row.pad for row in work) else array("i")
        pads = len(tables)
        tokens = array("i")
        positions, slots, last = array("q"), array("q"), array("q")
        items: list[tuple[int, ...]] = []
        highest, size = 0, self._block_size
        for row in work:
            count = len(row.tokens)
            assert count > 0, f"{row.seq_id}: a row without tokens"
            blocks, start = (self._pad_blocks, 0) if row.pad else (row.blocks, row.start)
            assert start + count <= len(blocks) * size, f"{row.seq_id}: too few blocks"
            if self._contiguous:
                table = self._run(row.seq_id, blocks, row.pad)
            elif row.pad:
                table = 0
            else:
                table = len(tables)
                tables.extend(blocks)
            if count == 1:
                # What the two calls below come to for the next token of an answer, which most rows are.
                positions.append(start)
                slots.append(blocks[start // size] * size + start % size)
                segments = start // SEGMENT + 1
                items.append((len(tokens), start, 1, table, 0, segments, -1, segments))
            else:
                self._place(positions, slots, blocks, start, count)
                self._split(items, len(tokens), start, count, table)
            tokens.extend(row.tokens)
            highest = max(highest, start + count - 1)
            if row.draws and not row.pad:
                last.append(len(tokens) - 1)
        self._check(tokens, tables[pads:], len(last))
        if len(items) < self._few:
            items = _by_segment(items)
        # The longest first, so that no thread begins one when the others are through.
        items.sort(key=_cost, reverse=True)
        flat = array("q", chain.from_iterable(items))
        self.draws = Draws([(row.end, row.draws) for row in work if row.draws and not row.pad], vocab=self._vocab)
        self._arrays = {
            "token_ids": array("q", tokens),
            "positions": positions,
            "slots": slots,
            "tables": tables,
            "work": flat,
            "last": last,
            "draws": self.draws.words,
            "row_draws": self.draws.bounds,
            "answers": self.draws.answers,
        }
        self._state.set(tokens=len(tokens), drawing=len(last), items=len(items))
        self._state.set(**{name: content.buffer_info()[0] for name, content in self._arrays.items()})
        return highest

    def _run(self, seq_id: str, blocks: "array[int]", pad: bool) -> int:
        """The first block, which is all that is read of them."""
        first, last = blocks[0], blocks[-1]
        assert last - first + 1 == len(blocks), f"{seq_id}: its blocks are no run"
        assert pad or 0 <= first <= last < self._num_blocks, f"{seq_id}: a block that is not there"
        return first

    def _place(self, positions: "array[int]", slots: "array[int]", blocks: "array[int]", start: int, count: int) -> None:
        """Positions and their slots, block by block."""
        size, end = self._block_size, start + count
        positions.extend(range(start, end))
        while start < end:
            block, within = divmod(start, size)
            here = min(size - within, end - start)
            first = blocks[block] * size + within
            slots.extend(range(first, first + here))
            start += here

    def _split(self, items: list[tuple[int, ...]], token: int, start: int, count: int, table: int) -> None:
        """Pieces of attention, in the order of `words.WORK_ITEM`."""
        for first in range(0, count, self._tile):
            tokens = min(self._tile, count - first)
            position = start + first
            segments = (position + tokens - 1) // SEGMENT + 1
            items.append((token + first, position, tokens, table, 0, segments, -1, segments))

    def _check(self, tokens: "array[int]", blocks: "array[int]", drawing: int) -> None:
        """Read as unsigned numbers, so that negative ones are too large."""
        assert len(tokens) <= self._max_tokens, (
            f"a step of {len(tokens)} tokens: this executor was built for {self._max_tokens}"
        )
        assert drawing <= self._max_rows, f"{drawing} rows draw: this executor was built for {self._max_rows}"
        assert np.frombuffer(tokens, dtype=np.uint32).max() < self._vocab, "a token id beyond the vocabulary"
        assert np.frombuffer(blocks, dtype=np.uint32).max(initial=0) < self._num_blocks, "a block that is not there"


def _cost(item: tuple[int, ...]) -> int:
    """Positions that are met, about."""
    return item[5] * item[2]


def _by_segment(items: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Single positions with more than one segment, cut into their segments as far as there is room for the parts."""
    cut: list[tuple[int, ...]] = []
    used = 0
    for item in items:
        token, position, tokens, table, _, segments, _, _ = item
        if tokens > 1 or segments == 1 or used + segments > MAX_PARTIALS:
            cut.append(item)
            continue
        cut.extend((token, position, 1, table, segment, 1, used, segments) for segment in range(segments))
        used += segments
    return cut


def pad_blocks(tokens: int, block_size: int) -> int:
    """Blocks behind all others, where padded rows leave their keys and values."""
    return -(-tokens // block_size)
