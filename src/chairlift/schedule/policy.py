"""The four questions that a scheduling policy answers, each by one small object. Knows the questions, not the answers.

Gate      when may waiting requests join?
Order     who is first, and who yields?
Split     how much of the step's token budget does each get?
Headroom  how many blocks must stay free for a request to be admitted?
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from chairlift.cache.pool import BlockPool
from chairlift.core.types import Sequence, Work


class Order(Protocol):
    """Owns the queue. Its rank is one total order: it sorts who waits, and its worst is who yields."""

    def rank(self, sequence: Sequence) -> tuple[float, ...]:
        """The smaller, the earlier. It never depends on the clock, so nothing has to be sorted again."""
        ...

    def push(self, sequence: Sequence) -> None: ...
    def remove(self, sequence: Sequence) -> None: ...
    def peek(self) -> Sequence | None: ...
    def __iter__(self) -> Iterator[Sequence]: ...
    def __len__(self) -> int: ...
    def victim(self, candidates: list[Sequence]) -> Sequence: ...


class Gate(Protocol):
    """Lets waiting requests in, one at a time."""

    def next(self, queue: Order, running: list[Sequence], now: float) -> Sequence | None:
        """Who may try to join now, or None. Asking does not admit: the same answer is given until it has joined or gone."""
        ...

    def wake_at(self, queue: Order, running: list[Sequence]) -> float | None:
        """When the answer may change although nothing else does."""
        ...

    def padding(self, budget: int) -> list[Work]:
        """Rows that are computed for nothing, because this way of batching keeps them; `budget` tokens are left."""
        ...

    def observe(self, finished: list[Sequence]) -> None:
        """These have ended since it was last asked."""
        ...


class Split(Protocol):
    """Divides the step's token budget. `behind`: somebody else may get tokens in this step after these."""

    def share(self, running: list[Sequence], budget: int, *, behind: bool) -> list[tuple[Sequence, int]]:
        """Tokens for each running sequence, in the order in which they are to be served; who gets none is left out."""
        ...

    def chunk(self, missing: int, budget: int, *, behind: bool) -> int:
        """Tokens for one sequence that misses `missing`, out of the `budget` that is left."""
        ...


class Headroom(Protocol):
    """Decides whether memory is enough for one more. `need` counts free blocks that it would take at once."""

    def admits(self, sequence: Sequence, need: int, pool: BlockPool, running: list[Sequence]) -> bool: ...


@dataclass(frozen=True, slots=True)
class Policy:
    """A whole policy: one answer to each question."""

    gate: Gate
    order: Order
    split: Split
    headroom: Headroom
