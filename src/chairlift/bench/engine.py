"""Measures an engine without a server: how fast prompts are computed and answers go on, for batches of fixed sizes.

Knows an engine core, a clock, and an executor that tells about itself; knows neither models nor terminals.

For a batch of B, B prompts of `input_len` random tokens are queued at once and answered with `output_len` tokens each, greedily
and whatever they are. Prefill is all steps until every row has its first token: its rate is the prompts' tokens over the time
of those steps. Decode is the rest: its rate is B * (output_len - 1) tokens over the time of those. The time of a step is
that of the whole step, from the decision what to compute until its tokens are taken in.
"""

import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from chairlift.core.config import EngineConfig
from chairlift.core.costs import Cost, Limits
from chairlift.core.errors import ChairliftError, ConfigError
from chairlift.core.events import Step
from chairlift.core.ports import Executor, Gauge
from chairlift.core.types import Request, Sampling, Stopping
from chairlift.engine.core import EngineCore, Submit
from chairlift.schedule.presets import PREFILL_FIRST

WARM_UP = (32, 4)
"""Tokens of prompt and answer of the batch that goes before all others, at most."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Which batches are measured: each size once a round, with prompts of `input_len` and answers of `output_len` tokens."""

    batches: tuple[int, ...]
    input_len: int
    output_len: int
    rounds: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.batches or min(self.batches) < 1:
            raise ConfigError(f"batch sizes must be at least 1, not {min(self.batches, default=0)}")
        if self.input_len < 1:
            raise ConfigError(f"prompts must have at least 1 token, not {self.input_len}")
        if self.output_len < 2:
            raise ConfigError(f"answers must have at least 2 tokens, not {self.output_len}: the first belongs to the prompt")
        if self.rounds < 1:
            raise ConfigError(f"there must be at least 1 round, not {self.rounds}")

    @property
    def context(self) -> int:
        """Tokens of a prompt and its answer."""
        return self.input_len + self.output_len

    @property
    def tokens(self) -> int:
        """All tokens that are computed, the warm-up left out."""
        return self.rounds * sum(self.batches) * (self.context - 1)


@dataclass(frozen=True)
class Subject:
    """What is measured. The executor is built for `config`; `vocab` is how many tokens there are to make prompts of."""

    config: EngineConfig
    executor: Executor
    gauge: Gauge
    vocab: int


@dataclass(frozen=True, slots=True)
class Phase:
    """Steps one after another: their tokens, and for each step its time and its cost.

    `handover_s` are the times in which the executor did not compute, from the end of one computation to the begin of the next.
    """

    tokens: int
    step_s: tuple[float, ...]
    handover_s: tuple[float, ...]
    costs: tuple[Cost, ...]

    @property
    def total_s(self) -> float:
        return sum(self.step_s)

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.total_s


@dataclass(frozen=True, slots=True)
class Run:
    """One batch of one round."""

    round: int
    batch: int
    prefill: Phase
    decode: Phase


@dataclass(frozen=True, slots=True)
class Row:
    """What came of all rounds of a batch size: medians. Shares are of the measured limits, None where there are none.

    Bytes and operations are those of the mean decode step (`core.costs`).
    """

    batch: int
    input_len: int
    output_len: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    decode_ms_per_step: float
    bytes_per_step: int
    operations_per_step: int
    bandwidth_share: float | None
    int8_share: float | None
    prefill_int8_share: float | None
    handover_ms: float
    rounds: tuple[dict[str, float], ...]


