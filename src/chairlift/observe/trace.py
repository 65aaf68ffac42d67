"""What happened to each request, and why it waited: a sink of steps that keeps the story of everyone in flight for a while.

Knows steps and the engine's clock; knows neither who may read a story nor how it is sent. A step costs what has changed in it
and not what waits: only who is *first* of those that wait is noted, with the reason (`Plan.held`). Why any other waited follows
from who was first meanwhile, and is worked out when somebody asks.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, NamedTuple

from chairlift.core.events import Step, Submit, Told
from chairlift.core.types import Finish, Output, Plan, Reason, Request, choice_id, choice_ids

MAX_EVENTS = 256
"""Of one request. The first and the last of them are kept, what was between is counted."""
MAX_ENDED = 1000
ENDED_S = 600.0
"""So many requests are remembered after their end, and for so long."""
MAX_HOLDS = 8192
"""Changes of who was first, or why, that are remembered. Waiting that lies further back has no reasons any more."""

Kind = Literal["queued", "held", "admitted", "prefill", "first_token", "preempted", "resumed", "finished"]


class Event(NamedTuple):
    """Something that happened to a request, `at_s` seconds after its arrival. What a kind does not need is None.

    - queued: it has `tokens` of prompt, and so many were `waiting` already
    - held: from now on it waits for this `reason`
    - admitted, resumed: it got on, and so many of its tokens were `cached`
    - prefill: so many `tokens` that it had already were computed in this `step`
    - first_token, preempted: in this `step`, the latter to make room for the more urgent ("urgent"), for a tenant that has
      fewer places ("share") or for want of memory ("no_block"); "failed_step" if its step failed and is to be tried again
    - finished: its answer had so many `tokens`
    """

    at_s: float
    kind: Kind
    step: int | None = None
    tokens: int | None = None
    cached: int | None = None
    waiting: int | None = None
    finish: Finish | None = None
    reason: int | str | None = None


class Trace(NamedTuple):
    """The story of a request, in order. `waited_s` sums the time that it waited, by reason.

    `dropped` events are not there: some of its own where it had too many, or reasons that were forgotten.
    """

    events: tuple[Event, ...]
    waited_s: dict[str, float]
    dropped: int
    ended: bool


class _Hold(NamedTuple):
    """Who was first of those that wait from a moment on, and why. Without a reason nobody waited."""

    at: float
    reason: Reason | None = None
    seq_id: str = ""
    request: str = ""
    priority: int = 0
    tenant: str = ""
    arrival: float = 0.0


class _Noted(NamedTuple):
    """An event with the moment by the engine's clock, and the number of the hold that was in force."""

    at: float
    hold: int
    event: Event


