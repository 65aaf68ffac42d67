"""Engines for experiments, what they can do at most, and requests for them. Knows sizes and prices; knows no promise.

A trial is repeated exactly whenever it is asked for: whatever is left to chance comes in from outside, already drawn.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from chairlift.cache.prefix import PrefixIndex, prefix_index
from chairlift.core.config import EngineConfig
from chairlift.core.types import Request, Sampling, Stopping
from chairlift.engine.core import EngineCore
from chairlift.schedule.policy import Order
from chairlift.schedule.presets import preset
from chairlift.schedule.scheduler import Scheduler
from chairlift.sim.cost import Cost, Linear
from chairlift.sim.executor import END, WORD, SimExecutor
from chairlift.sim.loop import Journey, run
from chairlift.workload.traces import Arrival

GREEDY = Sampling(temperature=0.0)

A100 = Linear(step_s=0.011, token_s=1e-4, draw_s=2e-5, position_s=9e-8)
"""About a model of 8 billion weights in 16 bits on an A100: 16 GB of weights at 1.5 TB/s, 16 GFLOP a token at half
of 312 TFLOP/s, 128 KiB of keys and values a position. A step of 512 tokens takes 62 ms, one of 32 next tokens that see 1,000
positions each 18 ms."""

LARGE = EngineConfig(
    max_model_len=16_384,
    num_blocks=20_000,
    max_num_seqs=64,
    max_num_batched_tokens=512,
    enable_prefix_caching=False,
    scheduling_policy="fcfs",
)
"""40 GB of keys and values, and the places and the budget of a step as they are by default."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to be, and how long its answer will turn out, which only the executor and a clairvoyant are told."""

    request: Request
    answer: int


def asks(arrivals: Iterable[Arrival], *, max_tokens: int, prefix: str = "") -> list[Ask]:
    """A request for each arrival. All that the scheduler knows of an answer is that it has at most `max_tokens`."""
    stopping = Stopping(max_tokens, eos_ids=frozenset({END}))
    return [
        Ask(
            Request(f"{prefix}{number}", (WORD,) * one.prompt_tokens, stopping, GREEDY, one.arrival_s),
            min(one.answer_tokens, max_tokens),
        )
        for number, one in enumerate(arrivals)
    ]


def poisson(per_s: float, until_s: float, gap: Callable[[float], float]) -> list[float]:
    """Moments of a Poisson stream before `until_s`. `gap` draws from an exponential distribution of the stated rate."""
    moments: list[float] = []
    now = gap(per_s)
    while now < until_s:
        moments.append(now)
        now += gap(per_s)
    return moments


OrderOf = Callable[[EngineConfig, PrefixIndex], Order]


def engine(config: EngineConfig, cost: Cost, rides: Iterable[Ask], *, order: OrderOf | None = None) -> EngineCore:
    """An engine in virtual time. With `order` it has that one, whatever the configuration says."""
    core = EngineCore(config, SimExecutor(cost, {one.request.id: one.answer for one in rides}))
    if order is not None:
        index = prefix_index(config.block_size, enabled=config.shares_prefixes)
        core.scheduler = Scheduler(config, replace(preset(config, index), order=order(config, index)), index)
    return core


def ride(
    config: EngineConfig, cost: Cost, rides: Sequence[Ask], *, order: OrderOf | None = None, until: float | None = None
) -> dict[str, Journey]:
    return run(engine(config, cost, rides, order=order), [one.request for one in rides], until=until)


def capacity(config: EngineConfig, cost: Cost, sample: Sequence[Ask]) -> float:
    """Requests a second that the engine ends while it is full: all are there from the beginning, first come, first served.

    Counted from the end of the first fifth to the end of the fourth, so that neither filling nor emptying is.
    """
    backlog = [replace(one, request=replace(one.request, arrival=0.0)) for one in sample]
    journeys = ride(replace(config, scheduling_policy="fcfs"), cost, backlog)
    ends = sorted(journey.finished_at or 0.0 for journey in journeys.values())
    first, last = len(ends) // 5, 4 * len(ends) // 5
    return (last - first) / (ends[last] - ends[first])


def at_load(load: float, config: EngineConfig, cost: Cost, rides: Sequence[Ask]) -> list[Ask]:
    """The same requests in the same rhythm, at this part of the pace at which the engine can serve just them.

    The pace is measured with all of them there from the beginning: when the last one's first token comes, all have ended but
    those who fill the places, who are half done.
    """
    backlog = [replace(one, request=replace(one.request, arrival=0.0)) for one in rides]
    begun = (journey.token_times[0] for journey in ride(replace(config, scheduling_policy="fcfs"), cost, backlog).values())
    busy_s = max(begun) * len(rides) / (len(rides) - config.max_num_seqs / 2)
    stretch = busy_s / (load * max(one.request.arrival for one in rides))
    return [replace(one, request=replace(one.request, arrival=one.request.arrival * stretch)) for one in rides]
