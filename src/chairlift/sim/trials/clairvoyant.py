"""Schedules by one who knows everything: who will come, and how long every answer gets. What real orders are compared with.

To find the best of all schedules is out of reach, so there are several clairvoyants, of which the best counts, and a bound that
no schedule can exceed, which is not always near.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from chairlift.core.config import EngineConfig
from chairlift.core.types import Request
from chairlift.core.types import Sequence as Waiting
from chairlift.schedule.deadlines import UNTARGETED_S
from chairlift.schedule.orders import Ranked, Seniority
from chairlift.schedule.policy import Past
from chairlift.schedule.queues import Sorted
from chairlift.sim.cost import Linear
from chairlift.sim.trials.engines import Ask, OrderOf

NEVER_S = 1e9
"""Later than any trial lasts."""


@dataclass(frozen=True, slots=True)
class Style:
    """How a clairvoyant chooses. He serves those of the least work that make up a `share` of all work, the others at the end.

    Of those he takes the one first who must get on first, and `weight` times its work later. From getting on to the first token
    he expects to take as long as `steps` empty steps and `slowness` times what the prompt alone takes; who cannot be in time
    any more waits for the end as well. A `reserve` of the places is for those who want their first token within `urgent_s`: he
    knows that they will come.
    """

    share: float
    steps: float
    slowness: float
    weight: float
    reserve: float
    urgent_s: float = 1.0


STYLES = tuple(
    Style(*choice, reserve=reserve)
    for reserve in (0.0, 1 / 32, 1 / 8)
    for choice in ((0.85, 4.0, 2.5, 3.0), (1.0, 9.0, 3.5, 10.0))
)
"""The best of many that were tried."""


def work_s(one: Ask, config: EngineConfig, cost: Linear) -> float:
    """What a request asks of the machine at least, in seconds: as if every step that it is part of had a row at every place."""
    prompt, answer = len(one.request.prompt), one.answer
    rows = -(-prompt // config.max_num_batched_tokens) + answer - 1
    tokens = (prompt + answer - 1) * cost.token_s + answer * cost.draw_s
    positions = (prompt + (answer - 1) * (prompt + answer / 2)) * cost.position_s
    return tokens + positions + rows * cost.step_s / config.max_num_seqs


def most_in_time(rides: Iterable[Ask], config: EngineConfig, cost: Linear, *, until: float) -> int:
    """No schedule without preemption has more requests whose first token is in time: a bound for any clairvoyant.

    By `until`, the last target, all but those who fill the places have ended whoever got on, and their work was done one after
    the other. A prompt that takes longer than its target is in time for nobody. Beyond that, targets are not looked at.
    """
    able = [one for one in rides if _alone_s(one, config, cost) <= (one.request.ttft_target_s or NEVER_S)]
    done = accumulate(sorted(work_s(one, config, cost) for one in able))
    return min(len(able), sum(moment <= until for moment in done) + config.max_num_seqs)


def _alone_s(one: Ask, config: EngineConfig, cost: Linear) -> float:
    """The least time to the first token."""
    prompt = len(one.request.prompt)
    return -(-prompt // config.max_num_batched_tokens) * cost.step_s + prompt * (cost.token_s + cost.position_s) + cost.draw_s


def clairvoyant(style: Style, rides: Sequence[Ask], cost: Linear) -> OrderOf:
    """The order of one who knows all of `rides`."""

    def order(config: EngineConfig, index: object) -> Ranked:  # noqa: ARG001
        works = {one.request.id: work_s(one, config, cost) for one in rides}
        least = sorted(works.values())
        most = style.share * sum(least)
        kept = sum(total <= most for total in accumulate(least))
        queue = _Foreseen(style, works, cost, most_work_s=least[max(0, kept - 1)], places=config.max_num_seqs)
        return Ranked(queue, Seniority(None, UNTARGETED_S), learners=[queue])

    return order


class _Foreseen:
    """The queue of such a one."""

    def __init__(self, style: Style, works: Mapping[str, float], cost: Linear, *, most_work_s: float, places: int) -> None:
        self._style = style
        self._works = works
        self._cost = cost
        self._most_work_s = most_work_s
        self._open_places = places - round(style.reserve * places)
        self._running = 0
        self._hasty = Sorted(self._key)
        self._others = Sorted(self._key)
        self._last = Sorted(self._key)

    def push(self, sequence: Waiting) -> None:
        self._running -= sequence.started
        if self._works[sequence.id] > self._most_work_s:
            self._last.push(sequence)
        elif _due(sequence.request) - sequence.request.arrival <= self._style.urgent_s:
            self._hasty.push(sequence)
        else:
            self._others.push(sequence)

    def remove(self, sequence: Waiting) -> None:
        self._running += 1
        next(queue for queue in (self._hasty, self._others, self._last) if sequence in queue).remove(sequence)

    def peek(self, now: float) -> Waiting | None:
        hasty, other = self._first(self._hasty, now), self._first(self._others, now)
        if other is None or self._running >= self._open_places:
            return hasty or (None if other else self._last.peek(now))
        return other if hasty is None or self._key(other) < self._key(hasty) else hasty

    def __iter__(self) -> Iterator[Waiting]:
        for queue in (self._hasty, self._others, self._last):
            yield from queue

    def __len__(self) -> int:
        return len(self._hasty) + len(self._others) + len(self._last)

    def badness(self, sequence: Waiting) -> tuple[float, ...]:
        return (self._key(sequence), sequence.number)

    def observe(self, past: Past) -> None:
        self._running -= len(past.finished)

    def _first(self, queue: Sorted, now: float) -> Waiting | None:
        """The first who can still be in time."""
        while (first := queue.peek(now)) is not None and not first.started and self._latest_start(first) < now:
            queue.remove(first)
            self._last.push(first)
        return first

    def _key(self, sequence: Waiting) -> float:
        return self._latest_start(sequence) + self._style.weight * self._works[sequence.id]

    def _latest_start(self, sequence: Waiting) -> float:
        wait_s = self._style.steps * self._cost.step_s + self._style.slowness * self._cost.token_s * sequence.prompt_len
        return _due(sequence.request) - wait_s


def _due(request: Request) -> float:
    return request.arrival + (NEVER_S if request.ttft_target_s is None else request.ttft_target_s)
