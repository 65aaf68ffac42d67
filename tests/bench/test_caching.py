"""Pairs of runs, on an executor that takes as long as it is told to and a clock that only it turns."""

from dataclasses import dataclass

import pytest
from engines import config
from executors import ShadowExecutor, hashed

from chairlift.bench.caching import Pair, compare, overhead
from chairlift.bench.engine import Subject, Workload, settings
from chairlift.core.costs import ModelCost
from chairlift.core.types import Plan, Result

COST = ModelCost(body_bytes=1000, head_bytes=0, token_bytes=0, token_operations=70, draw_operations=0, layers=())


@dataclass
class SteadyExecutor:
    """Steps take a second, and a tenth longer each time than the time before if it `slows`."""

    shadow: ShadowExecutor
    slows: bool = False
    now: float = 0.0
    took: float = 1.0
    threads = 1
    isa = None
    computed = (0.0, 0.0)
    cost = COST

    def clock(self) -> float:
        return self.now

    def launch(self, plan: Plan) -> None:
        self.now += self.took
        self.took *= 1.1 if self.slows else 1.0
        self.shadow.launch(plan)

    def collect(self) -> Result:
        return self.shadow.collect()

    def limits(self) -> None: ...
    def close(self) -> None: ...


def compared(workload: Workload, *, slows: bool = False) -> tuple[list[Pair], SteadyExecutor]:
    engine = settings(config(), workload)
    executor = SteadyExecutor(ShadowExecutor(engine.num_blocks, engine.block_size, hashed(50)), slows)
    return compare(Subject(engine, executor, executor, 50), workload, clock=executor.clock), executor


WORKLOAD = Workload((3,), input_len=10, output_len=5, rounds=4)


def test_both_of_a_pair_compute_the_same() -> None:
    pairs, executor = compared(WORKLOAD)
    assert pairs == [Pair(6.0, 6.0, 4.0, 4.0)] * 4
    told = [work.tokens.tolist() for plan in executor.shadow.plans for work in plan.work if work.start == 0]
    _, first, _, again, other, other_again, *_ = (told[place : place + 3] for place in range(0, len(told), 3))
    assert first == again != other == other_again  # both warm up before their first run


def test_nothing_is_found_in_the_cache() -> None:
    _, executor = compared(WORKLOAD)
    plans = executor.shadow.plans
    assert sum(plan.tokens for plan in plans) == 2 * (WORKLOAD.tokens + 3 * (10 + 4 - 1))


def test_they_take_turns_in_going_first() -> None:
    pairs, _ = compared(WORKLOAD, slows=True)
    assert [pair.ratio < 1 for pair in pairs] == [True, False, True, False]


def test_the_cost_is_the_median_of_the_ratios() -> None:
    pairs = [Pair(ratio * 2.0, 2.0, ratio * 1.5, 1.0) for ratio in (1.0, 1.02, 1.04, 1.06, 5.0)]
    found = overhead(pairs, WORKLOAD)
    assert (found.lower, found.median, found.upper) == pytest.approx((0.02, 0.04, 0.06))
    assert (found.pairs, found.decode_median) == (5, pytest.approx(0.56))
