"""Chunks that adapt, beside fixed ones: prompts of 4,096 tokens between chats, on a machine with moods."""

import random
from dataclasses import replace
from functools import cache

from chairlift.sim.cost import Moody
from chairlift.sim.trials.chunks import Outcome, fixed, mixed, moody, outcome
from chairlift.sim.trials.engines import A100, LARGE, Ask, poisson

TARGET_S = 0.1
PER_S, UNTIL_S = 12.0, 15.0
"""More than can be served, so that what is served shows."""
CONFIG = replace(LARGE, max_num_batched_tokens=2048, scheduling_policy="fair")


@cache
def rides() -> tuple[Ask, ...]:
    chance = random.Random(0)
    return tuple(mixed(poisson(PER_S, UNTIL_S, chance.expovariate), chance))


def machine() -> Moody:
    return moody(A100, rides(), random.Random(7))


@cache
def fixed_chunks() -> dict[int, Outcome]:
    return dict(fixed(CONFIG, machine, rides()))


@cache
def adaptive() -> Outcome:
    return outcome(replace(CONFIG, itl_target_s=TARGET_S), machine(), rides())


def test_streams_stand_still_no_longer_than_wanted():
    assert adaptive().itl_p99_s <= TARGET_S


def test_large_fixed_chunks_let_them_stand_still_for_longer():
    assert all(fixed_chunks()[chunk].itl_p99_s > TARGET_S for chunk in (512, 1024, 2048))


def test_as_much_is_served_as_with_the_best_fixed_chunk_that_keeps_the_target():
    best = max(one.tokens_per_s for one in fixed_chunks().values() if one.itl_p99_s <= TARGET_S)
    assert adaptive().tokens_per_s >= 0.9 * best
