"""RMS norms in Triton, alone and with the sum of the residual stream before them: one program a row, one reading of it."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from chairlift.execute.torch.kernels.launching import launch
from chairlift.execute.torch.kernels.variants import Variant

_ELEMENTS_PER_WARP = 512
"""A thread then holds 16 numbers of the row. It is an estimate: nothing has been measured yet."""


@triton.jit
def _norm_rows(
    x,
    residual,
    weight,
    normed,
    total,
    size,
    x_stride,
    residual_stride,
    eps,
    ADDING: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < size
    values = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    if ADDING:
        values += tl.load(residual + row * residual_stride + columns, mask=inside, other=0.0).to(tl.float32)
        rounded = values.to(total.dtype.element_ty)
        tl.store(total + row * size + columns, rounded, mask=inside)
        values = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, axis=0) / size + eps)
    weights = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + row * size + columns, (values * scale * weights).to(normed.dtype.element_ty), mask=inside)


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `ops.Ops`. Rows may lie apart; their elements may not."""
    normed = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(x, x, weight, normed, normed, eps, adding=False)
    return normed


def add_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See `ops.Ops`. Rows may lie apart; their elements may not."""
    normed, total = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    _launch(x, residual, weight, normed, total, eps, adding=True)
    return normed, total


def _launch(x: Tensor, residual: Tensor, weight: Tensor, normed: Tensor, total: Tensor, eps: float, *, adding: bool) -> None:
    rows, size = x.shape
    assert x.stride(1) == residual.stride(1) == weight.stride(0) == 1, "elements of a row that lie apart"
    if rows == 0:
        return
    block = triton.next_power_of_2(size)
    launch(
        _norm_rows,
        (rows,),
        x,
        residual,
        weight,
        normed,
        total,
        size,
        x.stride(0),
        residual.stride(0),
        eps,
        ADDING=adding,
        BLOCK=block,
        warps=_warps(block),
        fusion=True,
    )


def _warps(block: int) -> int:
    return max(1, min(16, block // _ELEMENTS_PER_WARP))


def _variant(size: int, dtype: str, *, adding: bool) -> Variant:
    tensors = dict.fromkeys(("x", "residual", "weight", "normed", "total"), f"*{dtype}")
    block = triton.next_power_of_2(size)
    return Variant(
        f"{'add_norm' if adding else 'norm'} {size} {dtype}",
        _norm_rows,
        {**tensors, "size": "i32", "x_stride": "i32", "residual_stride": "i32", "eps": "fp32"},
        {"ADDING": adding, "BLOCK": block},
        num_warps=_warps(block),
    )


VARIANTS = (
    _variant(128, "bf16", adding=False),
    _variant(4096, "bf16", adding=True),
    _variant(8192, "bf16", adding=True),
    _variant(16384, "fp32", adding=True),
)