@dataclass(slots=True)
class _Story:
    """What is kept of a request: no tokens, and nothing that its text could be read from."""

    id: str
    request: str
    """Whose choice it is."""
    arrival: float
    priority: int
    tenant: str
    tokens: int = 0
    away: bool = False
    """It was preempted and has not come back yet."""
    head: list[_Noted] = field(default_factory=list[_Noted])
    tail: deque[_Noted] = field(default_factory=lambda: deque[_Noted](maxlen=MAX_EVENTS // 2))
    dropped: int = 0
    ended_at: float | None = None

    def add(self, noted: _Noted) -> None:
        if len(self.head) < MAX_EVENTS // 2:
            self.head.append(noted)
            return
        self.dropped += len(self.tail) == self.tail.maxlen
        self.tail.append(noted)


class Traces:
    """The sink. The engine's thread writes it; anyone may read it at any time."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._stories: dict[str, _Story] = {}
        self._ended: OrderedDict[str, _Story] = OrderedDict()
        self._reading: set[str] = set()
        """Those whose rows are of interest: they compute what they have already, or may come back to do so."""
        self._holds: deque[_Hold] = deque([_Hold(0.0)], maxlen=MAX_HOLDS)
        self._forgotten = 0
        """Holds that are remembered no longer."""
        self._waiting = 0

    def on_refusal(self, reason: str) -> None: ...

    def on_step(self, step: Step) -> None:
        with self._turn:
            self._queue(step.taken, step.now)
            self._hold(step.plan, step.now)
            self._get_on(step)
            self._compute(step)
            self._preempt(step)
            self._waiting = step.snapshot.waiting
            end = step.now + step.elapsed_s
            self._queue(step.within, end)
            self._answer(step.outputs, step.plan.step, end)
            self._send_away(step.put_back, end, Event(0.0, "preempted", step=step.plan.step, reason="no_block"))
            self._forget(step.now)

    def read(self, seq_id: str, now: float) -> Trace | None:
        """The story until `now`, by the engine's clock. None for a request that is not known, or no longer."""
        with self._turn:
            story = self._stories.get(seq_id) or self._ended.get(seq_id)
            if story is None or (story.ended_at is not None and story.ended_at + ENDED_S < now):
                return None
            return self._told(story, now)

    # ── what a step brings ────────────────────────────────────────────────────────────────────────────────────────────────

    def _queue(self, told: Iterable[Told], at: float) -> None:
        for command in told:
            if isinstance(command, Submit):
                self._begin(command.request, at)

    def _begin(self, request: Request, at: float) -> None:
        queued = Event(0.0, "queued", tokens=len(request.prompt), waiting=self._waiting)
        for choice in choice_ids(request):
            story = _Story(choice, request.id, request.arrival, request.priority, request.tenant)
            self._stories[choice] = story
            self._note(story, at, queued)
        self._waiting += request.samples

    def _hold(self, plan: Plan, at: float) -> None:
        last, held = self._holds[-1], plan.held
        if held is None:
            if last.reason is not None:
                self._add_hold(_Hold(at))
        elif (last.reason, last.seq_id) != held:
            # With two steps in flight it may have ended before the result of this one was there.
            first = self._stories.get(held.seq_id) or self._ended.get(held.seq_id)
            if first is None:
                return
            self._add_hold(_Hold(at, held.reason, first.id, first.request, first.priority, first.tenant, first.arrival))

    def _add_hold(self, hold: _Hold) -> None:
        self._forgotten += len(self._holds) == MAX_HOLDS
        self._holds.append(hold)

    def _get_on(self, step: Step) -> None:
        for admitted in step.admitted:
            for choice in choice_ids(admitted.request):
                story = self._stories.get(choice)
                if story is not None:
                    self._note(story, step.now, Event(0.0, "admitted", step=step.plan.step, cached=admitted.cached))
                    self._reading.add(choice)

    def _compute(self, step: Step) -> None:
        if not self._reading:
            return
        for work in step.plan.work:
            if work.seq_id not in self._reading or work.pad:
                continue
            story, number = self._stories[work.seq_id], step.plan.step
            if story.away:
                story.away = False
                self._note(story, step.now, Event(0.0, "resumed", step=number, cached=work.start))
            self._note(story, step.now, Event(0.0, "prefill", step=number, tokens=len(work.tokens)))
            self._reading.difference_update([choice_id(story.request, draw.choice) for draw in work.draws])

    def _preempt(self, step: Step) -> None:
        if step.plan.preempted:
            short = step.plan.held is not None and step.plan.held.reason == "no_block"
            for choice in step.plan.preempted:
                reason = self._made_way(choice, step.plan) or ("no_block" if short and not step.raised else "failed_step")
                self._send_away((choice,), step.now, Event(0.0, "preempted", step=step.plan.step, reason=reason))

    def _made_way(self, choice: str, plan: Plan) -> Reason | None:
        """What it was about the one that displaced it, if one did."""
        if plan.displaced is None or choice not in plan.displaced.seq_ids:
            return None
        displaced = self._stories.get(choice)
        # With two steps in flight it may have ended before the result of this one was there.
        by = self._stories.get(plan.displaced.by) or self._ended.get(plan.displaced.by)
        alike = displaced is not None and by is not None and displaced.priority == by.priority
        return "share" if alike else "urgent"

    def _send_away(self, choices: Iterable[str], at: float, event: Event) -> None:
        for choice in choices:
            story = self._stories.get(choice)
            if story is not None:
                story.away = True
                self._note(story, at, event)
                self._reading.add(choice)

    def _answer(self, outputs: Iterable[Output], step: int, at: float) -> None:
        for output in outputs:
            story = self._stories.get(output.seq_id)
            if story is None:
                continue
            if output.tokens:
                if not story.tokens:
                    self._note(story, at, Event(0.0, "first_token", step=step))
                story.tokens += len(output.tokens)
            if output.finish is not None:
                self._end(story, output, at)

    def _end(self, story: _Story, output: Output, at: float) -> None:
        ending = Event(0.0, "finished", tokens=story.tokens, finish=output.finish, reason=output.stop_reason)
        self._note(story, at, ending)
        story.ended_at = at
        self._reading.discard(story.id)
        self._ended[story.id] = self._stories.pop(story.id)

    def _forget(self, now: float) -> None:
        while self._ended:
            oldest = next(iter(self._ended.values()))
            if len(self._ended) <= MAX_ENDED and (oldest.ended_at or 0.0) + ENDED_S >= now:
                return
            del self._ended[oldest.id]

    def _note(self, story: _Story, at: float, event: Event) -> None:
        hold = self._forgotten + len(self._holds) - 1
        story.add(_Noted(at, hold, event._replace(at_s=max(0.0, at - story.arrival))))

    # ── what is told of it ────────────────────────────────────────────────────────────────────────────────────────────────

    def _told(self, story: _Story, now: float) -> Trace:
        events: list[Event] = []
        waited: dict[str, float] = {}
        dropped = story.dropped
        noted = [*story.head, *story.tail]
        gap = len(story.head) if story.dropped else -1
        for place, (at, hold, event) in enumerate(noted):
            events.append(event)
            if event.kind not in ("queued", "preempted") or place + 1 == gap:
                continue
            until = noted[place + 1].at if place + 1 < len(noted) else now
            dropped += max(0, self._forgotten - hold)
            for since, reason, lasted_s in self._reasons(story, hold, at, until):
                events.append(Event(since - story.arrival, "held", reason=reason))
                waited[reason] = waited.get(reason, 0.0) + lasted_s
        surplus = max(0, len(events) - MAX_EVENTS)
        if surplus:
            del events[MAX_EVENTS // 2 : MAX_EVENTS // 2 + surplus]
        return Trace(tuple(events), waited, dropped + surplus, story.ended_at is not None)

    def _reasons(self, story: _Story, hold: int, since: float, until: float) -> Iterator[tuple[float, Reason, float]]:
        """Why it waited from `since` to `until`: from when on, for what, for how long. Neighbours that are equal are one."""
        current: Reason | None = None
        began = since
        for one in islice(self._holds, max(0, hold - self._forgotten), None):
            if one.at >= until:
                break
            reason = _reason(story, one)
            if reason == current:
                continue
            at = max(since, one.at)
            if current is not None and at > began:
                yield began, current, at - began
            current, began = reason, at
        if current is not None and until > began:
            yield began, current, until - began


def _reason(story: _Story, hold: _Hold) -> Reason | None:
    """Why somebody waits while this is how the first of the queue is held."""
    if hold.reason is None or hold.request == story.request:
        return hold.reason
    if story.arrival < hold.arrival:  # it was overtaken
        if hold.priority < story.priority:
            return "urgent"
        if hold.priority == story.priority and hold.tenant != story.tenant:
            return "share"
    return "behind"
