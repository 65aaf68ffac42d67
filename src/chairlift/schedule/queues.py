"""Queues that orders are made of: one sorted by a number, one per tenant, one per class. Each can stand within the next.

They know who waits and how the queues within them sort; they know neither memory nor the step's budget. A number by which a
sequence is sorted is worked out when it comes, and never depends on the clock.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain
from typing import NamedTuple, Protocol

from chairlift.core.types import Sequence
from chairlift.schedule.shares import Ledger

Key = Callable[[Sequence], float]
"""Where a sequence belongs, in seconds of arrival or anything else that a queue sorts by: the smaller, the earlier."""


class Queue(Protocol):
    """Sequences that wait, some of them before others."""

    def push(self, sequence: Sequence) -> None: ...
    def remove(self, sequence: Sequence) -> None: ...
    def peek(self, now: float) -> Sequence | None: ...
    def __iter__(self) -> Iterator[Sequence]: ...
    def __len__(self) -> int: ...

    def badness(self, sequence: Sequence) -> tuple[float, ...]:
        """How soon a running sequence yields: the larger, the sooner, by the same order that sorts those who wait."""
        ...


class _Entry(NamedTuple):
    """Compared from left to right; numbers are never equal."""

    later: bool
    key: float
    number: int
    sequence: Sequence


class Sorted:
    """By a key; equal keys keep the order in which they came.

    With `resumed_first`, whoever has run before goes before all who have not: what was computed for him is soon lost otherwise.
    A sorted list: even with ten thousand entries, a binary search and a move of pointers beat any cleverer structure.
    """

    def __init__(self, key: Key, *, resumed_first: bool = True) -> None:
        self._key = key
        self._resumed_first = resumed_first
        self._entries: list[_Entry] = []
        self._of: dict[str, _Entry] = {}

    def push(self, sequence: Sequence) -> None:
        self.put(sequence, self._key(sequence))

    def put(self, sequence: Sequence, key: float) -> None:
        """Queues it by this key. One that is queued already moves there."""
        if sequence.id in self._of:
            self.remove(sequence)
        later = self._resumed_first and not sequence.started
        entry = self._of[sequence.id] = _Entry(later, key, sequence.number, sequence)
        insort(self._entries, entry)

    def remove(self, sequence: Sequence) -> None:
        del self._entries[bisect_left(self._entries, self._of.pop(sequence.id))]

    def key_of(self, sequence: Sequence) -> float:
        """By which it is queued."""
        return self._of[sequence.id].key

    def peek(self, now: float) -> Sequence | None:  # noqa: ARG002
        return self._entries[0].sequence if self._entries else None

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.id in self._of

    def __iter__(self) -> Iterator[Sequence]:
        return (entry.sequence for entry in self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def badness(self, sequence: Sequence) -> tuple[float, ...]:
        return (self._key(sequence), sequence.number)


class Fair:
    """A queue per tenant. Whoever has been served least, by the ledger, is next.

    Of tenants that were served as much, the one goes first that was served the longest ago. Counters and that moment only grow
    while somebody waits, so a heap of old values finds the smallest: what comes up too small is put back.
    """

    def __init__(self, ledger: Ledger, inner: Callable[[], Queue]) -> None:
        self._ledger = ledger
        self._inner = inner
        self._pattern = inner()
        self._queues: dict[str, Queue] = {}
        self._count = 0
        self._heap: list[tuple[float, int, int, str]] = []
        self._since: dict[str, int] = {}
        """The number of the request with which a tenant's queue began."""

    def push(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant
        self._ledger.wait(sequence)
        if tenant not in self._queues:
            self._queues[tenant] = self._inner()
            self._since[tenant] = sequence.number
            heappush(self._heap, self._entry(tenant))
            self._tidy()
        self._queues[tenant].push(sequence)
        self._count += 1

    def remove(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant
        queue = self._queues[tenant]
        queue.remove(sequence)
        self._count -= 1
        self._ledger.leave(sequence)
        if not len(queue):
            del self._queues[tenant], self._since[tenant]

    def peek(self, now: float) -> Sequence | None:
        while self._heap:
            tenant = self._heap[0][-1]
            if tenant not in self._queues:
                heappop(self._heap)
            elif self._entry(tenant) > self._heap[0]:
                heapreplace(self._heap, self._entry(tenant))
            else:
                return self._queues[tenant].peek(now)
        return None

    def __iter__(self) -> Iterator[Sequence]:
        """One of each tenant in turn, as if all were served alike."""
        turns = deque(iter(self._queues[tenant]) for tenant in sorted(self._queues, key=self._entry))
        while turns:
            queue = turns.popleft()
            for sequence in queue:
                yield sequence
                turns.append(queue)
                break

    def __len__(self) -> int:
        return self._count

    def badness(self, sequence: Sequence) -> tuple[float, ...]:
        return (self._ledger.counter(sequence.request.tenant), *self._pattern.badness(sequence))

    def _tidy(self) -> None:
        """Values of tenants that have gone stay below the top of the heap; they are swept out before they are the majority."""
        if len(self._heap) > 2 * len(self._queues) + 16:
            self._heap = [self._entry(tenant) for tenant in self._queues]
            heapify(self._heap)

    def _entry(self, tenant: str) -> tuple[float, int, int, str]:
        return *self._ledger.standing(tenant), self._since[tenant], tenant


class _Class(NamedTuple):
    queue: Queue
    ages: Sorted
    """The same sequences by rank."""

    @property
    def bound(self) -> float | None:
        """Nobody in it has a smaller rank. None: nobody is in it."""
        oldest = self.ages.peek(0.0)
        return None if oldest is None else self.ages.key_of(oldest)


class Classes:
    """A queue per priority. Whose first request has the smallest rank is next; who is first within a class, the class says.

    It is the rank of him who would go that counts, not that of the oldest: where a class makes an old one wait for its younger
    ones, those are no reason to make a lower class wait. But as no class has anybody of a smaller rank than its oldest, most
    classes need not be asked.
    """

    def __init__(self, rank: Key, inner: Callable[[], Queue]) -> None:
        self._rank = rank
        self._inner = inner
        self._pattern = inner()
        self._classes: dict[int, _Class] = {}
        self._bounds: list[tuple[float, int]] = []
        """Of each class its bound and its priority, in order."""

    def push(self, sequence: Sequence) -> None:
        priority = sequence.request.priority
        if priority not in self._classes:
            self._classes[priority] = _Class(self._inner(), Sorted(self._rank, resumed_first=False))
        one = self._classes[priority]
        before = one.bound
        one.queue.push(sequence)
        one.ages.push(sequence)
        self._rebound(priority, before)

    def remove(self, sequence: Sequence) -> None:
        priority = sequence.request.priority
        one = self._classes[priority]
        before = one.bound
        one.queue.remove(sequence)
        one.ages.remove(sequence)
        self._rebound(priority, before)

    def peek(self, now: float) -> Sequence | None:
        best: Sequence | None = None
        for bound, priority in self._bounds:
            if best is not None and self._before(best) <= (bound, priority):
                break
            first = self._classes[priority].queue.peek(now)
            if first is not None and (best is None or self._before(first) < self._before(best)):
                best = first
        return best

    def __iter__(self) -> Iterator[Sequence]:
        """One class after another, as the first of each would go."""
        queues = [self._classes[priority].queue for _, priority in self._bounds]
        return chain.from_iterable(sorted(queues, key=lambda queue: self._before(next(iter(queue)))))

    def __len__(self) -> int:
        return sum(len(one.ages) for one in self._classes.values())

    def badness(self, sequence: Sequence) -> tuple[float, ...]:
        return (sequence.request.priority, *self._pattern.badness(sequence))

    def _before(self, sequence: Sequence) -> tuple[float, int]:
        return self._rank(sequence), sequence.request.priority

    def _rebound(self, priority: int, before: float | None) -> None:
        """Puts the class where it belongs now. One that is empty is dropped."""
        bound = self._classes[priority].bound
        if bound == before:
            return
        if before is not None:
            del self._bounds[bisect_left(self._bounds, (before, priority))]
        if bound is None:
            del self._classes[priority]
        else:
            insort(self._bounds, (bound, priority))
