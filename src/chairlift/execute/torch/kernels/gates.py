"""The gate of an MLP in Triton: the activation of one half times the other, read once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from chairlift.execute.torch.kernels.launching import launch
from chairlift.execute.torch.kernels.variants import Variant
from chairlift.execute.torch.ops import Activation

_BLOCK = 1024


@triton.jit
def _gate_rows(gate_up, gated, size, stride, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    gate = tl.load(gate_up + row * stride + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * stride + size + columns, mask=inside, other=0.0).to(tl.float32)
    if ACTIVATION == "silu":
        gate = gate * tl.sigmoid(gate)
    elif ACTIVATION == "gelu_tanh":
        # (1 + tanh(y)) / 2 is the logistic function of 2 y (Hendrycks and Gimpel, 2016, have tanh): 2 * sqrt(2 / pi).
        gate = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    else:
        gate = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
    tl.store(gated + row * size + columns, (gate * up).to(gated.dtype.element_ty), mask=inside)


def gate(gate_up: Tensor, activation: Activation) -> Tensor:
    """See `ops.Ops`. Rows may lie apart; their elements may not."""
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    assert gate_up.stride(1) == 1, "elements of a row that lie apart"
    gated = torch.empty((rows, size), dtype=gate_up.dtype, device=gate_up.device)
    if rows > 0:
        launch(
            _gate_rows,
            (rows, triton.cdiv(size, _BLOCK)),
            gate_up,
            gated,
            size,
            gate_up.stride(0),
            ACTIVATION=activation,
            BLOCK=_BLOCK,
            warps=4,
            fusion=True,
        )
    return gated


def _variant(activation: Activation, dtype: str) -> Variant:
    signature = {"gate_up": f"*{dtype}", "gated": f"*{dtype}", "size": "i32", "stride": "i32"}
    return Variant(f"gate {activation} {dtype}", _gate_rows, signature, {"ACTIVATION": activation, "BLOCK": _BLOCK})


VARIANTS = (_variant("silu", "bf16"), _variant("gelu_tanh", "bf16"), _variant("gelu", "fp32"))
