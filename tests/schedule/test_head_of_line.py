"""A huge prompt and small ones beside it: neither keeps the other waiting for longer than docs/design/schedule.md says."""

from math import ceil
from typing import Any

import pytest
from engines import ride
from virtual import Ride, request

BUDGET, PLACES, HUGE, SMALL = 32, 4, 600, 3
LEAST = BUDGET // 16
"""Where a target cannot be met."""
LEFT = BUDGET - PLACES
"""Tokens for prompts in a step in which as many as can be want a next token."""

SPLITS: dict[str, dict[str, Any]] = {
    "chunked": {"split": "chunked"},
    "balanced": {"split": "balanced"},
    "whole": {"split": "whole"},
    # A step takes a second, so a target of less leaves prompts no more than the least: the worst case.
    "adaptive": {"split": "chunked", "itl_target_s": 0.5},
}

SMALL_STEPS = {"chunked": 1, "balanced": 1, "whole": ceil(HUGE / LEFT) + 1, "adaptive": ceil(SMALL / (LEAST // 2))}
"""Until the first token of a small prompt that gets on beside a huge one, the step included."""

HUGE_STEPS = {
    "chunked": ceil(HUGE / (LEFT // 2)),
    "balanced": ceil(HUGE / (LEFT // PLACES)),
    "whole": ceil(HUGE / LEFT) + 1,
    "adaptive": ceil(HUGE / (LEAST // 2)),
}
"""Until the first token of a huge prompt whatever small ones come after it."""


def engine(split: str) -> Ride:
    return ride(num_blocks=400, max_model_len=700, max_num_seqs=PLACES, max_num_batched_tokens=BUDGET, **SPLITS[split])


def steps_to_first_token(ride: Ride, request_id: str, since: int) -> int:
    """Counted from the step with this number, which is the first."""
    first = next(step.plan.step for step in ride.steps for output in step.outputs if output.seq_id == request_id)
    return first - since + 1


@pytest.mark.parametrize("split", SPLITS)
def test_a_huge_prompt_delays_a_small_one_by_no_more_than_the_bound(split: str):
    run = engine(split)
    run.submit(request("stream", range(4), 200), request("huge", range(HUGE), 2))
    for _ in range(5):
        run.step()
    run.submit(request("small", range(SMALL), 2, arrival=run.now))
    since = len(run.steps)
    run.run()
    assert steps_to_first_token(run, "small", since) <= SMALL_STEPS[split]


@pytest.mark.parametrize("split", SPLITS)
def test_a_huge_prompt_is_not_starved_by_small_ones(split: str):
    run = engine(split)
    run.submit(request("huge", range(HUGE), 2))
    for number in range(400):
        run.submit(request(f"small{number}", [number % 50] * SMALL, 2, arrival=run.now))
        run.step()
        if run.tokens["huge"]:
            break
    assert steps_to_first_token(run, "huge", 0) <= HUGE_STEPS[split]


@pytest.mark.parametrize("split", SPLITS)
def test_a_small_prompt_behind_many_huge_ones_waits_for_them_at_most(split: str):
    run = engine(split)
    run.submit(*(request(f"huge{number}", range(number, number + HUGE), 2) for number in range(PLACES - 1)))
    run.step()
    run.submit(request("small", range(SMALL), 2, arrival=run.now))
    since = len(run.steps)
    run.run()
    share = LEAST if split == "adaptive" else LEFT
    assert steps_to_first_token(run, "small", since) <= ceil((PLACES - 1) * HUGE / share) + PLACES
