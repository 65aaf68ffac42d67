"""The crowd whose scheduling is measured stays as large as it is told, in every order. Time is not looked at."""

from dataclasses import replace
from itertools import count

import pytest

from chairlift.bench.decisions import Crowd, Line, measure
from chairlift.core.errors import ConfigError
from chairlift.schedule.presets import ORDERS

CROWD = Crowd(running=8, waiting=30, prompt=20, answer=6, tenants=3, classes=2)
ALIKE = replace(CROWD, tenants=1)
"""Nobody has less than his share, so nobody makes way for it."""


@pytest.mark.parametrize("order", ORDERS)
def test_as_many_run_and_wait_as_it_says(order: str) -> None:
    costs = measure(ALIKE, order, steps=50, clock=lambda: 0.0)
    assert costs.running + costs.waiting == 8 + 30
    assert costs.running > 8 - 2 * 8 / 6
    assert costs.ended > 50
    assert costs.preempted == 0


def test_whoever_ends_is_followed_by_another() -> None:
    line = Line(CROWD, "fair")
    line.settle()
    before = line.scheduler.snapshot()
    for _ in range(40):
        line.step(lambda: 0.0)
    after = line.scheduler.snapshot()
    assert before.running + before.waiting == after.running + after.waiting


def test_only_decisions_are_timed() -> None:
    ticks = count()
    costs = measure(CROWD, "fcfs", steps=4, clock=lambda: float(next(ticks)))  # every look at the clock takes a second
    assert (costs.median_ms, costs.schedule_ms, costs.commit_ms, costs.arrival_ms) == (2000.0, 1000.0, 1000.0, 1000.0)


@pytest.mark.parametrize("changes", [{"running": 0}, {"waiting": -1}, {"tenants": 0}])
def test_a_crowd_of_nobody_is_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(changes))} must be at least"):
        Crowd(**changes)


def test_nothing_is_measured_in_no_steps() -> None:
    with pytest.raises(ConfigError, match="steps must be at least 1"):
        measure(CROWD, "fcfs", steps=0, clock=lambda: 0.0)
