"""Who is first, and who yields: classes, then tenants' shares, then an order within. Knows neither memory nor budgets.

An order is a queue (`queues`) for those who wait, and a seniority that ranks those who run. It looks at the clock only to see
that a moment has passed.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Protocol

from chairlift.cache.prefix import PrefixIndex
from chairlift.core.types import Plan, Sequence
from chairlift.schedule.costs import Line
from chairlift.schedule.lengths import Lengths
from chairlift.schedule.policy import Past
from chairlift.schedule.queues import Queue, Sorted
from chairlift.schedule.shares import Ledger

AGING_S = 30.0
"""Somebody of one class lower goes first if he came so many seconds earlier."""

LENGTH_WEIGHT = 2.0
"""Somebody whose answer is expected to take longer goes first if he came earlier by so many times the difference."""

FIRST_STEP_S = 0.02
"""What a step is held to take before any was measured."""

STEP_MEMORY = 0.99
"""What is left of the weight of a measured step one step later."""

S_PER_CACHED_TOKEN = 0.05
"""The same for a prompt that has a token less in the cache."""

LATE_TURN = 16
"""One who cannot be served in time any more goes on after so many others."""

UNTARGETED_S = 10.0
"""When the first token is due of those who did not say."""

ONSET_MEMORY = 0.98
"""What is left of the weight of a measured first token one first token later."""

LEAST_ONSETS = 8
"""A line of fewer first tokens is not trusted."""

LEAST_TARGET_S = 1 / 16
MOST_TARGET_S = 64.0
"""Below and above, all are in the same hurry."""

SIZE_WEIGHT = 3.0
"""Somebody goes first though he is due later, if that is by less than so many times what he takes less to his first token."""

REFRESHED = 8
"""So many waiting prompts are looked up in the cache again in each step, besides the first one."""


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
        wanted_s = self.patience_s if request.ttft_target_s is None else max(0.0, request.ttft_target_s)
        return request.arrival + (self.aging_s or 0.0) * request.priority + min(wanted_s, self.patience_s)

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


class StepTime:
    """What a step takes on average, which is the time between two tokens of an answer."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._steps = 0.0

    @property
    def seconds(self) -> float:
        return self._seconds / self._steps if self._steps else FIRST_STEP_S

    def observe(self, past: Past) -> None:
        if past.plan is not None and past.elapsed_s > 0:
            self._seconds = STEP_MEMORY * self._seconds + past.elapsed_s
            self._steps = STEP_MEMORY * self._steps + 1


class ShortestFirst:
    """A key: arrival, and later by `weight` times what the answer is expected to take.

    So a short answer overtakes a long one, but only one that came at most a bounded time before it: the time that an answer
    takes is the scale by which it can be asked to wait.
    """

    def __init__(self, lengths: Lengths, step: StepTime, *, weight: float = LENGTH_WEIGHT) -> None:
        self._lengths = lengths
        self._step = step
        self._weight = weight

    def __call__(self, sequence: Sequence) -> float:
        return sequence.request.arrival + self._weight * self._step.seconds * self._lengths.expected(sequence.request)


class Onset:
    """How long it takes from getting on to the first token, by the length of the prompt: a straight line, fitted to the latest.

    It is measured and not worked out: beside other prompts and everybody's next tokens it takes several times as long as alone.
    Those in a hurry are served first and so take less: targets between two powers of 2 have a line of their own, and that of
    all until it is known.
    """

    def __init__(self) -> None:
        self._all = Line(2, memory=ONSET_MEMORY)
        self._lines: dict[int, Line] = {}
        self._now = 0.0
        """Seconds that steps took; while nothing is computed nobody is between getting on and the first token."""
        self._begun: dict[str, _Begun] = {}

    def seconds(self, prompt: int, target_s: float) -> float:
        """0 until something was measured."""
        line = self._lines.get(_hurry(target_s))
        return (self._all if line is None or line.known < LEAST_ONSETS else line).value((1.0, prompt))

    def begin(self, sequence: Sequence, target_s: float) -> None:
        """It gets on."""
        self._begun[sequence.id] = _Begun(_hurry(target_s))

    def forget(self, sequence: Sequence) -> None:
        """It waits again: when it comes to its first token has to do with more than its prompt."""
        self._begun.pop(sequence.id, None)

    def observe(self, past: Past) -> None:
        if past.plan is not None:
            self._take_in(past.plan, past.elapsed_s)
        for sequence in past.finished:  # only now, as the step in which one ended may be that of its first token
            self.forget(sequence)

    def _take_in(self, plan: Plan, elapsed_s: float) -> None:
        began, self._now = self._now, self._now + elapsed_s
        for work in plan.work:
            begun = self._begun.get(work.seq_id)
            if begun is None or work.pad:
                continue
            begun.since = began if begun.since is None else begun.since
            begun.tokens += len(work.tokens)
            if work.draws:
                self._learn(begun)
                del self._begun[work.seq_id]

    def _learn(self, begun: "_Begun") -> None:
        assert begun.since is not None, "its first step came before its first token"
        for line in (self._all, self._lines.setdefault(begun.hurry, Line(2, memory=ONSET_MEMORY))):
            line.learn((1.0, begun.tokens), self._now - begun.since)


