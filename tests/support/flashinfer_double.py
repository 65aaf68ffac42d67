"""Stands in for FlashInfer, after its documentation: the same classes and arguments, computed row by row in PyTorch."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


class _Wrapper:
    def __init__(self, workspace: Tensor, layout: str, **_: Any) -> None:
        assert workspace.dtype == torch.uint8
        assert layout == "NHD"
        self.plans = 0

    def _plan(
        self,
        bounds: Tensor,
        indptr: Tensor,
        indices: Tensor,
        last: Tensor,
        shape: tuple[int, ...],
        *,
        window_left: int,
        sm_scale: float,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
    ) -> None:
        heads, kv_heads, head_dim, page_size = shape
        assert all(tensor.dtype == torch.int32 for tensor in (bounds, indptr, indices, last))
        assert len(indices) == indptr[-1]
        assert ((last >= 1) & (last <= page_size)).all()
        assert heads % kv_heads == head_dim % 8 == 0
        assert q_data_type == kv_data_type
        self._rows = (bounds.tolist(), indptr.tolist(), indices, last.tolist())
        self._left, self._scale, self._size = window_left, sm_scale, page_size
        self.plans += 1

    def run(self, queries: Tensor, kv: Tensor) -> Tensor:
        bounds, indptr, indices, last = self._rows
        return torch.cat(
            [
                self._row(queries[bounds[row] : bounds[row + 1]], kv[indices[indptr[row] : indptr[row + 1]]], last[row])
                for row in range(len(last))
            ]
        )

    def _row(self, queries: Tensor, paged: Tensor, last: int) -> Tensor:
        count, length = len(queries), (len(paged) - 1) * self._size + last
        assert count <= length, "a query before the first key"
        keys, values = (part.flatten(0, 1)[:length].transpose(0, 1) for part in paged.unbind(1))
        behind = torch.arange(length - count, length)[:, None] - torch.arange(length)
        seen = (behind >= 0) & ((behind <= self._left) | (self._left < 0))
        mixed = F.scaled_dot_product_attention(
            queries.transpose(0, 1)[None],
            # Nothing is read that a window leaves out.
            *(torch.where(seen.any(0)[:, None], part, 0)[None] for part in (keys, values)),
            attn_mask=seen,
            scale=self._scale,
            enable_gqa=True,
        )
        return mixed[0].transpose(0, 1)


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    def plan(self, indptr: Tensor, indices: Tensor, last: Tensor, *shape: int, **alike: Any) -> None:
        self._plan(torch.arange(len(last) + 1, dtype=torch.int32), indptr, indices, last, shape, **alike)


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    def plan(
        self, bounds: Tensor, indptr: Tensor, indices: Tensor, last: Tensor, *shape: int, causal: bool, **alike: Any
    ) -> None:
        assert causal
        self._plan(bounds, indptr, indices, last, shape, **alike)


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """`import flashinfer` finds it."""
    module = ModuleType("flashinfer")
    module.__spec__ = ModuleSpec("flashinfer", None)
    for wrapper in (BatchDecodeWithPagedKVCacheWrapper, BatchPrefillWithPagedKVCacheWrapper):
        setattr(module, wrapper.__name__, wrapper)
    monkeypatch.setitem(sys.modules, "flashinfer", module)
