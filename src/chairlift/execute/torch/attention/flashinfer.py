"""Attention by FlashInfer (Ye et al., 2025), where it is installed: its two wrappers for keys and values in blocks.

Knows what they want to be told of a batch: https://docs.flashinfer.ai (0.2 and later). Written after that documentation; this
project's own tests cannot run it, as it needs a GPU.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from chairlift.execute.torch.attention.heads import Heads
from chairlift.execute.torch.attention.rows import Rows

WORKSPACE_BYTES = 128 * 2**20
"""What FlashInfer recommends for what it splits and joins."""
TENSOR_CORES_FROM = 4
"""Query heads of a key head from which rows of one token go through its matrix products; its documentation says: many."""


class Wrapper(Protocol):
    """What FlashInfer's wrappers have in common: they plan for a batch and a window, and then run for every layer."""

    def plan(self, *args: Any, **kwargs: Any) -> None: ...

    def run(self, queries: Tensor, kv: Tensor, /) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Pages:
    """A batch in FlashInfer's words. On the host but for `indices`."""

    bounds: Tensor
    """int32 [rows + 1]: the first token of each row."""
    indptr: Tensor
    """int32 [rows + 1]: the first of each row's `indices`."""
    indices: Tensor
    """int32 [blocks of all rows]"""
    last: Tensor
    """int32 [rows]: positions in the last block of each, at least 1."""


def pages(batch: Rows, *, block_size: int) -> Pages:
    """A row that sees nothing is said to see as many positions as it has tokens: FlashInfer has no word for it."""
    counts = torch.tensor(batch.counts, dtype=torch.int32)
    seen = torch.maximum(torch.tensor(batch.seen, dtype=torch.int32), counts)
    blocks = (seen + block_size - 1) // block_size
    indptr = _starts(blocks)
    total, tables = int(indptr[-1]), batch.tables
    # On the device from here on, and without asking it how many there are.
    starts, lengths = (host.to(tables.device, non_blocking=True) for host in (indptr, blocks))
    rows = torch.repeat_interleave(torch.arange(len(seen), device=tables.device), lengths, output_size=total)
    columns = (torch.arange(total, device=tables.device) - starts[rows]).clamp(max=tables.shape[1] - 1)
    return Pages(_starts(counts), indptr, tables[rows, columns], seen - (blocks - 1) * block_size)


def _starts(sizes: Tensor) -> Tensor:
    return torch.nn.functional.pad(sizes.cumsum(0), (1, 0)).int()


class FlashInferAttention:
    """One wrapper plans for one window, so there is one for each; a step plans those that its layers ask for.

    The tokens of rows that see nothing are set to zero afterwards.
    """

    def __init__(self, heads: Heads, *, single: Callable[[], Wrapper], several: Callable[[], Wrapper]) -> None:
        """`single` makes wrappers for rows of one token, `several` those for any."""
        self._heads, self._single, self._several = heads, single, several
        self._singles: dict[int | None, Wrapper] = {}
        self._severals: dict[int | None, Wrapper] = {}
        self._planned: dict[int | None, Wrapper] = {}
        self._batch: Rows | None = None
        self._pages: Pages | None = None
        self._blind: Tensor | None = None

    def plan(self, batch: Rows) -> None:
        self._batch, self._planned = batch, {}
        self._pages = pages(batch, block_size=self._heads.block_size)
        self._blind = _blind(batch) if 0 in batch.seen else None

    def run(self, layer: int, queries: Tensor, kv: Tensor, window: int | None) -> Tensor:  # noqa: ARG002  (all are alike here)
        if window not in self._planned:
            self._planned[window] = self._wrapper(window)
        mixed = self._planned[window].run(queries, kv)
        return mixed if self._blind is None else mixed.masked_fill_(self._blind, 0)

    def _wrapper(self, window: int | None) -> Wrapper:
        batch, told, heads = self._batch, self._pages, self._heads
        assert batch is not None, "nothing was planned"
        assert told is not None, "nothing was planned"
        # FlashInfer counts the keys to the left of a query, the query's own not among them.
        left = -1 if window is None else window - 1
        alike = {"window_left": left, "sm_scale": heads.scale, "q_data_type": heads.dtype, "kv_data_type": heads.dtype}
        shape = (heads.heads, heads.kv_heads, heads.head_dim, heads.block_size)
        if batch.longest == 1:
            wrapper = _kept(self._singles, window, self._single)
            wrapper.plan(told.indptr, told.indices, told.last, *shape, **alike)
        else:
            wrapper = _kept(self._severals, window, self._several)
            wrapper.plan(told.bounds, told.indptr, told.indices, told.last, *shape, causal=True, **alike)
        return wrapper


def _kept(wrappers: dict[int | None, Wrapper], window: int | None, make: Callable[[], Wrapper]) -> Wrapper:
    if window not in wrappers:
        wrappers[window] = make()
    return wrappers[window]


def _blind(batch: Rows) -> Tensor:
    """[tokens, 1, 1]: whether a token's row sees nothing."""
    counts = batch.bounds.diff()
    return torch.repeat_interleave(batch.contexts == 0, counts, output_size=sum(batch.counts))[:, None, None]


def build(heads: Heads, *, device: torch.device) -> FlashInferAttention:
    import flashinfer  # pyright: ignore[reportMissingImports]

    workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
    dense = heads.group >= TENSOR_CORES_FROM
    return FlashInferAttention(
        heads,
        single=lambda: flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=dense),
        several=lambda: flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD"),
    )
