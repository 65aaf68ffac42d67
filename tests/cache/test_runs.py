"""Free runs: where they are taken, how they join again, and a state machine against a plain row of blocks."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from chairlift.cache.runs import FreeRuns


def test_everything_is_one_run_at_first():
    assert list(FreeRuns(7)) == [range(7)]


def test_the_first_run_that_is_long_enough_is_taken():
    runs = FreeRuns(10)
    short, _, _ = runs.take(2), runs.take(1), runs.take(7)
    runs.release(short)
    runs.release(range(6, 9))
    assert [runs.take(3), runs.take(1)] == [range(6, 9), range(1)]


def test_a_run_joins_its_neighbours_on_both_sides():
    runs = FreeRuns(6)
    left, middle, right = runs.take(2), runs.take(1), runs.take(2)
    for run in (left, right, middle):
        runs.release(run)
    assert list(runs) == [range(6)]


def test_what_would_come_back_is_counted_with_what_is_free_beside_it():
    runs = FreeRuns(9)
    first, second, third, _ = runs.take(2), runs.take(2), runs.take(2), runs.take(2)
    runs.release(second)
    assert [runs.longest(), runs.longest([third]), runs.longest([third, first])] == [2, 4, 6]


def test_a_full_pool_has_no_run():
    runs = FreeRuns(3)
    runs.take(3)
    assert (list(runs), runs.longest()) == ([], 0)


def test_taking_a_run_that_is_not_there_is_our_mistake():
    runs = FreeRuns(4)
    runs.take(4)
    runs.release(range(1))
    runs.release(range(2, 4))
    with pytest.raises(AssertionError):
        runs.take(3)


@pytest.mark.parametrize("again", [range(2, 4), range(1, 3), range(3, 5), range(5)])
def test_giving_back_what_is_free_is_our_mistake(again: range):
    runs = FreeRuns(6)
    runs.take(6)
    runs.release(range(2, 4))
    with pytest.raises(AssertionError):
        runs.release(again)


@settings(max_examples=60, stateful_step_count=40)
class RunsMachine(RuleBasedStateMachine):
    """Random holders take and give back; the model is one character a block."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = FreeRuns(12)
        self.row = "f" * 12
        self.held: list[range] = []

    @precondition(lambda self: self.runs.longest())
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, self.runs.longest()))
        run = self.runs.take(count)
        assert run.start == self.row.find("f" * count)
        assert len(run) == count
        self.row = f"{self.row[: run.start]}{' ' * count}{self.row[run.stop :]}"
        self.held.append(run)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        run = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.runs.release(run)
        self.row = f"{self.row[: run.start]}{'f' * len(run)}{self.row[run.stop :]}"

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def look_ahead(self, data: st.DataObject) -> None:
        leaving = data.draw(st.lists(st.sampled_from(self.held), unique=True))
        row = list(self.row)
        for run in leaving:
            row[run.start : run.stop] = "f" * len(run)
        assert self.runs.longest(leaving) == max(map(len, "".join(row).split(" ")))

    @invariant()
    def free_runs_are_what_is_free(self) -> None:
        expected = [len(part) for part in self.row.split(" ") if part]
        assert [len(run) for run in self.runs] == expected
        assert all(self.row[run.start : run.stop] == "f" * len(run) for run in self.runs)


TestRuns = RunsMachine.TestCase
