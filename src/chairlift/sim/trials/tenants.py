"""A light tenant beside another: one like it, or a heavy one that sends ten times as much. Knows virtual time; knows no order.

No first token can come before the end of the step that begins next: how late that is says what orders can do at best.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import takewhile
from math import inf

from chairlift.core.config import EngineConfig
from chairlift.core.types import Request, Stopping
from chairlift.engine.core import EngineCore
from chairlift.sim.cost import Linear
from chairlift.sim.executor import WORD, SimExecutor
from chairlift.sim.loop import moments
from chairlift.sim.trials.engines import GREEDY

HEAVIER = 10
"""So many times as much as the light one the heavy one sends."""


@dataclass(frozen=True, slots=True)
class Place:
    """A machine, and requests of one kind: prompts of `prompt` tokens, answers from half to one and a half times `answer`."""

    config: EngineConfig
    cost: Linear
    prompt: int
    answer: int

    @property
    def request_s(self) -> float:
        """What a request takes of the machine while all places are taken."""
        one = self.cost
        step_s = one.step_s / self.config.max_num_seqs + one.draw_s + one.position_s * (self.prompt + self.answer / 2)
        return self.answer * step_s + (self.prompt + self.answer) * one.token_s


@dataclass(frozen=True, slots=True)
class Told:
    """Of a run: each light request's time to its first token, and to the end of the step that begins after it came, in seconds;
    the tokens a second of all, prompts included; how many were preempted."""

    ttft_s: list[float]
    at_once_s: list[float]
    tokens_per_s: float
    displaced: int


Gap = Callable[[float], float]
"""Draws from an exponential distribution of the stated rate."""


def stream(place: Place, tenant: str, load: float, gap: Gap) -> Iterable[Request]:
    """Without end, at random moments. It asks for that part of the machine. No two prompts have anything in common."""
    now, number = 0.0, 0
    while True:
        now += gap(load / place.request_s)
        prompt = (WORD + 1 + number, *(WORD,) * (place.prompt - 1))
        answer = place.answer // 2 + 7 * number % (place.answer + 1)
        yield Request(f"{tenant}{number}", prompt, Stopping(answer), GREEDY, now, tenant=tenant, cache_salt=tenant)
        number += 1


def beside(place: Place, policy: str, light: list[Request], load: float, gap: Gap) -> Told:
    """The light requests beside the stream of another tenant that asks for such a part, and ends when they end."""
    last = light[-1].arrival
    other = takewhile(lambda one: one.arrival <= last, stream(place, "other", load, gap))
    core = EngineCore(replace(place.config, scheduling_policy=policy), SimExecutor(place.cost, {}))
    firsts: dict[str, float] = {}
    begins, ends = list[float](), list[float]()
    tokens = displaced = 0
    for at, step in moments(core, [*light, *other]):
        begins.append(step.now)
        ends.append(at)
        tokens += sum(len(output.tokens) for output in step.outputs)
        tokens += sum(len(admitted.request.prompt) for admitted in step.admitted)
        displaced += len(step.yielded)
        for output in step.outputs:
            firsts.setdefault(output.seq_id, at)
        if at > last and all(one.id in firsts for one in light):
            break
    return Told(
        [firsts.get(one.id, inf) - one.arrival for one in light],
        [ends[min(bisect_left(begins, one.arrival), len(ends) - 1)] - one.arrival for one in light],
        tokens / ends[-1],
        displaced,
    )
