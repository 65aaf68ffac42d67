"""Who is first, and who yields: classes, then tenants' shares, then an order within. Knows neither memory nor budgets.

An order is a queue (`queues`) for those who wait, and a seniority that ranks those who run. It looks at the clock only to see
that a moment has passed.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from chairlift.core.types import Sequence
from chairlift.schedule.policy import Past
from chairlift.schedule.queues import Queue
from chairlift.schedule.shares import Ledger

AGING_S = 30.0
"""Somebody of one class lower goes first if he came so many seconds earlier."""


class Learner(Protocol):
    def observe(self, past: Past) -> None: ...


@dataclass(frozen=True, slots=True)
class Seniority:
    """When a request came, in seconds, and `aging_s` later for each class that it is lower; None knows no classes.

    With `patience_s` it is later by the time in which the first token is wanted as well, but by no more than that. It never
    changes, and a request is overtaken only by those that come within a bounded time after it.
    """

    aging_s: float | None
    patience_s: float = 0.0

    def __call__(self, sequence: Sequence) -> float:
        request = sequence.request
        senior = request.arrival if self.aging_s is None else request.arrival + self.aging_s * request.priority
        if not self.patience_s:
            return senior
        wanted_s = self.patience_s if request.ttft_target_s is None else max(0.0, request.ttft_target_s)
        return senior + min(wanted_s, self.patience_s)

    def may_evict(self, waiting: Sequence, running: Sequence) -> bool:
        """Only a higher class may, and only who is senior as well: an old request of a low class is safe.

        Without the second condition the displaced one would be the first to get on again, to be displaced again.
        """
        if self.aging_s is None or waiting.request.priority >= running.request.priority:
            return False
        return self(waiting) < self(running)


class Ranked:
    """An order: a queue for those who wait, and seniority for those who run. Learners are told what happened."""

    def __init__(
        self, queue: Queue, seniority: Seniority, *, ledger: Ledger | None = None, learners: Iterable[Learner] = ()
    ) -> None:
        self._queue = queue
        self._seniority = seniority
        self._ledger = ledger
        self._learners = (*learners, *(() if ledger is None else (ledger,)))

    def push(self, sequence: Sequence) -> None:
        self._queue.push(sequence)

    def remove(self, sequence: Sequence) -> None:
        self._queue.remove(sequence)

    def peek(self, now: float) -> Sequence | None:
        return self._queue.peek(now)

    def rank(self, sequence: Sequence) -> tuple[float, ...]:
        return (self._seniority(sequence), sequence.number)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._queue)

    def __len__(self) -> int:
        return len(self._queue)

    def worst_first(self, candidates: list[Sequence]) -> list[Sequence]:
        return sorted(candidates, key=self._queue.badness, reverse=True)

    def victim(self, candidates: list[Sequence], cost: Callable[[Sequence], int]) -> Sequence:
        """The cheapest of the worse half of those that are of the same class and tenant as the worst."""
        ranked = self.worst_first(candidates)
        worst = ranked[0].request
        alike = [one for one in ranked if (one.request.priority, one.request.tenant) == (worst.priority, worst.tenant)]
        return min(alike[: max(1, len(alike) // 2)], key=cost)

    def yielding(self, waiting: Sequence, running: list[Sequence]) -> list[Sequence]:
        """Those of a lower class that may be displaced, and some of its own class whose tenants have places to spare."""
        junior = bisect_right(running, self.rank(waiting), key=self.rank)
        below = waiting.request.priority
        lower = [one for one in running[junior:] if one.request.priority > below and self._seniority.may_evict(waiting, one)]
        return self.worst_first(lower + self._beyond_share(waiting, running))

    def _beyond_share(self, waiting: Sequence, running: list[Sequence]) -> list[Sequence]:
        """Of the same class, and of tenants with a surplus of places (`Ledger.surplus`): no more of them than that.

        The first by rank stays, so that progress is certain; so does whoever has lost his blocks and not recovered since.
        """
        surplus = {} if self._ledger is None else self._ledger.surplus(waiting, running)
        if not surplus:
            return []
        alike = [one for one in running[1:] if one.request.priority == waiting.request.priority]
        able = [one for one in alike if one.request.tenant in surplus and _recovered(one)]
        yielding: list[Sequence] = []
        for other in self.worst_first(able):
            tenant = other.request.tenant
            if surplus[tenant] >= other.places:
                surplus[tenant] -= other.places
                yielding.append(other)
        return yielding

    def started(self, sequence: Sequence) -> None:
        if self._ledger is not None:
            self._ledger.charge(sequence.request.tenant, prompt=sequence.prompt_len - sequence.cached)

    def answered(self, sequences: list[Sequence]) -> None:
        if self._ledger is not None:
            for tenant, count in Counter([sequence.request.tenant for sequence in sequences]).items():
                self._ledger.charge(tenant, answer=count)

    def observe(self, past: Past) -> None:
        for learner in self._learners:
            learner.observe(past)


def arrival(sequence: Sequence) -> float:
    """First come, first served."""
    return sequence.request.arrival


def _recovered(sequence: Sequence) -> bool:
    """Twice as long as it was when it last went back to the queue: so nobody is displaced for ever, and a request of n tokens
    computes less than 2 n of them again for others' shares."""
    return len(sequence.tokens) >= 2 * sequence.put_back_at
