"""Random arguments of the operations between matrix products, and how close two answers of one type must be."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from chairlift.execute import rotary
from chairlift.execute.torch.ops import Activation, Ops, QKNorm
from chairlift.models.description import Rope

TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 1.6e-2}
"""Relative to the largest number: 2 ** -10 is a unit of float16 and 2 ** -7 one of bfloat16."""

ACTIVATIONS: tuple[Activation, ...] = ("silu", "gelu_tanh", "gelu")


CPU = torch.device("cpu")


def random(seed: int, *shape: int, dtype: torch.dtype = torch.float32, device: torch.device = CPU) -> Tensor:
    """The same numbers on every device."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def assert_close(got: Tensor, wanted: Tensor) -> None:
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    if wanted.numel():
        scale = max(1.0, float(wanted.float().abs().max()))
        assert float((got.float() - wanted.float()).abs().max()) <= TOLERANCE[wanted.dtype] * scale


class RotationCase:
    """Random arguments of `rotate_store`; some tokens have no slot."""

    def __init__(
        self,
        *,
        tokens: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        block_size: int,
        dtype: torch.dtype,
        seed: int,
        normed: bool,
        device: torch.device = CPU,
    ) -> None:
        chance = np.random.default_rng(seed)
        self.heads, self.kv_heads = heads, kv_heads
        blocks = -(-tokens // block_size) + 1
        # A view of something wider, as a projection may leave room behind its rows.
        self.qkv = random(seed, tokens, (heads + 2 * kv_heads) * head_dim + 3, dtype=dtype, device=device)[:, :-3]
        self.positions = torch.from_numpy(chance.integers(0, 64, tokens)).to(device)
        slots = chance.permutation(blocks * block_size)[:tokens]
        slots[chance.random(tokens) < 0.3] = -1
        self.slots = torch.from_numpy(slots.astype(np.int64)).to(device)
        table = rotary.turn(Rope(10_000.0), head_dim, np.arange(64))
        self.cos, self.sin = (torch.from_numpy(part[:, 0].copy()).to(device) for part in table)
        # One layer of many.
        self.kv = random(seed + 1, 2, blocks, 2, block_size, kv_heads, head_dim, dtype=dtype, device=device)[1]
        weights = random(seed + 2, 2, head_dim, dtype=dtype, device=device)
        self.norms = QKNorm(weights[0], weights[1], 1e-6) if normed else None

    def run(self, ops: Ops) -> tuple[Tensor, Tensor]:
        """Queries, and the keys and values as they are afterwards."""
        kv = self.kv.clone()
        given: tuple[Any, ...] = (self.qkv, self.positions, self.cos, self.sin, self.slots, kv, self.heads, self.kv_heads)
        return ops.rotate_store(*given, norms=self.norms), kv
