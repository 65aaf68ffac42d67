"""Rows that do nothing but draw one more token are planned and taken in by a shorter way. The long one is their slow twin."""

import pytest
from engines import ride
from hypothesis import event, given
from hypothesis import strategies as st
from virtual import Ride, request

from chairlift.core.types import Output, Request, Stopping

NEVER = 99
"""A token that no test engine writes. Where it is forbidden at every place, each row has draws of its own and is never calm."""

Asked = tuple[int, int, int]
"""Lengths of a prompt and of its answer, and how many answers are wanted."""


def asked_for(asked: list[Asked], *, calm: bool) -> list[Request]:
    return [
        request(
            str(number),
            [number % 3, *range(prompt)],  # some begin alike
            stopping=Stopping(answer) if calm else Stopping(answer, min_tokens=answer, stop_ids=frozenset({NEVER})),
            samples=samples,
        )
        for number, (prompt, answer, samples) in enumerate(asked)
    ]


def rode(asked: list[Asked], *, calm: bool, depth: int, headroom: str) -> Ride:
    engine = ride(depth=depth, headroom=headroom, num_blocks=12, max_model_len=40)
    for one in asked_for(asked, calm=calm):
        engine.submit(one)
    engine.run()
    return engine


def decided(engine: Ride) -> list[tuple[object, ...]]:
    """All that steps decided, but for what their draws were forbidden."""
    plans = [step.plan for step in engine.steps]
    rows = [[(row.seq_id, row.start, row.tokens, row.blocks, len(row.draws), row.pad) for row in plan.work] for plan in plans]
    return [(work, *plan[2:]) for work, plan in zip(rows, plans, strict=True)]


def told(engine: Ride) -> list[list[Output]]:
    """In any order within a step."""
    return [sorted(step.outputs, key=lambda output: output.seq_id) for step in engine.steps]


@pytest.mark.parametrize("depth", [1, 2])
@given(
    asked=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 24), st.integers(1, 2)), min_size=1, max_size=6),
    headroom=st.sampled_from(["optimistic", "reserve"]),
)
def test_the_short_way_decides_and_tells_what_the_long_one_does(depth: int, asked: list[Asked], headroom: str) -> None:
    short, long = (rode(asked, calm=calm, depth=depth, headroom=headroom) for calm in (True, False))
    event(f"preempted: {any(step.plan.preempted for step in short.steps)}")
    assert decided(short) == decided(long)
    assert told(short) == told(long)
