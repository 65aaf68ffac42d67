"""The shape of attention, which is that of the model and of its memory: the same in every layer but for windows."""

from dataclasses import dataclass

import torch

from chairlift.models.description import Description


@dataclass(frozen=True, slots=True)
class Heads:
    """Consecutive query heads share a key head (Ainslie et al., "GQA", 2023)."""

    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    scale: float
    """What products of queries and keys are multiplied with."""
    dtype: torch.dtype
    """Of queries, keys and values."""

    @classmethod
    def of(cls, description: Description, *, block_size: int, dtype: torch.dtype) -> "Heads":
        return cls(
            description.heads,
            description.kv_heads,
            description.head_dim,
            block_size,
            description.attention_scale,
            dtype,
        )

    @property
    def group(self) -> int:
        """Query heads of a key head."""
        return self.heads // self.kv_heads
