"""A step that fails and names nobody: who is guilty ends, the others write what they would have written."""

from array import array
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from engines import NEXT, config
from executors import ShadowExecutor, solo
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual import Ride, request

from chairlift.cache.prefix import PrefixIndex
from chairlift.core.events import Step
from chairlift.core.types import Plan, Request, Result, choice_ids
from chairlift.engine.core import EngineCore
from chairlift.schedule.deadlines import Deadline, Onset
from chairlift.schedule.orders import Ranked, Seniority
from chairlift.schedule.policy import Past
from chairlift.schedule.presets import PRESETS, preset
from chairlift.schedule.scheduler import Scheduler

POISON = 49
"""A step with a row of this token may fail."""


class Fragile(ShadowExecutor):
    """Raises in the steps that `breaks` names, after it has written."""

    def __init__(self, breaks: Callable[[Plan], bool], **sizes: int) -> None:
        super().__init__(sizes.get("num_blocks", 20), 4, NEXT, num_host_blocks=sizes.get("num_host_blocks", 0))
        self.breaks = breaks

    def collect(self) -> Result:
        plan = self.next_up
        known = tuple(work._replace(tokens=array("i", self.known(work))) for work in plan.work)
        result = super().collect()
        if self.breaks(plan._replace(work=known)):
            self.drop()
            raise ValueError("it broke")
        return result


class FragileRide(Ride):
    """Does with a failed step what the engine's loop does."""

    def __init__(self, breaks: Callable[[Plan], bool], **changes: Any) -> None:
        settled = config(**changes)
        sizes = {"num_blocks": settled.num_blocks, "num_host_blocks": settled.num_host_blocks}
        self.executor = Fragile(breaks, **sizes)
        super().__init__(EngineCore(settled, self.executor))
        self.blamed: list[Request] = []
        self.doubts: list[int] = []

    def step(self) -> Step:
        try:
            step = super().step()
        except ValueError:
            return self._fail()
        self.blamed += step.blamed
        return step

    def _fail(self) -> Step:
        failed = self.core.fail_step(self.now, "it broke")
        assert failed is not None
        assert len(self.core.scheduler.index) == 0
        self.now += 1.0
        self.steps.append(failed)
        self.doubts.append(self.core.doubts)
        for output in failed.outputs:
            self.take(output)
        return failed


def poisoned(plan: Plan) -> bool:
    return any(POISON in work.tokens for work in plan.work)


def once(step: int) -> Callable[[Plan], bool]:
    return lambda plan: plan.step == step


def test_whoever_fails_alone_ends_with_an_error_and_the_others_go_on():
    engine = FragileRide(poisoned)
    engine.submit(request("a", range(5), 9), request("bad", [1, POISON, 2], 9), request("c", range(8), 9))
    engine.run()
    assert [engine.endings[name] for name in ("a", "bad", "c")] == [["length"], ["error"], ["length"]]
    assert tuple(engine.tokens["a"]) == solo(tuple(range(5)), NEXT, 9)
    assert tuple(engine.tokens["c"]) == solo(tuple(range(8)), NEXT, 9)
    assert ([one.id for one in engine.blamed], engine.core.doubts, engine.free_again) == (["bad"], 0, True)


def test_a_prompt_that_fails_alone_ends_all_its_choices_with_one_blame():
    engine = FragileRide(poisoned)
    engine.submit(request("a", range(5), 9), request("bad", [1, POISON, 2], 9, samples=3))
    engine.run()
    assert [engine.endings[name] for name in ("a", "bad", "bad#1", "bad#2")] == [["length"]] + [["error"]] * 3
    assert ([one.id for one in engine.blamed], len(engine.doubts), engine.free_again) == (["bad"], 2, True)


def test_choices_that_have_parted_are_tried_one_by_one():
    engine = FragileRide(once(3))
    engine.submit(request("a", range(6), 9, samples=3))
    engine.run()
    assert [[work.seq_id for work in step.plan.work] for step in engine.steps[5:8]] == [["a"], ["a#1"], ["a#2"]]
    assert [len(engine.tokens[name]) for name in ("a", "a#1", "a#2")] == [9, 9, 9]


