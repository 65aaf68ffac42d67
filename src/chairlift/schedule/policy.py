"""The four questions that a scheduling policy answers, each by one small object. Knows the questions, not the answers.

Gate      when may waiting requests join?
Order     who is first, and who yields?
Split     how much of the step's token budget does each get?
Headroom  how many blocks must stay free for a request to be admitted?
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from chairlift.cache.pool import BlockPool
from chairlift.core.types import Plan, Sequence, Work


class Past(NamedTuple):
    """What policies learn from: the step before this one, what it took from its decision to this one, and who has ended since.

    `plan` is None if nothing was computed since policies were last told, and `elapsed_s` is 0 then. So it is after a step that
    failed, and after those in which one is tried alone. `starved` counts those who lost their blocks in that step for want of
    memory, and not to a more urgent one or because a step had failed.
    """

    plan: Plan | None
    elapsed_s: float
    finished: tuple[Sequence, ...]
    starved: int = 0


class Order(Protocol):
    """Owns the queue, and says who is before whom. None of its answers changes by time alone, so nothing is sorted again."""

    def rank(self, sequence: Sequence) -> tuple[float, ...]:
        """The smaller, the earlier it is served among those that run. It never changes, and only finitely many get before it.

        Whoever runs and has the smallest rank of all is never a victim, so that progress is certain.
        """
        ...

    def push(self, sequence: Sequence) -> None:
        """Queues one that has just come, or that was preempted."""
        ...

    def remove(self, sequence: Sequence) -> None:
        """It gets on, or it has ended while it waited: then its `finish` is there already."""
        ...

    def peek(self, now: float) -> Sequence | None:
        """Who is first. Asking changes nothing that the next answer at the same time depends on."""
        ...

    def __iter__(self) -> Iterator[Sequence]:
        """All who wait, in the order in which they would go if nothing else happened."""
        ...

    def __len__(self) -> int: ...

    def worst_first(self, candidates: list[Sequence]) -> list[Sequence]:
        """Those that run, in the order in which they yield."""
        ...

    def victim(self, candidates: list[Sequence], cost: Callable[[Sequence], int]) -> Sequence:
        """Who yields: one of the worst. `cost` is the number of tokens that would have to be computed again."""
        ...

    def may_evict(self, waiting: Sequence, running: Sequence) -> bool:
        """It may take the place and the memory of the other. Then it is also before it, in the queue and by rank."""
        ...

    def started(self, sequence: Sequence) -> None:
        """It has got on for the first time, and will be given those tokens of its prompt that were not `cached`."""
        ...

    def answered(self, sequences: list[Sequence]) -> None:
        """Each was given one more token of its answer."""
        ...

    def observe(self, past: Past) -> None: ...


class Gate(Protocol):
    """Lets waiting requests in, one at a time."""

    @property
    def evicts(self) -> bool:
        """Who waits may displace who runs, if the order says so."""
        ...

    def next(self, queue: Order, running: list[Sequence], now: float) -> Sequence | None:
        """Who may try to join now, or None. Asking does not admit: the same answer is given until it has joined or gone."""
        ...

    def takes(self, sequence: Sequence, running: list[Sequence]) -> bool:
        """It may run beside these. Where none runs, it always may."""
        ...

    def wake_at(self, queue: Order, running: list[Sequence]) -> float | None:
        """When the answer may change although nothing else does."""
        ...

    def padding(self, budget: int) -> list[Work]:
        """Rows that are computed for nothing, because this way of batching keeps them; `budget` tokens are left."""
        ...

    def observe(self, past: Past) -> None: ...


class Split(Protocol):
    """Divides the step's token budget. `behind`: somebody else may get tokens in this step after these."""

    def share(self, running: list[Sequence], budget: int, *, behind: bool) -> Iterable[tuple[Sequence, int]]:
        """Tokens for each running sequence, in the order in which they are to be served; who gets none is left out."""
        ...

    def starts(self, missing: int, budget: int) -> bool:
        """One that misses `missing` may get on in this step, of which `budget` tokens are left: it will get some."""
        ...

    def chunk(self, missing: int, budget: int, *, behind: bool) -> int:
        """Tokens for one that gets on and misses `missing`, out of the `budget` that is left. They count as given."""
        ...

    def observe(self, past: Past) -> None: ...


class Headroom(Protocol):
    """Decides whether memory is enough for one more. `need` counts free blocks that it would take at once."""

    def admits(self, sequence: Sequence, need: int, pool: BlockPool, running: list[Sequence]) -> bool: ...
    def observe(self, past: Past) -> None: ...


@dataclass(frozen=True, slots=True)
class Policy:
    """A whole policy: one answer to each question."""

    gate: Gate
    order: Order
    split: Split
    headroom: Headroom

    def observe(self, past: Past) -> None:
        """Told once before each decision. It is where policies learn."""
        self.gate.observe(past)
        self.order.observe(past)
        self.split.observe(past)
        self.headroom.observe(past)
