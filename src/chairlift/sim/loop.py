"""Runs an engine core in virtual time: a step takes as long as its executor says, and nobody waits for anything.

Knows the clock, which it moves itself, and who arrives when; knows neither threads nor policies.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from chairlift.core.events import Step
from chairlift.core.types import Finish, Request, choice_ids
from chairlift.engine.core import EngineCore, Submit


class Moment(NamedTuple):
    """A step, and the time when its outputs were there: `step.now` plus what the step took."""

    at: float
    step: Step


@dataclass(slots=True)
class Journey:
    """What became of a choice. `token_times` has one entry for each token of the answer, in seconds of the virtual clock."""

    request: Request
    token_times: list[float] = field(default_factory=list[float])
    finish: Finish | None = None
    finished_at: float | None = None
    preemptions: int = 0

    @property
    def ttft_s(self) -> float | None:
        """From arrival to the first token. None if there never was one."""
        return self.token_times[0] - self.request.arrival if self.token_times else None

    @property
    def latency_s(self) -> float | None:
        """From arrival to the end. None if it has not ended."""
        return None if self.finished_at is None else self.finished_at - self.request.arrival

    @property
    def itl_s(self) -> list[float]:
        """The gaps between neighbouring tokens."""
        return [later - earlier for earlier, later in zip(self.token_times, self.token_times[1:], strict=False)]


def moments(core: EngineCore, requests: Iterable[Request], *, start: float = 0.0) -> Iterator[Moment]:
    """Every step until all is done, or for as long as somebody asks for the next one.

    Requests come by arrival and have passed the door. One that arrives while a step runs is queued before the next one.
    """
    now = start
    coming = deque(sorted(requests, key=lambda request: request.arrival))
    while True:
        while coming and coming[0].arrival <= now:
            core.inbox.append(Submit(coming.popleft()))
        step = core.step(now)
        now += step.elapsed_s
        yield Moment(now, step)
        if step.plan.work or core.inbox:
            continue
        wake = min((time for time in (step.wake_at, coming[0].arrival if coming else None) if time is not None), default=None)
        if wake is None:
            return
        now = max(now, wake)


def run(core: EngineCore, requests: Iterable[Request], *, until: float | None = None) -> dict[str, Journey]:
    """The journeys of all choices, by their ids. With `until` the run is left at that time, and some may be without an end."""
    requests = list(requests)
    journeys = {name: Journey(request) for request in requests for name in choice_ids(request)}
    for at, step in moments(core, requests):
        for seq_id in step.yielded:
            journeys[seq_id].preemptions += 1
        for output in step.outputs:
            journey = journeys[output.seq_id]
            journey.token_times += [at] * len(output.tokens)
            if output.finish:
                journey.finish, journey.finished_at = output.finish, at
        if until is not None and at >= until:
            break
    return journeys
