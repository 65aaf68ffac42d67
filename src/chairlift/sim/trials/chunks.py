"""Long prompts beside chats: how long streams stand still, and what is served, with fixed chunks and with those that adapt.

Knows configurations and journeys; knows no way to size a chunk.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from chairlift.core.config import EngineConfig
from chairlift.sim.cost import Cost, Linear, Moody
from chairlift.sim.trials.chance import Chance
from chairlift.sim.trials.engines import Ask, asks, ride
from chairlift.sim.trials.latencies import itl_p99_s, tokens_per_s
from chairlift.workload.traces import Arrival

CHUNKS = (128, 256, 512, 1024, 2048)
LONG_PROMPT, LONG_ANSWER, LONG_PART = 4096, 32, 0.2
CHAT_PROMPT, CHAT_ANSWER = (60, 150), (20, 100)
"""The least, and how much more on average."""

NOISE = 0.1
"""Standard deviation of a step's cost, of its mean."""

SLOWNESS, SLOW_PART = 2.0, (0.4, 0.6)
"""In the middle of the work everything takes twice as long."""


def mixed(moments: Iterable[float], chance: Chance) -> list[Ask]:
    """One in five has a long prompt and a short answer; the others chat."""

    def drawn(moment: float) -> Arrival:
        if chance.random() < LONG_PART:
            return Arrival(moment, LONG_PROMPT, LONG_ANSWER)
        prompt, answer = (least + round(chance.expovariate(1 / more)) for least, more in (CHAT_PROMPT, CHAT_ANSWER))
        return Arrival(moment, prompt, answer)

    return asks(map(drawn, moments), max_tokens=1024)


def moody(cost: Linear, rides: Iterable[Ask], chance: Chance) -> Moody:
    """That machine with noise, and slower in the middle of this work, which is measured by what tokens alone take."""
    work_s = cost.token_s * sum(len(one.request.prompt) + one.answer for one in rides)
    since_s, until_s = (part * work_s for part in SLOW_PART)
    return Moody(cost, lambda: max(0.5, chance.gauss(1.0, NOISE)), slowness=SLOWNESS, since_s=since_s, until_s=until_s)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What streams felt, in seconds, and what was served, in tokens a second."""

    itl_p99_s: float
    tokens_per_s: float


def outcome(config: EngineConfig, cost: Cost, rides: Sequence[Ask]) -> Outcome:
    journeys = list(ride(config, cost, rides).values())
    return Outcome(itl_p99_s(journeys), tokens_per_s(journeys))


def fixed(
    config: EngineConfig, cost: Callable[[], Cost], rides: Sequence[Ask], chunks: Iterable[int] = CHUNKS
) -> Mapping[int, Outcome]:
    """By the chunk: so many tokens are a step's whole budget, whatever steps take. Each trial has a machine of its own."""
    plain = replace(config, itl_target_s=None)
    return {chunk: outcome(replace(plain, max_num_batched_tokens=chunk), cost(), rides) for chunk in chunks}
