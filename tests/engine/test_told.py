"""What a step says of what it was told, and of how its execution went."""

from collections import deque
from typing import Any

import pytest
from engines import NEXT, config
from executors import ShadowExecutor
from virtual import request

from chairlift.core.events import End, Step, Submit, Told
from chairlift.core.types import Result, Standing
from chairlift.engine.core import Ask, EngineCore


class Interrupted(ShadowExecutor):
    """While it computes something arrives; then it may fail, or name a row that has."""

    def __init__(self, *arriving: Told, mishap: str = "") -> None:
        super().__init__(20, 4, NEXT)
        self.arriving = arriving
        self.mishap = mishap
        self.inbox: deque[Any] = deque()

    def collect(self) -> Result:
        self.inbox.extend(self.arriving)
        self.arriving = ()
        if self.mishap == "step":
            self.drop()
            raise ValueError("the adder is broken")
        result = super().collect()
        return result._replace(failed=(("a", "broken"),)) if self.mishap == "row" else result


FIRST = (Submit(request("a", range(3))), End("nobody", "stop"), Submit(request("b", range(3))))
LATER = (End("b", "abort", "cancelled"), Submit(request("c", range(3))))


def core(executor: Interrupted) -> EngineCore:
    made = EngineCore(config(), executor)
    executor.inbox = made.inbox
    made.inbox.extend(FIRST)
    return made


def test_what_was_told_before_and_while_it_was_computed_is_kept_apart_and_in_order():
    engine = core(Interrupted(*LATER))
    step = engine.step(0.0)
    assert (step.taken, step.within) == (FIRST, LATER)
    assert (engine.step(1.0).taken, engine.step(2.0).taken) == ((), ())


def test_a_question_is_nothing_told():
    asked: list[tuple[Standing, ...]] = []
    engine = core(Interrupted())
    engine.inbox.append(Ask(asked.append))
    assert engine.step(0.0).taken == FIRST
    assert len(asked) == 1


def test_the_reason_of_an_end_goes_with_the_answer():
    outputs = core(Interrupted(*LATER)).step(0.0).outputs
    assert [(output.finish, output.stop_reason) for output in outputs if output.seq_id == "b"] == [("abort", "cancelled")]


def test_rows_that_failed_are_named():
    step = core(Interrupted(mishap="row")).step(0.0)
    assert (step.failed, step.raised) == (("a",), False)


def failed_step(at: float) -> Step:
    engine = core(Interrupted(*LATER, mishap="step"))
    with pytest.raises(ValueError, match="broken"):
        engine.step(2.0)
    step = engine.fail_step(at, "broken")
    assert step is not None
    return step


def test_a_failed_step_says_when_it_was_decided_and_how_long_it_took():
    step = failed_step(2.5)
    assert (step.raised, step.now, step.elapsed_s) == (True, 2.0, 0.5)


def test_a_failed_step_says_what_it_was_told_before_and_meanwhile():
    assert (failed_step(2.5).taken, failed_step(2.5).within) == (FIRST, LATER)


def test_the_last_step_of_an_engine_that_gives_up_says_what_came_before_it():
    assert core(Interrupted()).abandon(1.0, "broken").taken == FIRST
