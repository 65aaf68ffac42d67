"""First tokens in time under an overload, beside those who know everything: a small machine, lengths like those of chats."""

import random
from dataclasses import replace
from functools import cache

import pytest

from chairlift.core.config import EngineConfig
from chairlift.sim.cost import Linear
from chairlift.sim.trials.clairvoyant import most_in_time
from chairlift.sim.trials.deadlines import CLASSES, OVERLOAD, foreseen, kept, with_targets
from chairlift.sim.trials.engines import Ask, asks, capacity, poisson
from chairlift.workload.traces import Arrival

COST = Linear(step_s=0.03, token_s=8e-4, draw_s=2e-4, position_s=6e-6)
CONFIG = EngineConfig(
    max_model_len=1024,
    num_blocks=1200,
    max_num_seqs=16,
    max_num_batched_tokens=64,
    enable_prefix_caching=False,
    scheduling_policy="deadline",
)
UNTIL_S = 90.0


def lengths(chance: random.Random, arrival_s: float = 0.0) -> Arrival:
    """Widely spread, as those of chats are: most prompts are short, and a few are twenty times as long."""
    prompt, answer = chance.lognormvariate(4.6, 0.9), chance.lognormvariate(2.9, 0.8)
    return Arrival(arrival_s, 1 + int(min(prompt, 600)), 1 + int(min(answer, 100)))


@cache
def rides() -> tuple[Ask, ...]:
    chance = random.Random(3)
    per_s = capacity(CONFIG, COST, asks((lengths(chance) for _ in range(300)), max_tokens=128))
    moments = poisson(OVERLOAD * per_s, UNTIL_S, chance.expovariate)
    targets = chance.choices(list(CLASSES), list(CLASSES.values()), k=len(moments))
    return tuple(with_targets(asks((lengths(chance, moment) for moment in moments), max_tokens=128), targets))


@cache
def in_time(policy: str = "deadline") -> int:
    return sum(kept(replace(CONFIG, scheduling_policy=policy), COST, rides()).values())


@cache
def best() -> int:
    return max(foreseen(CONFIG, COST, rides()))


def test_deadlines_are_kept_nearly_as_well_as_by_one_who_knows_everything():
    assert in_time() >= 0.85 * best()


def test_first_come_first_served_keeps_few():
    assert in_time("fcfs") < 0.5 * in_time()


def test_nobody_exceeds_the_bound():
    bound = most_in_time(rides(), CONFIG, COST, until=UNTIL_S + max(CLASSES))
    assert max(in_time(), best()) <= bound < len(rides())


@pytest.mark.parametrize("target_s", CLASSES)
def test_no_class_is_given_up(target_s: float):
    asked = sum(one.request.ttft_target_s == target_s for one in rides())
    assert kept(CONFIG, COST, rides())[target_s] > 0.15 * asked
