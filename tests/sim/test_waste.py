"""Waste of small traces, beside what can be worked out by hand."""

from dataclasses import replace

import pytest
from engines import config

from chairlift.core.errors import ConfigError
from chairlift.sim.cost import Linear
from chairlift.sim.waste import TRUE_LENGTH, Waste, measure
from chairlift.workload.traces import Arrival

COST = Linear(step_s=1.0)
ENGINE = config(enable_prefix_caching=False)
"""Blocks of 4 tokens, 16 tokens a step."""


def waste(*arrivals: Arrival, **changes: int | str) -> Waste:
    return measure(arrivals, replace(ENGINE, **changes), COST, max_tokens=(TRUE_LENGTH, 9))


def test_a_block_is_empty_until_it_is_full():
    # After its steps it has stored 5, 6 and 7 of 8 tokens; the last token of the answer is never stored, and then it is gone.
    found = waste(Arrival(0.0, 5, 4))
    assert found.paged == pytest.approx((3 / 8 + 2 / 8 + 1 / 8) / 3)
    assert (found.steps, found.live, found.most_blocks) == (3, 1.0, 2)


def test_a_prompt_holds_blocks_before_it_is_computed():
    found = waste(Arrival(0.0, 24, 2))  # 16 of 24, then 24
    assert found.paged == pytest.approx((8 / 24) / 2)


def test_a_run_is_reserved_for_what_was_asked_for():
    found = waste(Arrival(0.0, 5, 4))
    assert found.reserved[TRUE_LENGTH] == pytest.approx((3 / 8 + 2 / 8 + 1 / 8) / 3)  # 5 + 4 - 1 tokens are two blocks
    assert found.reserved[9] == pytest.approx((11 / 16 + 10 / 16 + 9 / 16) / 3)  # 5 + 9 - 1 are four


def test_whoever_asks_for_too_little_gets_what_his_answer_takes():
    arrivals = (Arrival(0.0, 5, 12),)
    found = measure(arrivals, ENGINE, COST, max_tokens=(TRUE_LENGTH, 3))
    assert found.reserved[3] == found.reserved[TRUE_LENGTH]


def test_it_is_of_all_blocks_of_a_step_together():
    found = waste(Arrival(0.0, 4, 2), Arrival(0.0, 5, 2))
    assert found.paged == pytest.approx(1 - 9 / 12)
    assert found.live == 2.0


def test_time_without_anybody_counts_nothing():
    late = waste(Arrival(0.0, 5, 4), Arrival(100.0, 5, 4))
    assert (late.paged, late.steps) == (pytest.approx(waste(Arrival(0.0, 5, 4)).paged), 6)


def test_preemptions_are_told():
    short = waste(*[Arrival(0.0, 8, 30)] * 4, num_blocks=16, max_model_len=40)
    assert short.preemptions > 0


def test_prompts_without_texts_are_not_shared():
    with pytest.raises(ConfigError, match="without prefix caching"):
        measure([], config(), COST)


def test_runs_that_are_really_reserved_waste_what_was_worked_out():
    arrivals = [Arrival(0.0, 5, 4), Arrival(0.0, 9, 2), Arrival(3.0, 2, 8)]
    found = waste(*arrivals, kv_layout="contiguous")
    assert found.paged == pytest.approx(found.reserved[TRUE_LENGTH])
