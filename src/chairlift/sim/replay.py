"""Plays a record again: the very same core, over an executor that says what the recorded one said, by the recorded clock.

Knows what was recorded and compares what is decided now; computes nothing and knows no files. As long as every plan is that of
the record, everything that a policy can look at is as it was then.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from chairlift.core.config import EngineConfig
from chairlift.core.errors import RecordError, Refused
from chairlift.core.events import Step, Submit
from chairlift.core.types import Plan, Result, Row, Work, choice_ids, drawn_for
from chairlift.engine.core import EngineCore
from chairlift.engine.tape import PLAIN, Header, Turn, digest, read
from chairlift.schedule import door

FAILED = "it failed when it was recorded"


@dataclass(slots=True)
class Replay:
    """How far a record could be followed. `difference` says in one line where a plan was another, or is None."""

    header: Header
    steps: int = 0
    requests: int = 0
    preemptions: int = 0
    first_s: float | None = None
    last_s: float = 0.0
    difference: str | None = None

    @property
    def lasted_s(self) -> float:
        """By the engine's clock, from the first step to the last."""
        return 0.0 if self.first_s is None else self.last_s - self.first_s


def replay(lines: Iterable[str]) -> Replay:
    """Follows a record to its end or to the first difference. Raises RecordError for lines that are none of a record."""
    header, turns = read(lines)
    done, player = Replay(header), Player(header.config)
    for turn in turns:
        step = player.play(turn)
        done.steps += 1
        done.requests += sum(isinstance(command, Submit) for command in (*turn.taken, *turn.within))
        done.preemptions += len(step.yielded)
        done.first_s = turn.now if done.first_s is None else done.first_s
        done.last_s = turn.now
        done.difference = _difference(turn, step.plan)
        if done.difference is not None:
            break
    return done


class Player:
    """A core, and the executor that it plays on."""

    def __init__(self, config: EngineConfig) -> None:
        self._core = EngineCore(config, self)
        self._config = config
        self._turn: Turn | None = None
        self._flights: deque[Plan] = deque()

    def play(self, turn: Turn) -> Step:
        """One recorded step. Raises RecordError if it submits what no door lets through."""
        self._check(turn)
        self._turn = turn
        self._core.inbox.extend(turn.taken)
        if turn.number < 0:
            return self._core.abandon(turn.now, FAILED)
        try:
            return self._core.step(turn.now)
        except _Raised:
            self._flights.clear()
            step = self._core.fail_step(turn.now + turn.elapsed_s, FAILED)
            assert step is not None, "what has raised was the executor"
            return step

    def launch(self, plan: Plan) -> None:
        turn = self._now_played()
        if turn.raised and turn.launching == plan.step:
            self._core.inbox.extend(turn.within)
            raise _Raised
        self._flights.append(plan)

    def collect(self) -> Result:
        turn, plan = self._now_played(), self._flights.popleft()
        self._core.inbox.extend(turn.within)
        if turn.raised:
            raise _Raised
        rows = tuple(_row(work, turn) for work in plan.work if work.draws)
        failed = tuple((name, FAILED) for name in turn.failed)
        return Result(plan.step, rows, failed, turn.elapsed_s)

    def close(self) -> None: ...

    def _now_played(self) -> Turn:
        assert self._turn is not None, "steps are taken by `play` alone"
        return self._turn

    def _check(self, turn: Turn) -> None:
        requests = [command.request for command in (*turn.taken, *turn.within) if isinstance(command, Submit)]
        flying = {sequence.id for sequence in self._core.scheduler.sequences} if requests else set[str]()
        for request in requests:
            if not flying.isdisjoint(choice_ids(request)):
                raise RecordError(f"step {turn.number}: request {request.id} is submitted twice")
            try:
                door.check(request, self._config)
            except Refused as refused:
                raise RecordError(f"step {turn.number}: request {request.id}: {refused}") from None
            flying.update(choice_ids(request))


class _Raised(Exception):
    """The recorded executor failed here."""


def _row(work: Work, turn: Turn) -> Row:
    return Row(work.seq_id, tuple(turn.drawn.get(choice, PLAIN) for choice in drawn_for(work)))


def _difference(turn: Turn, plan: Plan) -> str | None:
    if digest(plan) == turn.plan and plan.step == turn.number:
        return None
    told = f"step {turn.number}: the recorded plan has {turn.rows} rows and {turn.tokens} tokens"
    if (len(plan.work), plan.tokens) == (turn.rows, turn.tokens):
        return f"{told}; so has the replayed one, but they are others"
    return f"{told}, the replayed one {len(plan.work)} rows and {plan.tokens} tokens"
