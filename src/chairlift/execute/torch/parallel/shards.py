"""How a model is cut for several ranks: which heads, which columns of the MLP, which ids and so which part of every tensor.

Knows names, shapes and ranges; knows neither files nor who computes.

Queries, keys, values, gate and up are cut by outputs, o and down by inputs (Shoeybi et al., "Megatron-LM", 2019): so a rank
computes its heads and its columns on its own, and what o and down give are parts of a sum. Embedding and head are cut by ids.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from chairlift.core.errors import ConfigError
from chairlift.models.description import Description

Unit = Literal["heads", "kv_heads", "mlp", "vocab"]


class Part(NamedTuple):
    """From `first` to `end` along one axis of a tensor, or the whole of it (`axis` is None)."""

    axis: int | None = None
    first: int = 0
    end: int = 0

    def of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the part."""
        return tuple(self.end - self.first if axis == self.axis else size for axis, size in enumerate(shape))


WHOLE = Part()

_CUTS: Mapping[str, tuple[int, Unit]] = {
    "embed": (0, "vocab"),
    "head": (0, "vocab"),
    "q": (0, "heads"),
    "k": (0, "kv_heads"),
    "v": (0, "kv_heads"),
    "o": (1, "heads"),
    "gate": (0, "mlp"),
    "up": (0, "mlp"),
    "down": (1, "mlp"),
    "q_bias": (0, "heads"),
    "k_bias": (0, "kv_heads"),
    "v_bias": (0, "kv_heads"),
    "gate_bias": (0, "mlp"),
    "up_bias": (0, "mlp"),
}
"""The axis that a tensor is cut along, and what lies there. All others belong to every rank."""

_ADDED_ONCE = ("o_bias", "down_bias")
"""Added to a sum over all ranks: the first one has them."""


@dataclass(frozen=True)
class Share:
    """What one of `size` ranks has of a model; without a number of ranks, all of it.

    Query heads are cut into equal parts, and key heads with them; where there are more ranks than key heads, several have the
    same one. Columns of the MLP and ids are cut as equally as can be: the first ranks may have one more than the last.
    """

    whole: Description
    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        """ConfigError for so many ranks as the model's heads cannot be cut for."""
        heads, kv_heads, size = self.whole.heads, self.whole.kv_heads, self.size
        assert 0 <= self.rank < size
        if heads % size:
            raise ConfigError(
                f"tensor_parallel_size {size}: the model's {heads} query heads cannot be cut into {size} equal parts"
            )
        if kv_heads % size and size % kv_heads:
            raise ConfigError(
                f"tensor_parallel_size {size}: the model's {kv_heads} key heads can be neither cut into {size} equal parts"
                f" nor each be given to equally many of {size} ranks"
            )

    @cached_property
    def description(self) -> Description:
        """The model as this rank computes it. Its ids are still those of the whole vocabulary."""
        sizes = {unit: end - first for unit in ("heads", "kv_heads", "mlp") for first, end in [self._range(unit)]}
        return replace(self.whole, **sizes)

    @cached_property
    def layout(self) -> dict[str, tuple[int, ...]]:
        """The tensors that this rank has, in their parts."""
        return {
            name: self.part(name).of(shape)
            for name, shape in self.whole.layout().items()
            if self.rank == 0 or name.rpartition(".")[2] not in _ADDED_ONCE
        }

    @cached_property
    def vocab_widths(self) -> tuple[int, ...]:
        """How many ids each rank has, which follow each other."""
        ranges = [_cut(self.whole.vocab, rank, self.size) for rank in range(self.size)]
        return tuple(end - first for first, end in ranges)

    def part(self, name: str) -> Part:
        """Which part of a tensor of the layout is this rank's."""
        cut = _CUTS.get(name.rpartition(".")[2])
        if cut is None or self.size == 1:
            return WHOLE
        axis, unit = cut
        scale = self.whole.head_dim if unit in ("heads", "kv_heads") else 1
        first, end = self._range(unit)
        return Part(axis, first * scale, end * scale)

    def embedded(self, table: Tensor, tokens: Tensor) -> Tensor:
        """Rows [tokens, hidden] of this rank's `table`; zeros for ids that another rank has, so that all add up to the row."""
        if self.size == 1:
            return table[tokens]
        own = tokens - self._range("vocab")[0]
        there = (own >= 0) & (own < len(table))
        return torch.where(there.unsqueeze(1), table[own.clamp(0, len(table) - 1)], 0)

    def _range(self, unit: Unit) -> tuple[int, int]:
        """First and end of the rank's own among all of the model."""
        count = getattr(self.whole, unit)
        if unit == "kv_heads" and self.size > count:
            first = self.rank * count // self.size
            return first, first + 1
        return _cut(count, self.rank, self.size)


def _cut(count: int, rank: int, size: int) -> tuple[int, int]:
    """First and end of a rank's part, where the first ones have what cannot be cut equally."""
    each, more = divmod(count, size)
    first = rank * each + min(rank, more)
    return first, first + each + (rank < more)
