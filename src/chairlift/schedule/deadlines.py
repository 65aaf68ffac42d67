"""A queue by the moment at which the first token is due, and how long it takes to get there. Knows steps; knows no memory.

Who is due when is a wish of the client; what a prompt takes is learned from the steps that computed others.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from chairlift.core.types import Plan, Sequence, Work
from chairlift.schedule.costs import Line
from chairlift.schedule.orders import arrival
from chairlift.schedule.policy import Past
from chairlift.schedule.queues import Sorted

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
        for work in self._rows_of_begun(plan):
            begun = self._begun[work.seq_id]
            begun.since = began if begun.since is None else begun.since
            begun.tokens += len(work.tokens)
            if work.draws:
                self._learn(begun)
                del self._begun[work.seq_id]

    def _rows_of_begun(self, plan: Plan) -> list[Work]:
        """In the order of the plan. Prompts come behind everybody's next tokens, so the last rows are mostly all of them."""
        rows: list[Work] = []
        for work in reversed(plan.work):
            if len(rows) == len(self._begun):
                break
            if work.seq_id in self._begun and not work.pad:
                rows.append(work)
        return rows[::-1]

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
