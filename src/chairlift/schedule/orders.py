"""Who is first, and who yields: classes, then tenants' shares, then an order within. Knows neither memory nor budgets.

An order is a queue (`queues`) for those who wait, and a seniority that ranks those who run. It looks at the clock only to see
that a moment has passed.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from chairlift.cache.prefix import PrefixIndex
from chairlift.core.types import Sequence
from chairlift.schedule.lengths import Lengths
from chairlift.schedule.policy import Past
from chairlift.schedule.queues import Queue, Sorted
from chairlift.schedule.shares import Ledger

AGING_S = 30.0
"""Somebody of one class lower goes first if he came so many seconds earlier."""

S_PER_EXPECTED_TOKEN = 0.25
"""Somebody whose answer is expected to be a token longer goes first if he came so many seconds earlier."""

S_PER_CACHED_TOKEN = 0.05
"""The same for a prompt that has a token less in the cache."""

LATE_S = 60.0
"""Whoever cannot be served in time any more goes behind those that are due so many seconds later."""

UNTARGETED_S = 10.0
"""When the first token is due of those who did not say."""

PACE_MEMORY = 0.95
"""What is left of the weight of a measured step one step later."""

REFRESHED = 8
"""So many waiting prompts are looked up in the cache again in each step, besides the first one."""


class Learner(Protocol):
    def observe(self, past: Past) -> None: ...


@dataclass(frozen=True, slots=True)
class Seniority:
    """When a request came, in seconds, and `aging_s` later for each class that it is lower; None knows no classes.

    It never changes, and a request is overtaken only by those that come within a bounded time after it.
    """

    aging_s: float | None

    def __call__(self, sequence: Sequence) -> float:
        return sequence.request.arrival + (self.aging_s or 0.0) * sequence.request.priority

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

    def may_evict(self, waiting: Sequence, running: Sequence) -> bool:
        return self._seniority.may_evict(waiting, running)

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


class ShortestFirst:
    """A key: arrival, and so many seconds later for each token that the answer is expected to have.

    So a short answer overtakes a long one, but only one that came at most a bounded time before it.
    """

    def __init__(self, lengths: Lengths, *, s_per_token: float = S_PER_EXPECTED_TOKEN) -> None:
        self._lengths = lengths
        self._s_per_token = s_per_token

    def __call__(self, sequence: Sequence) -> float:
        return sequence.request.arrival + self._s_per_token * self._lengths.expected(sequence.request)


class Pace:
    """Seconds that a token of a prompt takes, from the steps in which prompts were computed. 0 until there was one."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._tokens = 0.0

    @property
    def token_s(self) -> float:
        return self._seconds / self._tokens if self._tokens else 0.0

    def observe(self, past: Past) -> None:
        prompts = 0 if past.plan is None else sum(len(work.tokens) for work in past.plan.work if len(work.tokens) > 1)
        if prompts:
            self._seconds = PACE_MEMORY * self._seconds + past.elapsed_s
            self._tokens = PACE_MEMORY * self._tokens + prompts


class Deadline:
    """A queue by the latest moment at which a prompt must be begun for its first token to be in time.

    Whoever has missed that moment steps back, once, and so takes nobody else down; he is still before all that are due much
    later, so he does not starve.
    """

    def __init__(self, pace: Pace, *, late_s: float = LATE_S, untargeted_s: float = UNTARGETED_S) -> None:
        self._pace = pace
        self._late_s = late_s
        self._untargeted_s = untargeted_s
        self._sorted = Sorted(self._latest_start)
        self._late: set[str] = set()

    def push(self, sequence: Sequence) -> None:
        self._sorted.push(sequence)

    def remove(self, sequence: Sequence) -> None:
        self._sorted.remove(sequence)
        self._late.discard(sequence.id)

    def peek(self, now: float) -> Sequence | None:
        while (first := self._sorted.peek(now)) is not None:
            key = self._sorted.key_of(first)
            if key >= now or first.started or first.id in self._late:
                break
            self._late.add(first.id)
            self._sorted.put(first, key + self._late_s)
        return first

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sorted)

    def __len__(self) -> int:
        return len(self._sorted)

    def badness(self, sequence: Sequence) -> tuple[float, ...]:
        return self._sorted.badness(sequence)

    def _latest_start(self, sequence: Sequence) -> float:
        request = sequence.request
        target_s = self._untargeted_s if request.ttft_target_s is None else request.ttft_target_s
        return request.arrival + target_s - self._pace.token_s * len(request.prompt)


class CachedFirst:
    """A queue by arrival, and so many seconds earlier for each token of the prompt that is in the cache.

    The cache changes all the time. The first one's share of it is looked up whenever it is asked for, and that of a few others
    in each step, in turn, so the cost does not grow with the queue.
    """

    def __init__(self, index: PrefixIndex, *, s_per_token: float = S_PER_CACHED_TOKEN) -> None:
        self._index = index
        self._s_per_token = s_per_token
        self._sorted = Sorted(self._key)
        self._turns: deque[Sequence] = deque()
        self._refreshed_at: float | None = None
        self._seen: tuple[Sequence | None, int] = (None, 0)
        """Who was first when he was last looked up, and how often the cache had changed by then."""

    def push(self, sequence: Sequence) -> None:
        self._sorted.push(sequence)
        self._turns.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        self._sorted.remove(sequence)

    def peek(self, now: float) -> Sequence | None:
        if now != self._refreshed_at:
            self._refreshed_at = now
            self._refresh()
        for _ in range(REFRESHED):
            first = self._sorted.peek(now)
            now_seen = (first, self._index.changes)
            if first is None or now_seen == self._seen:
                break
            if not self._look_up(first):
                self._seen = now_seen
                break
        return self._sorted.peek(now)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sorted)

    def __len__(self) -> int:
        return len(self._sorted)

    def badness(self, sequence: Sequence) -> tuple[float, ...]:
        return (arrival(sequence), sequence.number)

    def _refresh(self) -> None:
        for _ in range(min(REFRESHED, len(self._turns))):
            sequence = self._turns.popleft()
            if sequence in self._sorted:
                self._look_up(sequence)
                self._turns.append(sequence)

    def _look_up(self, sequence: Sequence) -> bool:
        """Sorts it by what of it is in the cache now. True if that has changed."""
        key = self._key(sequence)
        if key == self._sorted.key_of(sequence):
            return False
        self._sorted.put(sequence, key)
        return True

    def _key(self, sequence: Sequence) -> float:
        blocks = self._index.match(sequence.tokens, sequence.request.cache_salt).blocks
        return arrival(sequence) - self._s_per_token * len(blocks) * self._index.block_size
