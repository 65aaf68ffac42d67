"""What steps ask of a machine, in bytes and operations, and what the machine can do. Knows plans; knows no tensors and no time.

Bytes are what has to come out of memory at least: weights once a step, and the keys and values that a row sees once a row.
Operations are two for every multiply-add of matrices and attention.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from chairlift.core.types import Work


class Cost(NamedTuple):
    """What one step reads and writes, and how much it computes."""

    bytes: int = 0
    operations: int = 0


class Limits(NamedTuple):
    """What a machine was measured to do at best: bytes read from memory, operations (two a multiply-add) on 8-bit integers."""

    read_bytes_per_s: float
    int8_ops_per_s: float

    def best(self, other: "Limits") -> "Limits":
        """A limit is the most that was ever reached."""
        return Limits(*map(max, self, other))

    def spread(self, other: "Limits") -> float:
        """How far two measurements of one machine lie apart, as a part of the larger: 0 if they agree."""
        return max(1 - min(pair) / max(pair) for pair in zip(self, other, strict=True))


@dataclass(frozen=True, slots=True)
class LayerCost:
    """Attention of one layer: bytes of keys and values of one position, and operations for one token that sees one position.

    With a `window` a token sees only so many positions, itself included.
    """

    position_bytes: int
    operations: int
    window: int | None = None


@dataclass(frozen=True, slots=True)
class ModelCost:
    """What a model asks for as an executor holds it.

    `body_bytes` are the weights of the layers, `head_bytes` those of the head, which only rows that draw make necessary;
    `token_bytes` is a row of the embedding. Operations are those of matrices: the layers' for a token, the head's for a draw.
    """

    body_bytes: int
    head_bytes: int
    token_bytes: int
    token_operations: int
    draw_operations: int
    layers: tuple[LayerCost, ...]

    def of(self, work: Sequence[Work]) -> Cost:
        """One step. Padded rows see only themselves."""
        if not work:
            return Cost()
        rows = [(0 if row.pad else row.start, len(row.tokens)) for row in work]
        tokens = sum(count for _, count in rows)
        drawing = sum(bool(row.draws) and not row.pad for row in work)
        size = self.body_bytes + tokens * self.token_bytes + (self.head_bytes if drawing else 0)
        operations = tokens * self.token_operations + drawing * self.draw_operations
        for layer, layers in self._kinds().items():
            read = sum(_positions_read(start, count, layer.window) for start, count in rows)
            seen = sum(_positions_seen(start, count, layer.window) for start, count in rows)
            size += layers * layer.position_bytes * (read + tokens)
            operations += layers * layer.operations * seen
        return Cost(size, operations)

    def _kinds(self) -> dict[LayerCost, int]:
        """How many layers there are of each kind."""
        return {layer: self.layers.count(layer) for layer in dict.fromkeys(self.layers)}


def _positions_read(start: int, count: int, window: int | None) -> int:
    """Positions that any token of a row sees."""
    first = 0 if window is None else max(0, start - window + 1)
    return start + count - first


def _positions_seen(start: int, count: int, window: int | None) -> int:
    """Positions that each token of a row sees, added up."""
    if window is None:
        return count * start + count * (count + 1) // 2
    growing = max(0, min(start + count, window) - start)
    return growing * start + growing * (growing + 1) // 2 + (count - growing) * window
