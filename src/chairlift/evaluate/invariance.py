"""Does company change what is computed? Every logit of a request, to the last bit: alone, and in all that a server does to it.

Requests go through the real scheduler, which cuts their prompts, puts them into steps with others, lets them share blocks, and
takes blocks away from them. Answers are not drawn but given, so that every way of computing sees the same tokens. Knows plans
and logits; knows neither models nor words, and prints nothing.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chairlift.core.types import Plan, Request, Result, Row, Sampling, Stopping, Work
from chairlift.engine.core import EngineCore, Submit
from chairlift.evaluate.logits import LogitsExecutor, blocks_for, row
from chairlift.evaluate.trials import Asked, Trial

Logits = NDArray[np.float32]

BESIDE = "beside other requests"
PADDED = "beside padding"
PIECES = "computed in several steps"
PREEMPTED = "after a preemption"
HIT = "on blocks that another filled"
LONG = "more than 1,024 tokens"
CIRCUMSTANCES = (BESIDE, PADDED, PIECES, PREEMPTED, HIT, LONG)
"""What a request can meet with on its way to the logits that are compared."""
LONG_TOKENS = 1024

MOST_STEPS = 100_000
"""A trial that has not ended by then never will."""


class Place(NamedTuple):
    """Where logits are compared: a request, by its number in the trial, after this many of its tokens."""

    request: int
    tokens: int


class Seen(NamedTuple):
    """Logits [vocab] as they came out of a step, and under which of the circumstances."""

    logits: Logits
    circumstances: frozenset[str]


@dataclass(frozen=True, slots=True)
class Difference:
    """Logits that should have been equal to the last bit. `token` is the first that differs; `alone` and `found` are its."""

    trial: int
    executor: str
    place: Place
    circumstances: frozenset[str]
    changed: int
    vocab: int
    token: int
    alone: float
    found: float

    def __str__(self) -> str:
        met = ", ".join(name for name in CIRCUMSTANCES if name in self.circumstances) or "by itself"
        return (
            f"{self.executor}, trial {self.trial}, request {self.place.request} after {self.place.tokens} tokens ({met}):"
            f" {self.changed:,} of {self.vocab:,} logits differ, first that of token {self.token}:"
            f" {self.found!r}, and {self.alone!r} alone"
        )


@dataclass(frozen=True, slots=True)
class Report:
    """How often logits were compared, by executor and circumstance, and where they differed."""

    compared: Mapping[str, int]
    met: Mapping[str, Counter[str]]
    differences: tuple[Difference, ...]


class Recorder:
    """An executor for the engine's loop: lets another one compute, gives the answers, and keeps the logits of all places.

    The scheduler's blocks are put where the trial's table says.
    """

    def __init__(self, executor: LogitsExecutor, trial: Trial) -> None:
        self.seen: dict[Place, Seen] = {}
        self._executor = executor
        self._asked = trial.asked
        self._table = trial.table
        self._block_size = trial.config.block_size
        self._past = [_Past() for _ in trial.asked]
        self._writers: dict[int, int] = {}
        self._result: Result | None = None

    def launch(self, plan: Plan) -> None:
        for work in plan.work:
            if not work.pad:
                self._remember(work)
        logits = self._executor.logits([self._placed(work) for work in plan.work])
        drawing = [work for work in plan.work if work.draws and not work.pad]
        rows = [self._answer(work, scores, plan) for work, scores in zip(drawing, logits, strict=True)]
        self._result = Result(plan.step, tuple(rows))

    def collect(self) -> Result:
        assert self._result is not None, "nothing was launched"
        result, self._result = self._result, None
        return result

    def close(self) -> None:
        """The executor belongs to somebody else."""

    def preempted(self, names: Iterable[str]) -> None:
        """These lost their blocks in the step before."""
        for name in names:
            past = self._past[int(name)]
            past.pieces, past.hit, past.preempted = 0, False, True

    def _placed(self, work: Work) -> Work:
        return work._replace(blocks=array("i", (self._table[block] for block in work.blocks)))

    def _remember(self, work: Work) -> None:
        number, size = int(work.seq_id), self._block_size
        past = self._past[number]
        if past.pieces == 0:  # what is there already was found in the prefix index
            past.hit = any(self._writers[block] != number for block in work.blocks[: work.start // size])
        past.pieces += 1
        for block in work.blocks[work.start // size : blocks_for(work.start + len(work.tokens), size)]:
            self._writers[block] = number

    def _answer(self, work: Work, scores: Logits, plan: Plan) -> Row:
        number = int(work.seq_id)
        asked, tokens = self._asked[number], work.start + len(work.tokens)
        if tokens in asked.checked:
            self.seen[Place(number, tokens)] = Seen(scores.copy(), frozenset(self._circumstances(work, tokens, plan)))
        return Row(work.seq_id, (asked.tokens[tokens],))

    def _circumstances(self, work: Work, tokens: int, plan: Plan) -> Iterable[str]:
        past = self._past[int(work.seq_id)]
        met = {
            BESIDE: any(other.seq_id != work.seq_id and not other.pad for other in plan.work),
            PADDED: any(other.pad for other in plan.work),
            PIECES: past.pieces > 1,
            PREEMPTED: past.preempted,
            HIT: past.hit,
            LONG: tokens > LONG_TOKENS,
        }
        return (name for name, happened in met.items() if happened)


@dataclass(slots=True)
class _Past:
    """How a request came to where it is: steps since it was (re)admitted, and what happened on the way."""

    pieces: int = 0
    hit: bool = False
    preempted: bool = False


def measure(
    trials: Iterable[Trial],
    executors: Mapping[str, LogitsExecutor],
    *,
    on_trial: Callable[[], None] | None = None,
) -> Report:
    """Runs every trial with every executor, and compares with what the first one computes for each request alone.

    The executors, by names for the report, need the blocks of the trials' tables and room for the longest request in one step.
    """
    first = next(iter(executors.values()))
    compared: Counter[str] = Counter()
    met: dict[str, Counter[str]] = {name: Counter() for name in executors}
    differences: list[Difference] = []
    for number, trial in enumerate(trials):
        expected = alone(trial, first)
        for name, executor in executors.items():
            for place, seen in run(trial, executor).items():
                compared[name] += 1
                met[name].update(seen.circumstances)
                if not equal(expected[place], seen.logits):
                    differences.append(_difference(number, name, place, expected[place], seen))
        if on_trial is not None:
            on_trial()
    return Report(compared, met, tuple(differences))


def alone(trial: Trial, executor: LogitsExecutor) -> dict[Place, Logits]:
    """The logits of all places of a trial, each computed from all tokens before it in one step, with nothing beside it."""
    size = trial.config.block_size
    return {
        Place(number, tokens): executor.logits([row(asked.tokens[:tokens], range(blocks_for(tokens, size)))])[0]
        for number, asked in enumerate(trial.asked)
        for tokens in sorted(asked.checked)
    }


def run(trial: Trial, executor: LogitsExecutor) -> dict[Place, Seen]:
    """The logits of all places of a trial as they come out of the engine. A step takes a second of the engine's clock."""
    recorder = Recorder(executor, trial)
    core = EngineCore(trial.config, recorder)
    coming = sorted(enumerate(trial.asked), key=lambda one: one[1].step, reverse=True)
    for moment in range(MOST_STEPS):
        while coming and coming[-1][1].step <= moment:
            core.inbox.append(Submit(_request(*coming.pop())))
        step = core.step(float(moment))
        recorder.preempted(step.plan.preempted)
        if not coming and not step.plan.work and step.wake_at is None:
            break
    assert len(recorder.seen) == sum(len(asked.checked) for asked in trial.asked), "some request was not answered"
    return recorder.seen


def equal(one: Logits, other: Logits) -> bool:
    """To the last bit: 0 is not -0, and a NaN is itself."""
    return np.array_equal(one.view(np.uint32), other.view(np.uint32))


def _request(number: int, asked: Asked) -> Request:
    return Request(
        id=str(number),
        prompt=asked.tokens[: asked.prompt],
        stopping=Stopping(max_tokens=len(asked.tokens) - asked.prompt),
        sampling=Sampling(temperature=0.0),
        arrival=float(asked.step),
    )


def _difference(trial: int, executor: str, place: Place, expected: Logits, seen: Seen) -> Difference:
    changed = np.flatnonzero(expected.view(np.uint32) != seen.logits.view(np.uint32))
    token = int(changed[0])
    return Difference(
        trial=trial,
        executor=executor,
        place=place,
        circumstances=seen.circumstances,
        changed=len(changed),
        vocab=len(expected),
        token=token,
        alone=float(expected[token]),
        found=float(seen.logits[token]),
    )
