"""What the other ranks are told of a plan, and that nothing else is taken for one."""

from array import array

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.core.types import PENDING, Draw, Move, Plan, Sampling, Work
from chairlift.execute.torch.parallel.wire import DRAW, Reader, WireError, encode

NUMBERS = st.integers(0, 2**31 - 1)
ARRAYS = st.lists(st.integers(PENDING, 2**31 - 1), max_size=5).map(lambda numbers: array("i", numbers))
DRAWS = st.lists(st.builds(Draw, st.integers(0, 9), st.builds(Sampling, seed=NUMBERS)), max_size=3).map(tuple)
ROWS = st.builds(Work, st.text(max_size=9), NUMBERS, ARRAYS, ARRAYS, DRAWS, st.booleans())
MOVES = st.builds(Move, st.sampled_from(["copy", "store", "load"]), NUMBERS, NUMBERS)
PLANS = st.builds(
    Plan,
    st.integers(0, 2**53),
    st.lists(ROWS, max_size=5, unique_by=lambda row: row.seq_id).map(tuple),
    preempted=st.just(("a",)),
    moves=st.lists(MOVES, max_size=4).map(tuple),
)
ROW = Work("a", 3, array("i", [5, PENDING]), array("i", [0, 7]), (DRAW,))


def told(plan: Plan) -> Plan:
    """What is left of a plan for those who do not draw."""
    work = tuple(row._replace(draws=(DRAW,) * len(row.draws)) for row in plan.work)
    return Plan(plan.step, work, moves=plan.moves)


@given(st.lists(PLANS, max_size=4))
def test_everything_that_is_computed_comes_out_again(plans: list[Plan]) -> None:
    reader = Reader()
    assert [reader.read(encode(plan)) for plan in plans] == [told(plan) for plan in plans]


def test_blocks_that_stay_equal_stay_the_same_object() -> None:
    reader = Reader()
    first, same, more = (
        reader.read(encode(Plan(step, (ROW._replace(blocks=array("i", blocks)),)))).work[0].blocks
        for step, blocks in enumerate(([0, 7], [0, 7], [0, 7, 2]))
    )
    assert (first is same, more) == (True, array("i", [0, 7, 2]))


def test_the_history_of_a_draw_is_not_sent() -> None:
    long = Draw(0, Sampling(repetition_penalty=1.2), history=array("i", range(100_000)), prompt_len=9)
    assert len(encode(Plan(0, (ROW._replace(draws=(long,)),)))) < 100


@given(st.binary(max_size=40))
def test_other_bytes_are_no_plan(data: bytes) -> None:
    with pytest.raises(WireError):
        Reader().read(b"\xc1" + data)


GOOD = msgspec.msgpack.decode(encode(Plan(1, (ROW,), moves=(Move("load", 1, 2),))))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (0, "1"),
        (1, []),
        (1, ["a", "b"]),
        (1, [3]),
        (2, b""),
        (2, b"123"),
        (2, array("i", [3, 2, 2, 1]).tobytes()),
        (2, array("i", [3, -2, 2, 1, 0]).tobytes()),
        (2, array("i", [3, 3, 2, 1, 0]).tobytes()),
        (2, array("i", [3, 1, 2, 1, 0]).tobytes()),
        (3, None),
        (4, array("i", [0]).tobytes()),
        (5, array("i", [3, 1, 2]).tobytes()),
        (5, array("i", [1, 2]).tobytes()),
    ],
)
def test_a_plan_that_does_not_add_up_is_refused(field: int, value: object) -> None:
    fields = list(GOOD)
    fields[field] = value
    with pytest.raises(WireError):
        Reader().read(msgspec.msgpack.encode(fields))


def test_fields_that_nobody_knows_are_refused() -> None:
    with pytest.raises(WireError):
        Reader().read(msgspec.msgpack.encode([*GOOD, 1]))