def settings(config: EngineConfig, workload: Workload) -> EngineConfig:
    """The configuration with which a workload can be measured: room for the largest batch, and phases that do not mix.

    The pool has some blocks to spare, as the scheduler never hands out the last ones.
    """
    rows = max(workload.batches)
    blocks = rows * (-(-workload.context // config.block_size) + 1)
    return replace(
        config,
        max_model_len=workload.context,
        num_blocks=blocks + blocks // 64 + 1,
        max_num_seqs=rows,
        max_num_batched_tokens=max(config.max_num_batched_tokens, rows),
        enable_prefix_caching=False,
        preset=PREFILL_FIRST,
    )


def measure(
    subject: Subject, workload: Workload, *, clock: Callable[[], float], on_tokens: Callable[[int], None] = lambda _: None
) -> Iterator[Run]:
    """Runs every batch of every round, after a short one to warm up. `on_tokens` hears how many tokens each step computed."""
    engine = _Engine(subject, clock)
    longest, answer = WARM_UP
    short = replace(workload, input_len=min(longest, workload.input_len), output_len=min(answer, workload.output_len))
    engine.run(short, 0, max(workload.batches), lambda _: None)
    for number in range(1, workload.rounds + 1):
        for batch in workload.batches:
            yield engine.run(workload, number, batch, on_tokens)


class _Engine:
    """Steps an engine core of its own and looks at the clock. What it does itself lies between the steps."""

    def __init__(self, subject: Subject, clock: Callable[[], float]) -> None:
        self._subject, self._clock = subject, clock
        self._core = EngineCore(subject.config, subject.executor)

    def run(self, workload: Workload, number: int, batch: int, on_tokens: Callable[[int], None]) -> Run:
        for request in _requests(workload, number, batch, self._subject.vocab):
            self._core.inbox.append(Submit(request))
        waiting = {str(row) for row in range(batch)}
        going = set(waiting)
        prefill, decode = _Recorder(self._subject.gauge), _Recorder(self._subject.gauge)
        while going:
            recorder = prefill if waiting else decode
            began = self._clock()
            step = self._core.step(began)
            if not step.plan.work and step.wake_at == began:  # it was decided too early, and is decided again
                continue
            recorder.take(step, began, self._clock())
            _check(step, workload, batch)
            waiting.difference_update(output.seq_id for output in step.outputs)
            going.difference_update(output.seq_id for output in step.outputs if output.finish)
            on_tokens(step.plan.tokens)
        return Run(number, batch, prefill.phase(batch * workload.input_len), decode.phase(decode.drawn))


class _Recorder:
    """Takes down the steps of one phase."""

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._step_s: list[float] = []
        self._before_s: list[float] = []
        self._after_s: list[float] = []
        self._costs: list[Cost] = []
        self.drawn = 0

    def take(self, step: Step, began: float, ended: float) -> None:
        entered, left = self._gauge.computed
        self._step_s.append(ended - began)
        self._before_s.append(entered - began)
        self._after_s.append(ended - left)
        self._costs.append(self._gauge.cost.of(step.plan.work))
        self.drawn += sum(len(output.tokens) for output in step.outputs)

    def phase(self, tokens: int) -> Phase:
        handover = (after + before for after, before in zip(self._after_s, self._before_s[1:], strict=False))
        return Phase(tokens, tuple(self._step_s), tuple(handover), tuple(self._costs))


def _requests(workload: Workload, number: int, batch: int, vocab: int) -> Iterator[Request]:
    """The same prompts in every process. Ids are the rows' numbers: a batch is through before the next one comes."""
    chance = random.Random(f"{workload.seed} {number} {batch}")  # noqa: S311  (prompts, no secrets)
    for row in range(batch):
        yield Request(
            id=str(row),
            prompt=tuple(chance.choices(range(vocab), k=workload.input_len)),
            stopping=Stopping(max_tokens=workload.output_len),
            sampling=Sampling(temperature=0.0),
        )


def _check(step: Step, workload: Workload, batch: int) -> None:
    """Nothing may happen that would make the figures mean something else."""
    if step.plan.preempted or not step.plan.work:
        raise ConfigError(f"{batch} sequences of {workload.context} tokens do not fit into the KV cache at once")
    for output in step.outputs:
        if output.finish == "error":
            raise ChairliftError(f"a row failed: {output.stop_reason}")


def rows(runs: Sequence[Run], workload: Workload, limits: Limits | None) -> list[Row]:
    """One for each batch size that was measured at least once, in the order asked for."""
    found: list[Row] = []
    for batch in dict.fromkeys(workload.batches):
        same = [run for run in runs if run.batch == batch]
        if same:
            found.append(_row(same, workload, limits))
    return found


def _row(runs: Sequence[Run], workload: Workload, limits: Limits | None) -> Row:
    steps = [time_s for run in runs for time_s in run.decode.step_s]
    costs = [cost for run in runs for cost in run.decode.costs]
    step_s = statistics.median(steps)
    mean = Cost(*(round(statistics.fmean(part)) for part in zip(*costs, strict=True)))
    prefill = [sum(cost.operations for cost in run.prefill.costs) / run.prefill.total_s for run in runs]
    return Row(
        batch=runs[0].batch,
        input_len=workload.input_len,
        output_len=workload.output_len,
        prefill_tokens_per_s=statistics.median(run.prefill.tokens_per_s for run in runs),
        decode_tokens_per_s=statistics.median(run.decode.tokens_per_s for run in runs),
        decode_ms_per_step=step_s * 1e3,
        bytes_per_step=mean.bytes,
        operations_per_step=mean.operations,
        bandwidth_share=None if limits is None else mean.bytes / step_s / limits.read_bytes_per_s,
        int8_share=None if limits is None else mean.operations / step_s / limits.int8_ops_per_s,
        prefill_int8_share=None if limits is None else statistics.median(prefill) / limits.int8_ops_per_s,
        handover_ms=statistics.median(_handovers(runs)) * 1e3,
        rounds=tuple(_figures(run) for run in runs),
    )


def _handovers(runs: Sequence[Run]) -> list[float]:
    """Between decode steps; with a single decode step there is nothing between."""
    return [time_s for run in runs for time_s in run.decode.handover_s] or [0.0]


def _figures(run: Run) -> dict[str, Any]:
    return {
        "round": run.round,
        "prefill_tokens_per_s": run.prefill.tokens_per_s,
        "decode_tokens_per_s": run.decode.tokens_per_s,
        "decode_ms_per_step": statistics.median(run.decode.step_s) * 1e3,
    }
