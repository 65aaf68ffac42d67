"""Steps for attention, over memory that is no number wherever nothing may be read, and the answers as plainly as possible.

`naive` knows no blocks: it goes query by query, in float64.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from chairlift.execute.torch.attention.heads import Heads

SPARE_BLOCKS = 2
SCALE = 0.3


@dataclass(frozen=True)
class Step:
    """See `attention.rows.Rows`."""

    bounds: Tensor
    contexts: Tensor
    tables: Tensor
    counts: tuple[int, ...]
    seen: tuple[int, ...]

    @property
    def longest(self) -> int:
        return max(self.counts)

    @property
    def furthest(self) -> int:
        return max(self.seen)


@dataclass(frozen=True)
class Case:
    """`rows` has the tokens of each row and the positions that its last token sees: 0 makes it a pad."""

    heads: Heads
    rows: tuple[tuple[int, int], ...]
    window: int | None
    seed: int = 0

    @property
    def batch(self) -> Step:
        return _batch(self.rows, self._tables)

    @property
    def kv(self) -> Tensor:
        """[blocks, 2, block_size, kv_heads, head_dim]"""
        size, tables = self.heads.block_size, self._tables
        shape = (int(tables.max()) + SPARE_BLOCKS, 2, size, self.heads.kv_heads, self.heads.head_dim)
        kv = np.full(shape, np.nan, dtype=np.float32)
        for table, (count, context) in zip(tables, self.rows, strict=True):
            first = 0 if self.window is None else max(0, context - count - self.window + 1)
            for position in range(first, context):
                kv[table[position // size], :, position % size] = self._random(position, int(table[0])).standard_normal(
                    (2, *shape[3:])
                )
        return torch.from_numpy(kv).to(self.heads.dtype)

    @property
    def queries(self) -> Tensor:
        """[tokens, heads, head_dim]"""
        shape = (sum(count for count, _ in self.rows), self.heads.heads, self.heads.head_dim)
        return torch.from_numpy(self._random(1).standard_normal(shape)).to(self.heads.dtype)

    @property
    def _tables(self) -> np.ndarray:
        """Blocks of the rows, in no order, and numbers of no block behind them."""
        size = self.heads.block_size
        wanted = [-(-context // size) for _, context in self.rows]
        blocks = self._random(2).permutation(sum(wanted) + SPARE_BLOCKS)
        tables = np.full((len(wanted), max(wanted) + 1), 0, dtype=np.int32)
        for table, end, count in zip(tables, np.cumsum(wanted), wanted, strict=True):
            table[:count] = blocks[end - count : end]
        return tables

    def _random(self, *of: int) -> np.random.Generator:
        return np.random.default_rng((self.seed, *of))


def _batch(rows: Sequence[tuple[int, int]], tables: np.ndarray) -> Step:
    counts, seen = [count for count, _ in rows], [context for _, context in rows]
    return Step(
        bounds=torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32),
        contexts=torch.tensor(seen, dtype=torch.int32),
        tables=torch.from_numpy(tables),
        counts=tuple(counts),
        seen=tuple(seen),
    )


def naive(case: Case) -> Tensor:
    """float64 [tokens, heads, head_dim]"""
    heads, batch = case.heads, case.batch
    queries, kv = case.queries.double().numpy(), case.kv.double().numpy()
    mixed = np.zeros_like(queries)
    for row, (count, context) in enumerate(case.rows):
        for token in range(count if context else 0):
            place = context - count + token
            seen = range(0 if case.window is None else max(0, place - case.window + 1), place + 1)
            blocks = [int(batch.tables[row, position // heads.block_size]) for position in seen]
            offsets = [position % heads.block_size for position in seen]
            keys, values = kv[blocks, 0, offsets], kv[blocks, 1, offsets]
            at = int(batch.bounds[row]) + token
            for head in range(heads.heads):
                scores = keys[:, head // heads.group] @ queries[at, head] * heads.scale
                shares = np.exp(scores - scores.max())
                mixed[at, head] = shares / shares.sum() @ values[:, head // heads.group]
    return torch.from_numpy(mixed)
