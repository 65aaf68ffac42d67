"""Whether the time to come back is the truth: engines in virtual time, whose records say how long everybody really waited."""

import random
from bisect import bisect_left

import pytest
from engines import ride
from virtual import Ride, request

from chairlift.engine.backlog import Backlog


def crowd(seed: int, count: int = 500) -> Ride:
    """Eight places, and a queue of requests whose lengths have a long tail."""
    chance = random.Random(seed)
    engine = ride(num_blocks=600, max_model_len=256, max_num_seqs=8, max_num_batched_tokens=64)
    for number in range(count):
        prompt = [chance.randrange(50) for _ in range(chance.randrange(1, 40))]
        engine.submit(request(str(number), prompt, min(200, 1 + int(chance.expovariate(1 / 15)))))
    return engine


def errors(engine: Ride, depth: int) -> list[float]:
    """Estimates over truths, for a queue that is held at `depth` from the second hundred of endings on."""
    backlog, got_on, told = Backlog(), 0, []
    for step in engine.steps:
        got_on += len(step.admitted)
        for output in step.outputs:
            if output.finish:
                backlog.ended(step.now, waiting=depth)
        told.append((step.now, got_on, backlog.wait_s(step.now, waiting=depth)))
    ratios: list[float] = []
    for now, before, estimate in told:
        later = bisect_left(told, before + depth, key=lambda moment: moment[1])
        if later < len(told) and before > 100:
            ratios.append(estimate / (told[later][0] - now))
    return ratios


def test_four_of_five_are_told_the_truth_within_thirty_percent():
    ratios: dict[int, list[float]] = {64: [], 256: []}
    for seed in range(3):
        engine = crowd(seed)
        engine.run()
        for depth, told in ratios.items():
            told += errors(engine, depth)
    for told in ratios.values():
        assert len(told) > 500
        assert sum(0.7 <= ratio <= 1.3 for ratio in told) >= 0.8 * len(told)


def test_answers_that_end_together_count_one_by_one():
    backlog = Backlog()
    for group in range(200):
        for _ in range(4):
            backlog.ended(8.0 * group, waiting=10)
    assert backlog.wait_s(8.0 * 199, waiting=10) == pytest.approx(20, rel=0.1)


def test_time_in_which_nobody_waits_says_nothing():
    backlog = Backlog()
    for second in range(100):
        backlog.ended(float(second), waiting=1)
    backlog.ended(100.0, waiting=0)
    backlog.ended(3600.0, waiting=1)
    assert backlog.wait_s(3600.0, waiting=10) == pytest.approx(10)


def test_an_overdue_ending_makes_the_time_longer():
    backlog = Backlog()
    for second in range(100):
        backlog.ended(float(second), waiting=1)
    assert backlog.wait_s(1099.0, waiting=10) > 100


def test_a_change_of_load_is_followed():
    backlog = Backlog()
    for second in range(1000):
        backlog.ended(float(second), waiting=1)
    for number in range(400):
        backlog.ended(1000.0 + 5 * number, waiting=1)
    assert backlog.wait_s(1000.0 + 5 * 399, waiting=10) == pytest.approx(50, rel=0.1)
