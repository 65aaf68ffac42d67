"""How many run beside each other when a time between tokens is wanted: 32 would just fit, and there are 64 places."""

import random
from functools import cache

from virtual import request

from chairlift.core.config import EngineConfig
from chairlift.core.types import Request
from chairlift.engine.core import EngineCore
from chairlift.sim.cost import Linear, Moody
from chairlift.sim.executor import WORD, SimExecutor
from chairlift.sim.loop import Moment, moments, run
from chairlift.sim.trials.latencies import itl_p99_s

FITTING = 32
TARGET_S = 0.1
COST = Linear(step_s=0.02, token_s=0.0002, draw_s=0.0022, position_s=2e-6)
"""A step of 32 rows at some 50 positions takes just the target."""


def config(*, target_s: float | None = TARGET_S) -> EngineConfig:
    return EngineConfig(
        max_model_len=128,
        num_blocks=1024,
        block_size=8,
        max_num_seqs=64,
        max_num_batched_tokens=64,
        enable_prefix_caching=False,
        itl_target_s=target_s,
    )


def crowd(count: int, *, every_s: float = 0.0, answer: int = 60) -> list[Request]:
    return [request(str(n), [WORD] * 8, answer + n % 7, arrival=every_s * n) for n in range(count)]


@cache
def steps() -> tuple[Moment, ...]:
    return tuple(moments(EngineCore(config(), SimExecutor(COST, {})), crowd(200)))


def running() -> list[int]:
    return [moment.step.snapshot.running for moment in steps() if moment.step.snapshot.waiting]


def test_no_more_run_than_fit():
    assert max(running()) <= FITTING


def test_nearly_as_many_run_as_fit():
    settled = running()[len(running()) // 4 :]
    assert sum(settled) / len(settled) >= 0.8 * FITTING


def test_a_crowd_is_let_in_by_and_by():
    """Nobody knows at first what a row costs."""
    assert running()[0] <= 4
    assert max(running()[:4]) <= 16


def test_streams_get_their_tokens_in_time():
    journeys = run(EngineCore(config(), SimExecutor(COST, {})), crowd(200))
    assert itl_p99_s(journeys.values()) <= TARGET_S


def test_without_a_target_they_do_not():
    journeys = run(EngineCore(config(target_s=None), SimExecutor(COST, {})), crowd(200))
    assert itl_p99_s(journeys.values()) > TARGET_S


def test_they_do_on_a_machine_with_noise():
    chance = random.Random(0)
    machine = Moody(COST, lambda: chance.gauss(1.0, 0.05), slowness=1.0, since_s=0.0, until_s=0.0)
    journeys = run(EngineCore(config(), SimExecutor(machine, {})), crowd(200))
    assert itl_p99_s(journeys.values()) <= TARGET_S


def test_everybody_is_served():
    assert all(moment.step.snapshot.waiting == 0 for moment in steps()[-1:])
    assert sum(bool(output.finish) for moment in steps() for output in moment.step.outputs) == 200


def test_a_target_that_cannot_be_met_lets_one_in_at_a_time():
    journeys = run(EngineCore(config(target_s=0.001), SimExecutor(COST, {})), crowd(12, answer=8))
    assert all(journey.finish == "length" for journey in journeys.values())


def test_whoever_comes_while_nobody_runs_gets_on_at_once():
    journeys = run(EngineCore(config(target_s=0.001), SimExecutor(COST, {})), crowd(5, every_s=100.0, answer=8))
    assert max(journey.ttft_s or 0.0 for journey in journeys.values()) < 1.0


def test_a_slow_time_passes():
    """What was learned while everything took twice as long does not keep anybody out afterwards."""
    machine = Moody(COST, lambda: 1.0, slowness=4.0, since_s=5.0, until_s=10.0)
    seen = [moment.step.snapshot for moment in moments(EngineCore(config(), SimExecutor(machine, {})), crowd(400))]
    late = [snapshot.running for snapshot in seen[len(seen) // 2 :] if snapshot.waiting]
    assert sum(late) / len(late) >= 0.8 * FITTING
