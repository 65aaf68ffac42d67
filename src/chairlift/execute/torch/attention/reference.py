"""Attention row by row, in PyTorch's own function: what any other form of it must equal. It runs on any device.

Knows rows, blocks and windows; what the keys are is the decoder's business.
"""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from chairlift.execute.torch.attention.rows import Rows


class ReferenceAttention:
    """Gathers the blocks of a row, then `scaled_dot_product_attention`. Nothing beyond the row's context is ever read.

    It loops over rows by the host's copies of their lengths, so it never waits for the device, and cannot be captured.
    """

    def __init__(self, *, scale: float) -> None:
        self._scale = scale
        self._batch: Rows | None = None
        self._masks: dict[tuple[int, int, int | None], Tensor] = {}

    def plan(self, batch: Rows) -> None:
        self._batch = batch
        self._masks.clear()

    def run(self, layer: int, queries: Tensor, kv: Tensor, window: int | None) -> Tensor:  # noqa: ARG002  (all are alike here)
        batch = self._batch
        assert batch is not None, "nothing was planned"
        mixed = torch.zeros_like(queries)
        begin = 0
        for row, (count, context) in enumerate(zip(batch.counts, batch.seen, strict=True)):
            if context > 0:
                seen = _seen(kv, batch.tables[row], context - count, context, window)
                mixed[begin : begin + count] = self._row(queries[begin : begin + count], seen, window)
            begin += count
        return mixed

    def _row(self, queries: Tensor, seen: Tensor, window: int | None) -> Tensor:
        """`queries` [n, heads, head_dim] are at the last n of the positions `seen` [2, positions, kv_heads, head_dim]."""
        keys, values = seen
        mixed = F.scaled_dot_product_attention(
            queries.transpose(0, 1)[None],
            keys.transpose(0, 1)[None],
            values.transpose(0, 1)[None],
            attn_mask=self._mask(len(queries), len(keys), window, queries.device),
            scale=self._scale,
            enable_gqa=True,
        )
        return mixed[0].transpose(0, 1)

    def _mask(self, queries: int, keys: int, window: int | None, device: torch.device) -> Tensor | None:
        """[queries, keys]: which are seen. The last query is at the last key. None if all are."""
        if queries == 1:
            return None
        wanted = (queries, keys, window)
        if wanted not in self._masks:
            self._masks[wanted] = _mask(queries, keys, window, device)
        return self._masks[wanted]


def _seen(kv: Tensor, table: Tensor, start: int, end: int, window: int | None) -> Tensor:
    """Keys and values [2, positions, kv_heads, head_dim] of all positions that any query from `start` to `end` sees."""
    size = kv.shape[2]
    first = 0 if window is None else max(0, start - window + 1)
    lowest = first // size
    blocks = kv[table[lowest : -(-end // size)]]
    return blocks.transpose(0, 1).flatten(1, 2)[:, first - lowest * size : end - lowest * size]


def _mask(queries: int, keys: int, window: int | None, device: torch.device) -> Tensor:
    behind = torch.arange(keys - queries, keys, device=device)[:, None] - torch.arange(keys, device=device)
    return behind >= 0 if window is None else (behind >= 0) & (behind < window)
