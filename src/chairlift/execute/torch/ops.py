"""The operations between the matrix products of a decoder, which PyTorch would do in many small steps: what they are.

Knows tensors; knows nothing of layers, batches or devices. `TorchOps` is the readable form, for any device, and what every
other implementation (`kernels.ops`) is tested against.
"""

from typing import Literal, NamedTuple, Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

Activation = Literal["silu", "gelu_tanh", "gelu"]


class QKNorm(NamedTuple):
    """Weights [head_dim] of the norms that every head of queries and of keys goes through before it is rotated."""

    query: Tensor
    key: Tensor
    eps: float


class Ops(Protocol):
    """All arithmetic is in float32, whatever the tensors are; what is returned has the type of what came in."""

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Root mean square norm (Zhang and Sennrich, 2019) of every row of `x` [rows, size] with `weight` [size]."""
        ...

    def add_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """The norm of `residual + x` and that sum itself, all [rows, size]. The sum is rounded before it is normed."""
        ...

    def rotate_store(
        self,
        qkv: Tensor,
        positions: Tensor,
        cos: Tensor,
        sin: Tensor,
        slots: Tensor,
        kv: Tensor,
        heads: int,
        kv_heads: int,
        *,
        norms: QKNorm | None = None,
    ) -> Tensor:
        """Rotated queries [tokens, heads, head_dim]; rotated keys and plain values go to their slots of `kv`.

        `qkv` is [tokens, (heads + 2 kv_heads) * head_dim]: queries, keys, values. `cos` and `sin` [context, head_dim / 2] are
        float32; `positions` and `slots` are int64 [tokens]. `kv` is [num_blocks, 2, block_size, kv_heads, head_dim]. A slot of
        -1 stores nothing; no other slot may occur twice. Pairs are element i and element i + head_dim / 2.
        """
        ...

    def gate(self, gate_up: Tensor, activation: Activation) -> Tensor:
        """The activation of the first half of `gate_up` [rows, 2 * size], times its second half."""
        ...


class TorchOps:
    """The operations as PyTorch spells them."""

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return _normed(x, weight, eps)

    def add_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        total = residual + x
        return _normed(total, weight, eps), total

    def rotate_store(
        self,
        qkv: Tensor,
        positions: Tensor,
        cos: Tensor,
        sin: Tensor,
        slots: Tensor,
        kv: Tensor,
        heads: int,
        kv_heads: int,
        *,
        norms: QKNorm | None = None,
    ) -> Tensor:
        split = qkv.unflatten(1, (heads + 2 * kv_heads, -1))
        queries, keys, values = split.split([heads, kv_heads, kv_heads], dim=1)
        if norms is not None:
            queries, keys = _normed(queries, norms.query, norms.eps), _normed(keys, norms.key, norms.eps)
        cosines, sines = cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)
        _store(_rotated(keys, cosines, sines), values, slots, kv)
        return _rotated(queries, cosines, sines)

    def gate(self, gate_up: Tensor, activation: Activation) -> Tensor:
        gate, up = gate_up.float().chunk(2, dim=1)
        return (_activated(gate, activation) * up).to(gate_up.dtype)


def _normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Over the last axis."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(x.dtype)


def _rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1).to(x.dtype)


def _store(keys: Tensor, values: Tensor, slots: Tensor, kv: Tensor) -> None:
    """Keys and values [tokens, kv_heads, head_dim] to their slots.

    How many slots are -1 is not known on the host. So those write again what some token with a slot writes, which changes
    nothing; if there is none, they write back what their place holds.
    """
    if len(slots) == 0:
        return
    stored = slots >= 0
    some = stored.long().argmax()
    source = torch.where(stored, torch.arange(len(slots), device=slots.device), some)
    target = slots[source].clamp(min=0)
    blocks, offsets = target // kv.shape[2], target % kv.shape[2]
    nowhere = ~stored.any()
    for part, new in ((0, keys), (1, values)):
        kv[blocks, part, offsets] = torch.where(nowhere, kv[blocks, part, offsets], new[source])


def _activated(x: Tensor, activation: Activation) -> Tensor:
    if activation == "silu":
        return F.silu(x)
    return F.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")
