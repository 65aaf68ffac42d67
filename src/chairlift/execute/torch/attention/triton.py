"""Attention by our own Triton kernels: rows of one token in chunks that are joined, longer ones in tiles. No row is copied.

Knows which kernels a batch needs and how many programs each; what they compute is theirs (`kernels.attention`). Everything that
depends on contexts is decided on the device, so a captured step serves other contexts as well.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from triton import knobs
from triton import language as tl

from chairlift.execute.torch.attention.heads import Heads
from chairlift.execute.torch.attention.rows import Rows
from chairlift.execute.torch.kernels.attention import attend_chunks, attend_tiles, join_chunks
from chairlift.execute.torch.kernels.attention_tiles import AMPERE, JOIN, Tile, Tiles, padded

_DTYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


@dataclass(frozen=True, slots=True)
class Workspace:
    """What chunks leave for the kernel that joins them. It never moves, as captured steps know where it is."""

    partials: Tensor
    """float32 [rows, heads, most chunks, head_dim]"""
    weights: Tensor
    """float32 [rows, heads, most chunks]"""

    @classmethod
    def create(cls, heads: Heads, tiles: Tiles, *, max_rows: int, device: torch.device) -> "Workspace":
        shape = (max_rows, heads.heads, tiles.most_chunks, heads.head_dim)
        return cls(*(torch.empty(size, dtype=torch.float32, device=device) for size in (shape, shape[:-1])))


def workspace_bytes(heads: Heads, tiles: Tiles, *, max_rows: int) -> int:
    """Of a `Workspace`."""
    return max_rows * heads.heads * tiles.most_chunks * (heads.head_dim + 1) * torch.float32.itemsize


class TritonAttention:
    """Kernels of a batch run in the stream that is current. `kv` must be without gaps."""

    def __init__(self, heads: Heads, tiles: Tiles, workspace: Workspace, *, interpreted: bool = False) -> None:
        """If `interpreted`, products are of float32: Triton's interpreter multiplies the bits of a bfloat16."""
        self._heads, self._tiles, self._workspace = heads, tiles, workspace
        self._dot = tl.float32 if interpreted else _DTYPES[heads.dtype]
        self._scale = heads.scale * math.log2(math.e)
        self._batch: Rows | None = None

    def plan(self, batch: Rows) -> None:
        rows = len(batch.counts)
        assert rows <= len(self._workspace.weights), f"a batch of {rows} rows: there is room for {len(self._workspace.weights)}"
        self._batch = batch

    def run(self, layer: int, queries: Tensor, kv: Tensor, window: int | None) -> Tensor:  # noqa: ARG002  (all are alike here)
        batch = self._batch
        assert batch is not None, "nothing was planned"
        assert kv.is_contiguous(), "keys and values with gaps"
        queries = queries.contiguous()
        mixed = torch.empty_like(queries)
        if batch.longest > 1:
            self._tiled(batch, queries, kv, mixed, window or 0)
        if min(batch.counts) <= 1:
            self._chunked(batch, queries, kv, mixed, window or 0)
        return mixed

    def _tiled(self, batch: Rows, queries: Tensor, kv: Tensor, mixed: Tensor, window: int) -> None:
        """Rows of several tokens."""
        heads, tile, rows = self._heads, self._tiles.tiles, len(batch.counts)
        together = self._tiles.queries(heads.group)
        tokens = together // heads.group
        _launch(
            attend_tiles,
            (heads.kv_heads, len(queries) // tokens + rows),
            tile,
            queries,
            kv,
            batch.bounds,
            batch.contexts,
            batch.tables,
            batch.tables.stride(0),
            rows,
            self._scale,
            mixed,
            KV_HEADS=heads.kv_heads,
            GROUP=heads.group,
            HEAD_DIM=heads.head_dim,
            BLOCK_SIZE=heads.block_size,
            WINDOW=window,
            TOKENS=tokens,
            QUERIES=together,
            DIM_PAD=padded(heads.head_dim),
            TILE=tile.keys,
            DOT=self._dot,
        )

    def _chunked(self, batch: Rows, queries: Tensor, kv: Tensor, mixed: Tensor, window: int) -> None:
        """Rows of one token."""
        heads, tiles, space, rows = self._heads, self._tiles, self._workspace, len(batch.counts)
        keys = min(batch.furthest, window) if window else batch.furthest
        programs = tiles.programs(rows=rows, kv_heads=heads.kv_heads, keys=keys)
        _launch(
            attend_chunks,
            (heads.kv_heads, programs, rows),
            tiles.chunks,
            queries,
            kv,
            batch.bounds,
            batch.contexts,
            batch.tables,
            batch.tables.stride(0),
            self._scale,
            space.partials,
            space.weights,
            KV_HEADS=heads.kv_heads,
            GROUP=heads.group,
            HEAD_DIM=heads.head_dim,
            BLOCK_SIZE=heads.block_size,
            WINDOW=window,
            LEAST=tiles.chunk,
            MOST=tiles.most_chunks,
            GROUP_PAD=padded(heads.group),
            DIM_PAD=padded(heads.head_dim),
            TILE=tiles.chunks.keys,
            DOT=self._dot,
        )
        _launch(
            join_chunks,
            (heads.heads, rows),
            JOIN,
            space.partials,
            space.weights,
            batch.bounds,
            batch.contexts,
            mixed,
            HEADS=heads.heads,
            HEAD_DIM=heads.head_dim,
            WINDOW=window,
            LEAST=tiles.chunk,
            MOST=tiles.most_chunks,
            DIM_PAD=padded(heads.head_dim),
            TILE=tiles.chunks.keys,
        )


def _launch(kernel: Any, grid: tuple[int, ...], tile: Tile, *arguments: Any, **constants: Any) -> None:
    # Triton warns if it is not told whether products and sums may be fused.
    kernel[grid](*arguments, **constants, num_warps=tile.warps, num_stages=tile.stages, enable_fp_fusion=True)


def build(
    heads: Heads, *, max_rows: int, longest: int, device: torch.device, capability: tuple[int, int] | None
) -> TritonAttention:
    """For batches of at most `max_rows` rows of at most `longest` positions. Without a `capability` there is no GPU."""
    tiles = tiles_for(heads, longest=longest, capability=capability)
    workspace = Workspace.create(heads, tiles, max_rows=max_rows, device=device)
    return TritonAttention(heads, tiles, workspace, interpreted=bool(knobs.runtime.interpret))


def tiles_for(heads: Heads, *, longest: int, capability: tuple[int, int] | None) -> Tiles:
    tiles = Tiles.pick(head_dim=heads.head_dim, itemsize=heads.dtype.itemsize, capability=capability or AMPERE)
    return tiles.up_to(longest)