def test_a_failure_that_does_not_come_again_harms_nobody():
    engine = FragileRide(once(3))
    engine.submit(*(request(name, range(place, place + 5), 9) for place, name in enumerate("abc")))
    engine.run()
    assert [tuple(engine.tokens[name]) for name in "abc"] == [solo(tuple(range(p, p + 5)), NEXT, 9) for p in range(3)]
    assert engine.blamed == []


def test_suspects_are_computed_one_at_a_time():
    engine = FragileRide(once(3))
    engine.submit(*(request(name, range(place, place + 5), 9) for place, name in enumerate("abc")))
    engine.run()
    assert [[work.seq_id for work in step.plan.work] for step in engine.steps[5:8]] == [["a"], ["b"], ["c"]]
    assert {work.seq_id for work in engine.steps[8].plan.work} == {"a", "b", "c"}


def test_a_long_suspect_is_tried_chunk_by_chunk():
    engine = FragileRide(once(3))
    engine.submit(request("a", range(40), 9))
    engine.run()
    assert [work.start for step in engine.steps[5:8] for work in step.plan.work] == [0, 16, 32]
    assert tuple(engine.tokens["a"]) == solo(tuple(range(40)), NEXT, 9)


def test_failures_that_nobody_explains_are_counted_until_a_step_succeeds():
    together = FragileRide(lambda plan: len(plan.work) > 1)
    together.submit(request("a", range(5), 9), request("b", range(6), 9))
    for _ in range(13):
        together.step()
    assert together.doubts == [1, 2, 3, 4]  # each round: a failure, a proof, and two trials that pass
    once_only = FragileRide(once(2))
    once_only.submit(request("a", range(5), 9))
    once_only.run()
    assert (once_only.doubts, once_only.core.doubts) == ([1], 0)


def test_an_executor_that_fails_the_proof_is_at_fault_and_nobody_else():
    engine = FragileRide(lambda plan: plan.step >= 3)
    engine.submit(*(request(name, range(place, place + 5), 9) for place, name in enumerate("ab")))
    for _ in range(6):
        engine.step()
    assert (engine.doubts, engine.blamed, dict(engine.endings)) == ([1, 2, 3], [], {"a": [], "b": []})
    assert [[work.pad for work in step.plan.work] for step in engine.steps[3:]] == [[False, False], [True], [True]]


def test_whoever_fails_alone_is_tried_again_if_the_executor_then_fails_the_proof():
    engine = FragileRide(lambda plan: plan.step in (2, 4, 5))  # the step of all, a's trial, the proof after it
    engine.submit(*(request(name, range(place, place + 5), 9) for place, name in enumerate("ab")))
    engine.run()
    assert (engine.blamed, engine.doubts) == ([], [1, 2, 3])
    assert [tuple(engine.tokens[name]) for name in "ab"] == [solo(tuple(range(p, p + 5)), NEXT, 9) for p in range(2)]


def test_a_request_that_fails_alone_leaves_no_doubt_however_many_come():
    engine = FragileRide(poisoned)
    engine.submit(*(request(str(number), [number, POISON], 9) for number in range(9)))
    engine.run()
    assert {one.id for one in engine.blamed} == {str(number) for number in range(9)}
    assert engine.core.doubts == 0


def test_whoever_leaves_during_its_trial_does_not_make_the_next_one_guilty():
    class Leaving(Fragile):
        def collect(self) -> Result:
            if self.collecting.step == 5:
                engine.end("a")
            return super().collect()

    engine = FragileRide(once(3))
    engine.core._executor = Leaving(lambda plan: plan.step in (3, 5))
    engine.submit(request("a", range(5), 9), request("b", range(6), 9))
    engine.run()
    assert (engine.endings["a"], engine.endings["b"]) == (["abort"], ["length"])
    assert tuple(engine.tokens["b"]) == solo(tuple(range(6)), NEXT, 9)


def test_a_shared_prefix_is_not_trusted_after_a_failure():
    engine = FragileRide(once(4))
    engine.submit(*(request(name, [*range(12), place], 9) for place, name in enumerate("abcd")))
    engine.run()
    assert all(tuple(engine.tokens[name]) == solo((*range(12), place), NEXT, 9) for place, name in enumerate("abcd"))
    assert engine.free_again


def crowded(breaks: Callable[[Plan], bool]) -> FragileRide:
    engine = FragileRide(breaks, num_blocks=14, max_model_len=56, num_host_blocks=40)
    engine.submit(*(request(name, range(place, place + 6), 40, arrival=float(place)) for place, name in enumerate("abc")))
    return engine