@dataclass(slots=True)
class _Begun:
    """Somebody on the way to his first token: since when, and how many tokens were computed of him."""

    hurry: int
    since: float | None = None
    tokens: int = 0


def _hurry(target_s: float) -> int:
    """Few values, whatever clients ask for."""
    return math.frexp(min(max(target_s, LEAST_TARGET_S), MOST_TARGET_S))[1]


class Deadline:
    """A queue by the latest moment at which a request must get on for its first token to be in time.

    Whoever has missed that moment steps back, for good, and so takes nobody else down: those who are late wait in a queue of
    their own by arrival. They go on when nobody else waits, and one of them after every `late_turn` others, so none starves.
    """

    def __init__(self, onset: Onset, *, late_turn: int = LATE_TURN, untargeted_s: float = UNTARGETED_S) -> None:
        self._onset = onset
        self._late_turn = late_turn
        self._untargeted_s = untargeted_s
        self._timely = Sorted(self._key)
        self._late = Sorted(arrival)
        self._since_late = 0
        """So many have gone on since the last one of those who are late, or since nobody was late."""

    def push(self, sequence: Sequence) -> None:
        self._onset.forget(sequence)
        self._timely.push(sequence)

    def remove(self, sequence: Sequence) -> None:
        late = sequence in self._late
        (self._late if late else self._timely).remove(sequence)
        if sequence.finish is None:
            self._goes_on(sequence, late=late)
        if not len(self._late):
            self._since_late = 0

    def peek(self, now: float) -> Sequence | None:
        while (first := self._timely.peek(now)) is not None:
            if first.started or self._latest_start(first) >= now:
                break
            self._timely.remove(first)
            self._late.push(first)
        if first is None or (self._since_late >= self._late_turn and not first.started):
            return self._late.peek(now) or first
        return first

    def __iter__(self) -> Iterator[Sequence]:
        return chain(self._timely, self._late)

    def __len__(self) -> int:
        return len(self._timely) + len(self._late)

    def badness(self, sequence: Sequence) -> tuple[float, ...]:
        return self._timely.badness(sequence)

    def _goes_on(self, sequence: Sequence, *, late: bool) -> None:
        """Only who gets on takes a turn: one that has ended while it waited has taken nothing from anybody."""
        self._since_late = 0 if late else self._since_late + 1
        if not sequence.started:
            self._onset.begin(sequence, self._target_s(sequence))

    def _key(self, sequence: Sequence) -> float:
        return self._due(sequence) + SIZE_WEIGHT * self._onset_s(sequence)

    def _latest_start(self, sequence: Sequence) -> float:
        return self._due(sequence) - self._onset_s(sequence)

    def _onset_s(self, sequence: Sequence) -> float:
        return self._onset.seconds(sequence.prompt_len, self._target_s(sequence))

    def _due(self, sequence: Sequence) -> float:
        return sequence.request.arrival + self._target_s(sequence)

    def _target_s(self, sequence: Sequence) -> float:
        target_s = sequence.request.ttft_target_s
        return self._untargeted_s if target_s is None else target_s


class CachedFirst:
    """A queue by arrival, and so many seconds earlier for each token of the prompt that is in the cache.

    The cache changes all the time. The first one's share of it is looked up whenever it is asked for, and that of a few others
    in each step, in turn, so the cost does not grow with the queue.
    """

    def __init__(self, index: PrefixIndex, *, s_per_token: float = S_PER_CACHED_TOKEN) -> None:
        self._index = index
        self._s_per_token = s_per_token
        self._sorted = Sorted(self._key)
        self._turns: OrderedDict[str, Sequence] = OrderedDict()
        """All who wait; the one that was looked up the longest ago is the first."""
        self._refreshed_at: float | None = None
        self._seen: tuple[Sequence | None, int] = (None, 0)
        """Who was first when he was last looked up, and how often the cache had changed by then."""

    def push(self, sequence: Sequence) -> None:
        self._sorted.push(sequence)
        self._turns[sequence.id] = sequence

    def remove(self, sequence: Sequence) -> None:
        self._sorted.remove(sequence)
        del self._turns[sequence.id]

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
        for sequence in list(islice(self._turns.values(), REFRESHED)):
            self._look_up(sequence)
            self._turns.move_to_end(sequence.id)

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
