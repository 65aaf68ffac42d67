"""Measures what a decision costs: `schedule` and `commit` of a scheduler with many running and many more waiting.

Knows a scheduler and a clock. Nothing is computed: every row is answered with the same token at once, outside of the time that
is measured.
"""

import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from chairlift.cache.prefix import prefix_index
from chairlift.core.config import EngineConfig
from chairlift.core.errors import ConfigError
from chairlift.core.types import Limits, Plan, Request, Result, Row, Sampling, Stopping
from chairlift.schedule.presets import preset
from chairlift.schedule.scheduler import Scheduler

STEP_S = 0.02
"""By which the scheduler's clock goes on in each step."""

TARGETS_S = (0.5, 2.0, 10.0, None)
"""When first tokens are wanted: one wish after the other."""

BLOCK_SIZE = 16
ANSWER = 7
"""The token that every answer is made of."""

COMMON = 0.5
"""The part of a prompt that all prompts of its tenant begin with."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """Who runs and who waits. `prompt` and `answer` are tokens, `answer` on average: from half to one and a half times as many.

    So about `running / answer` requests end in each step. As many get on and as many come anew, with tenants and classes in
    turn, so that neither number changes.
    """

    running: int = 256
    waiting: int = 10_000
    prompt: int = 1_000
    answer: int = 128
    tenants: int = 8
    classes: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("running", "prompt", "answer", "tenants", "classes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.waiting < 0:
            raise ConfigError(f"waiting must be at least 0, not {self.waiting}")

    def settings(self, order: str, gate: str) -> EngineConfig:
        """An engine with just enough places, memory for all who have one, and tokens for the prompts of those who get on."""
        context = self.prompt + self.answer // 2 + self.answer
        blocks = self.running * (context // BLOCK_SIZE + 2)
        return EngineConfig(
            max_model_len=context,
            num_blocks=blocks + blocks // 64,
            block_size=BLOCK_SIZE,
            max_num_seqs=self.running,
            max_num_batched_tokens=self.running + 2 * self.prompt * -(-self.running // self.answer),
            preset=gate,
            scheduling_policy=order,
        )


@dataclass(frozen=True, slots=True)
class Costs:
    """Milliseconds of wall time: of a step's decision and its taking in, and of a request's arrival.

    `ended` and `preempted` count over all measured steps.
    """

    order: str
    gate: str
    steps: int
    running: float
    waiting: float
    ended: int
    preempted: int
    median_ms: float
    p90_ms: float
    schedule_ms: float
    commit_ms: float
    arrival_ms: float


@dataclass(frozen=True, slots=True)
class _Times:
    """Moments of one step: before and after each part."""

    schedule_s: float
    commit_s: float
    arrivals_s: tuple[float, ...]


class Line:
    """A scheduler that always has as many running and waiting as the crowd says."""

    def __init__(self, crowd: Crowd, order: str, *, gate: str = "continuous") -> None:
        config = crowd.settings(order, gate)
        index = prefix_index(config.block_size, enabled=True)
        self.scheduler = Scheduler(config, preset(config, index), index)
        self.ended = 0
        self.preempted = 0
        self._crowd = crowd
        self._random = random.Random(crowd.seed)  # noqa: S311  (lengths, no secrets)
        self._tokens = list(range(2 * crowd.prompt + crowd.waiting))
        self._now = 0.0
        self._count = 0

    def settle(self) -> None:
        """Fills places and queue, and steps until nobody is left of those who all came at once."""
        crowd = self._crowd
        for _ in range(crowd.running + crowd.waiting):
            self._arrive()
        for _ in range(2 * crowd.answer + crowd.running * crowd.prompt // self.scheduler.config.max_num_batched_tokens):
            self.step(lambda: 0.0)
        self.ended = self.preempted = 0

    def step(self, clock: Callable[[], float]) -> _Times:
        scheduler = self.scheduler
        began = clock()
        plan = scheduler.schedule(self._now)
        planned = clock()
        result = _answers(plan)
        computed = clock()
        scheduler.commit(plan, result)
        outputs, _ = scheduler.drain(), scheduler.drain_admitted()
        committed = clock()
        self._now += STEP_S
        ended = sum(output.finish is not None for output in outputs)
        self.ended += ended
        self.preempted += len(plan.preempted)
        moments = [clock()]
        for _ in range(ended):
            self._arrive()
            moments.append(clock())
        return _Times(planned - began, committed - computed, tuple(later - sooner for sooner, later in pairwise(moments)))

    def _arrive(self) -> None:
        crowd, number = self._crowd, self._count
        self._count += 1
        tenant = number % crowd.tenants
        common = int(COMMON * crowd.prompt)
        own = number % (crowd.prompt + crowd.waiting)
        answer = self._random.randint(max(1, crowd.answer // 2), crowd.answer // 2 + crowd.answer)
        self.scheduler.add(
            Request(
                id=str(number),
                prompt=(*self._tokens[tenant : tenant + common], *self._tokens[own : own + crowd.prompt - common]),
                stopping=Stopping(answer),
                sampling=Sampling(temperature=0.0),
                arrival=self._now,
                priority=number // crowd.tenants % crowd.classes,
                tenant=f"tenant {tenant}",
                ttft_target_s=TARGETS_S[number % len(TARGETS_S)],
                limits=Limits(queue_until=self._now + 1e6, finish_until=self._now + 1e6, stall_s=1e6),
            )
        )


def measure(
    crowd: Crowd,
    order: str,
    *,
    steps: int,
    clock: Callable[[], float],
    gate: str = "continuous",
    on_step: Callable[[int], None] = lambda _: None,
) -> Costs:
    """Costs of `steps` steps, after all has settled. `on_step` hears of each. `clock` is in seconds."""
    if steps < 1:
        raise ConfigError(f"steps must be at least 1, not {steps}")
    line = Line(crowd, order, gate=gate)
    line.settle()
    times: list[_Times] = []
    running: list[int] = []
    waiting: list[int] = []
    for _ in range(steps):
        times.append(line.step(clock))
        snapshot = line.scheduler.snapshot()
        running.append(snapshot.running)
        waiting.append(snapshot.waiting)
        on_step(1)
    both = sorted(one.schedule_s + one.commit_s for one in times)
    return Costs(
        order=order,
        gate=gate,
        steps=steps,
        running=statistics.fmean(running),
        waiting=statistics.fmean(waiting),
        ended=line.ended,
        preempted=line.preempted,
        median_ms=statistics.median(both) * 1e3,
        p90_ms=both[int(0.9 * len(both))] * 1e3,
        schedule_ms=statistics.median(one.schedule_s for one in times) * 1e3,
        commit_ms=statistics.median(one.commit_s for one in times) * 1e3,
        arrival_ms=statistics.fmean([time_s for one in times for time_s in one.arrivals_s] or [0.0]) * 1e3,
    )


def _answers(plan: Plan) -> Result:
    return Result(plan.step, tuple(Row(work.seq_id, (ANSWER,)) for work in plan.work if work.draws))