def test_after_a_failure_nothing_comes_back_from_the_host_and_nobody_is_put_there_while_it_is_looked_into():
    """In the step in which somebody is put away; until all are found innocent it takes a proof and trials."""
    calm = crowded(lambda plan: False)
    calm.run()
    stored = next(step.plan.step for step in calm.steps if step.plan.moves)
    engine = crowded(once(stored))
    while not engine.doubts:
        engine.step()
    assert len(engine.executor.plans[-1].work) == 2
    assert engine.core.scheduler.snapshot().swapped == 0
    since = len(engine.steps)
    engine.run()
    usual = next(place for place in range(since, len(engine.steps)) if len(engine.steps[place].plan.work) > 1)
    assert {engine.steps[place].plan.work[0].seq_id for place in range(since, usual)} == {"", "a", "b"}
    assert all(step.plan.moves == () for step in engine.steps[since : usual + 1])
    assert [tuple(engine.tokens[name]) for name in "abc"] == [solo(tuple(range(p, p + 6)), NEXT, 40) for p in range(3)]
    assert engine.free_again


@pytest.mark.parametrize("preset", PRESETS)
@given(
    prompts=st.lists(
        st.tuples(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.integers(1, 3)), min_size=1, max_size=6
    ),
    bad=st.sets(st.integers(0, 5), max_size=2),
    broken=st.sets(st.integers(0, 40), max_size=3),
    host=st.sampled_from([0, 5, 40]),
    depth=st.sampled_from([1, 2, 2]),
)
@settings(max_examples=15, deadline=None)
def test_failures_change_no_text_but_of_the_guilty(
    preset: str, prompts: list[tuple[list[int], int]], bad: set[int], broken: set[int], host: int, depth: int
):
    engine = FragileRide(
        lambda plan: poisoned(plan) or (plan.step in broken and len(plan.work) > 1),
        preset=preset,
        num_blocks=24,
        num_host_blocks=host,
        max_num_seqs=3,
        batch_wait_s=2.0,
        depth=depth,
    )
    asked = {
        str(number): request(
            str(number), [*prompt, POISON] if number in bad else prompt, 6, arrival=float(number), samples=samples
        )
        for number, (prompt, samples) in enumerate(prompts)
    }
    engine.submit(*asked.values())
    engine.run()
    assert engine.free_again
    choices = [(one, choice, name) for one in asked.values() for choice, name in enumerate(choice_ids(one))]
    for one, choice, name in choices:
        text = solo(one.prompt, lambda prefix, choice=choice: NEXT(prefix) + choice, 6)
        if POISON in (*one.prompt, *text[:-1]):
            assert engine.endings[name] == ["error"]
        else:
            assert (engine.endings[name], tuple(engine.tokens[name])) == (["length"], text)


class Hearing:
    """Keeps the numbers of the steps that policies are told of."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def observe(self, past: Past) -> None:
        if past.plan is not None:
            self.steps.append(past.plan.step)


def test_policies_learn_nothing_from_a_step_that_failed_and_from_those_that_find_out_why():
    """Whoever was on the way to the first token teaches nothing either, though it gets there in the end."""
    engine = FragileRide(once(1))
    onset, hearing = Onset(), Hearing()
    order = Ranked(Deadline(onset), Seniority(None), learners=(onset, hearing))
    index = PrefixIndex(4)
    engine.core.scheduler = Scheduler(config(), replace(preset(config(), index), order=order), index)
    engine.submit(request("a", range(40), 3), request("b", range(50, 60), 3))
    engine.run()
    assert (onset._all.known, onset._begun) == (0, {})
    # Step 1 fails; 2 is the proof; then each is computed alone until its next token.
    first_usual = next(step.plan.step for step in engine.steps[3:] if len(step.plan.work) == 2)
    assert hearing.steps == [0, *range(first_usual, engine.steps[-1].plan.step)]


def test_a_step_that_fails_loses_no_news_of_those_who_have_ended():
    engine = FragileRide(once(2))
    engine.submit(request("a", range(3), 2))
    engine.run()
    engine.submit(request("b", range(3), 2))
    engine.run()
    plans = [step.plan for step in engine.steps if step.plan.work]
    assert ("a",) in [plan.closed for plan in plans if plan.step > 2]
