"""Two steps in flight: what the next step counts on while the last one is being computed, and what becomes of it."""

import zlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from engines import NEXT, config, ride
from executors import ShadowExecutor, solo
from virtual import GREEDY, Ride, request

from chairlift.cache.prefix import PrefixIndex
from chairlift.core.config import EngineConfig
from chairlift.core.errors import ConfigError
from chairlift.core.types import PENDING, Draw, Plan, Request, Result, Sampling, Stopping, choice_ids
from chairlift.engine.core import EngineCore
from chairlift.schedule.orders import Ranked, Seniority, arrival
from chairlift.schedule.policy import Past
from chairlift.schedule.presets import preset
from chairlift.schedule.queues import Sorted
from chairlift.schedule.scheduler import Scheduler

DEPTHS = [1, 2]
DECISION_MS, STEP_MS = 2, 10


def rows(engine: Ride) -> list[list[str]]:
    """Whose rows each step had; those without any are left out."""
    return [[work.seq_id for work in step.plan.work] for step in engine.steps if step.plan.work]


def deep(executor: ShadowExecutor, **changes: Any) -> Ride:
    return Ride(EngineCore(config(depth=2, **changes), executor))


class Hearing:
    """Keeps what policies are told: the numbers of steps and what they took, and how long the answers were that have ended."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, float]] = []
        self.lengths: dict[str, int] = {}

    def observe(self, past: Past) -> None:
        if past.plan is not None:
            self.steps.append((past.plan.step, past.elapsed_s))
        self.lengths |= {sequence.id: sequence.generated for sequence in past.finished}


def overhear(engine: Ride) -> Hearing:
    settings, index, hearing = engine.core.scheduler.config, PrefixIndex(4), Hearing()
    order = Ranked(Sorted(arrival), Seniority(None), learners=(hearing,))
    engine.core.scheduler = Scheduler(settings, replace(preset(settings, index), order=order), index)
    return hearing


class Meddled(ShadowExecutor):
    """Ends requests, or submits some, while the step of that number is being computed; or names a row of it as failed."""

    ride: Ride

    def __init__(self, **at: tuple[str, ...]) -> None:
        super().__init__(20, 4, NEXT)
        self.ends, self.fails = at.get("ends", ()), at.get("fails", ())
        self.step = -1

    def collect(self) -> Result:
        result = super().collect()
        if self.collecting.step != self.step:
            return result
        for name in self.ends:
            self.ride.end(name)
        kept = tuple(row for row in result.rows if row.seq_id not in self.fails)
        return result._replace(rows=kept, failed=tuple((name, "broken") for name in self.fails))


def meddled(step: int, *, max_num_seqs: int = 4, **at: tuple[str, ...]) -> Ride:
    executor = Meddled(**at)
    executor.step = step
    executor.ride = deep(executor, max_num_seqs=max_num_seqs)
    return executor.ride


# ── what is decided ahead ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_row_is_planned_for_a_token_that_is_still_drawn():
    engine = ride(depth=2)
    engine.submit(request("a", range(3), 4))
    engine.run()
    told = [work.tokens.tolist() for step in engine.steps for work in step.plan.work]
    assert told == [[0, 1, 2], [PENDING], [PENDING], [PENDING]]
    assert tuple(engine.tokens["a"]) == solo((0, 1, 2), NEXT, 4)


def test_at_depth_1_no_token_is_ever_pending():
    engine = ride()
    engine.submit(request("a", range(3), 4))
    engine.run()
    assert not any(PENDING in work.tokens for step in engine.steps for work in step.plan.work)


def test_whoever_ends_for_certain_gets_no_row_beyond_his_last_token():
    engine = ride(depth=2)
    engine.submit(request("a", range(3), 3), request("b", range(3), 5))
    engine.run()
    assert rows(engine) == [["a", "b"]] * 3 + [["b"]] * 2


def test_whoever_is_stopped_by_a_token_has_one_row_too_many_which_is_passed_over():
    text = solo((0, 1, 2), NEXT, 9)
    engine = ride(depth=2)
    engine.submit(request("a", range(3), stopping=Stopping(9, stop_ids=frozenset({text[2]}))), request("b", range(5), 9))
    engine.run()
    assert (rows(engine).count(["a", "b"]), engine.tokens["a"], engine.endings["a"]) == (4, list(text[:3]), ["stop"])
    assert engine.free_again


def test_choices_part_before_they_go_on():
    engine = ride(depth=2)
    engine.submit(request("a", range(3), 3, samples=3))
    engine.run()
    assert rows(engine) == [["a"], ["a", "a#1", "a#2"], ["a", "a#1", "a#2"]]


def test_a_decision_with_nothing_to_do_that_came_too_early_is_made_again_at_once():
    engine = ride(depth=2)
    engine.submit(request("a", range(3), 1))
    assert [(bool(step.plan.work), step.wake_at) for step in (engine.step(), engine.step(), engine.step())] == [
        (True, None),
        (False, 1.0),
        (False, None),
    ]


def test_more_than_two_steps_in_flight_are_refused():
    with pytest.raises(ConfigError, match="depth must be at most 2, not 3"):
        config(depth=3)


def test_whoever_looks_in_between_sees_no_token_that_is_not_there():
    engine = ride(depth=2)
    engine.submit(request("a", range(20), 9))
    seen: list[tuple[str, int]] = []
    for _ in range(4):
        engine.step()
        seen += [(one.state, one.tokens) for one in engine.core.scheduler.standings()]
    assert seen == [("prefill", 0), ("decode", 1), ("decode", 2), ("decode", 3)]
    assert len(engine.tokens["a"]) == 3


# ── no text changes ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Seeded(ShadowExecutor):
    """What it draws depends on the prefix, the seed, the choice and how many tokens there are."""

    def draw(self, draw: Draw, prefix: tuple[int, ...]) -> int:
        if draw.sampling.temperature == 0:
            return super().draw(draw, prefix)
        noise = f"{draw.sampling.seed} {draw.choice} {len(prefix) - draw.prompt_len}"
        return zlib.crc32(noise.encode(), self.next_token(prefix)) % 50


def crowd() -> list[Request]:
    """More than there is memory for: greedy and seeded ones, several choices, stop tokens."""
    return [
        request(
            str(number),
            range(number, number + 6 + number % 3),
            arrival=float(number),
            samples=1 + (number % 4 == 3),
            sampling=GREEDY if number % 2 else Sampling(seed=number),
            stopping=Stopping(30, number % 5, frozenset({3, 4}), frozenset({7})),
        )
        for number in range(9)
    ]


def texts(depth: int) -> tuple[Ride, dict[str, tuple[int, ...]]]:
    settings = config(num_blocks=14, max_model_len=56, depth=depth)
    engine = Ride(EngineCore(settings, Seeded(14, 4, NEXT)))
    engine.submit(*crowd())
    engine.run()
    return engine, {name: tuple(engine.tokens[name]) for one in crowd() for name in choice_ids(one)}


def test_depth_changes_no_text():
    shallow, expected = texts(1)
    deeper, found = texts(2)
    assert found == expected
    assert (shallow.endings, shallow.free_again, deeper.free_again) == (deeper.endings, True, True)
    assert shallow.preemptions > 0
    assert deeper.preemptions > 0
    assert {"stop", "length"} == {finish for [finish] in deeper.endings.values()}


# ── who leaves while two steps are in flight ──────────────────────────────────────────────────────────────────────────────


def test_whoever_leaves_gets_nothing_of_either_step():
    engine = meddled(2, ends=("a",))
    engine.submit(request("a", range(3), 9), request("b", range(5), 9))
    engine.run()
    assert (tuple(engine.tokens["a"]), engine.endings["a"]) == (solo((0, 1, 2), NEXT, 2), ["abort"])
    assert sum("a" in names for names in rows(engine)) == 4
    assert tuple(engine.tokens["b"]) == solo(tuple(range(5)), NEXT, 9)


def test_policies_learn_of_no_token_that_never_came():
    engine = meddled(2, ends=("a",))
    hearing = overhear(engine)
    third = solo((0, 1, 2, 3), NEXT, 3)[2]
    engine.submit(request("a", range(3), 9), request("b", range(4), stopping=Stopping(9, eos_ids=frozenset({third}))))
    engine.run()
    assert hearing.lengths == {"a": len(engine.tokens["a"]), "b": len(engine.tokens["b"])} == {"a": 2, "b": 3}


def test_what_a_draw_in_flight_looks_back_on_is_never_cut():
    engine = meddled(2, ends=("a",))
    engine.submit(request("a", range(3), 9), request("b", range(5), 9))
    engine.run()
    drawing = [(work.end, draw.history) for step in engine.steps for work in step.plan.work for draw in work.draws]
    assert all(history is not None and len(history) >= end for end, history in drawing)


def test_the_executor_hears_once_of_everybody_who_has_ended():
    engine = meddled(2, ends=("a",))
    engine.submit(request("a", range(3), 9), request("b", range(5), 9), request("c", range(5), 2))
    engine.run()
    assert sorted(name for step in engine.steps for name in step.plan.closed) == ["a", "c"]


def test_a_name_that_is_used_again_gets_no_token_of_its_last_bearer():
    engine = meddled(2, ends=("a",))
    engine.submit(request("a", range(3), 9), request("b", range(5), 9))
    for _ in range(3):
        engine.step()
    del engine.tokens["a"], engine.endings["a"]
    engine.submit(request("a", range(10, 14), 5))
    engine.run()
    assert tuple(engine.tokens["a"]) == solo(tuple(range(10, 14)), NEXT, 5)


def test_a_row_that_fails_ends_its_request_though_the_next_is_in_flight():
    engine = meddled(2, fails=("a",))
    engine.submit(request("a", range(3), 9), request("b", range(5), 9))
    engine.run()
    assert (engine.endings["a"], engine.endings["b"], engine.free_again) == (["error"], ["length"], True)
    assert len(engine.tokens["a"]) == 2


# ── who makes way while his row is in flight ──────────────────────────────────────────────────────────────────────────────


def displaced(engine: Ride, *low: Request, after: int) -> Ride:
    """After so many steps somebody urgent comes, and there is one place."""
    engine.submit(*low)
    for _ in range(after):
        engine.step()
    engine.submit(request("urgent", range(30, 34), 2, arrival=-9.0, priority=-5))
    return engine


def test_whoever_makes_way_gets_the_token_of_his_row_all_the_same():
    engine = displaced(ride(depth=2, max_num_seqs=1), request("a", range(5), 9), after=3)
    engine.step()
    assert (len(engine.tokens["a"]), [one.id for one in engine.core.scheduler.running]) == (4, ["urgent"])
    engine.run()
    assert tuple(engine.tokens["a"]) == solo(tuple(range(5)), NEXT, 9)
    assert engine.free_again


@pytest.mark.parametrize("cached", [True, False])
def test_whoever_makes_way_while_his_row_fills_a_block_finds_it_again(cached: bool):
    engine = displaced(ride(depth=2, max_num_seqs=1, enable_prefix_caching=cached), request("a", range(15), 4), after=1)
    engine.run()
    assert engine.preemptions == 1
    assert [tokens for _, tokens in engine.work_of("a")] == [15, 1, 1, 1]
    assert tuple(engine.tokens["a"]) == solo(tuple(range(15)), NEXT, 4)


def test_choices_whose_prompt_was_computed_when_they_had_to_make_way_have_their_first_tokens():
    engine = displaced(ride(depth=2, max_num_seqs=2), request("a", range(20), 4, samples=2), after=1)
    step = engine.step()
    assert [output.seq_id for output in step.outputs] == ["a", "a#1"]
    assert step.put_back == ("a#1",)
    engine.run()
    wanted = solo(tuple(range(20)), lambda prefix: NEXT(prefix) + 1, 4)
    assert (tuple(engine.tokens["a"]), tuple(engine.tokens["a#1"])) == (solo(tuple(range(20)), NEXT, 4), wanted)
    assert engine.free_again


def test_nobody_finds_what_one_has_computed_who_made_way_before_he_failed():
    engine = displaced(meddled(3, max_num_seqs=1, fails=("a",)), request("a", range(9), 9), after=3)
    assert len(engine.core.scheduler.index) > 0
    engine.step()
    assert (engine.endings["a"], len(engine.core.scheduler.index)) == (["error"], 0)


def test_memory_is_taken_first_from_whoever_ends_with_the_token_that_is_drawn():
    """All blocks are taken when `a` and `c` need another one, and `c` would be the worst."""
    engine = ride(depth=2, num_blocks=8, max_model_len=32, max_num_batched_tokens=32)
    engine.submit(*(request(name, range(place, place + 8), 7, arrival=place) for place, name in ((0, "a"), (2, "c"))))
    engine.submit(request("b", range(3), 5, arrival=1))
    engine.run()
    preempted = [(step.plan.step, name) for step in engine.steps for name in step.plan.preempted]
    assert preempted == [(5, "b")]
    assert (engine.work_of("b")[-1], len(engine.tokens["b"]), engine.free_again) == ((4, 1), 5, True)


# ── failures ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Broken(ShadowExecutor):
    """Fails once, at the launch or at the result of a step."""

    def __init__(self, *, launch: int = -1, collect: int = -1) -> None:
        super().__init__(20, 4, NEXT)
        self._launch, self._collect = launch, collect

    def launch(self, plan: Plan) -> None:
        if plan.step == self._launch:
            self.drop()
            raise ValueError("out of order")
        super().launch(plan)

    def collect(self) -> Result:
        if self.next_up.step == self._collect:
            self.drop()
            raise ValueError("out of order")
        return super().collect()


def failed(executor: ShadowExecutor, requests: Iterable[Request]) -> Ride:
    """An engine right after its failure."""
    engine = deep(executor)
    engine.submit(*requests)
    with pytest.raises(ValueError, match="out of order"):
        engine.run()
    step = engine.core.fail_step(engine.now, "out of order")
    assert step is not None
    engine.steps.append(step)
    return engine


BREAKS: list[dict[str, int]] = [{"launch": 0}, {"collect": 0}, {"launch": 1}, {"collect": 2}, {"launch": 3}]


@pytest.mark.parametrize("breaks", BREAKS, ids=str)
def test_after_a_failure_nothing_is_in_flight_and_all_is_computed_again(breaks: dict[str, int]):
    engine = failed(Broken(**breaks), [request("a", range(3), 6), request("b", range(5), 6)])
    assert all(PENDING not in one.tokens for one in engine.core.scheduler.sequences)
    assert [one.missing for one in engine.core.scheduler.sequences] == [
        len(one.tokens) for one in engine.core.scheduler.sequences
    ]
    engine.run()
    assert (tuple(engine.tokens["a"]), tuple(engine.tokens["b"])) == (solo((0, 1, 2), NEXT, 6), solo(tuple(range(5)), NEXT, 6))
    assert engine.free_again


def test_all_who_were_in_flight_are_tried_alone_and_one_at_a_time():
    """The second of them got on with the step that was decided ahead."""
    engine = deep(Broken(collect=2))
    engine.submit(request("a", range(14), 9))
    engine.step()
    engine.submit(request("b", range(5), 9))
    engine.step()
    with pytest.raises(ValueError, match="out of order"):
        engine.step()
    assert engine.core.fail_step(engine.now, "out of order") is not None
    engine.run()
    proof = next(place for place, step in enumerate(engine.steps) if [work.pad for work in step.plan.work] == [True])
    tried = [{work.seq_id for work in step.plan.work} for step in engine.steps[proof + 1 :]]
    assert tried[:3] == [{"a"}, {"b"}, {"a", "b"}]


def test_those_who_ended_are_told_again_if_the_plan_that_told_of_them_was_lost():
    engine = deep(Broken(collect=3))
    engine.submit(request("a", range(3), 2), request("b", range(5), 9))
    with pytest.raises(ValueError, match="out of order"):
        engine.run()
    assert engine.core.fail_step(engine.now, "out of order") is not None
    lost = len(engine.steps)
    engine.run()
    assert [step.plan.closed for step in engine.steps[lost:] if step.plan.closed] == [("a",)]


# ── time ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Device(ShadowExecutor):
    """A machine beside the host. A decision takes the host DECISION_MS; what it launches takes the machine STEP_MS."""

    def __init__(self, settings: EngineConfig) -> None:
        super().__init__(settings.num_blocks, settings.block_size, NEXT)
        self.now = 0
        self.steps: list[tuple[int, int]] = []
        """When each step began and when it ended, in milliseconds."""
        self._collected = 0

    def launch(self, plan: Plan) -> None:
        super().launch(plan)
        self.now += DECISION_MS
        began = max(self.now, self.steps[-1][1] if self.steps else 0)
        self.steps.append((began, began + STEP_MS))

    def collect(self) -> Result:
        self.now = max(self.now, self.steps[self._collected][1])
        self._collected += 1
        return super().collect()

    @property
    def gaps(self) -> set[int]:
        """Between the end of each step and the beginning of the next."""
        return {later[0] - earlier[1] for earlier, later in zip(self.steps, self.steps[1:], strict=False)}


@pytest.mark.parametrize(("depth", "gap"), [(1, DECISION_MS), (2, 0)])
def test_the_machine_waits_for_the_host_only_if_one_step_is_in_flight(depth: int, gap: int):
    settings = config(depth=depth)
    device = Device(settings)
    engine = Ride(EngineCore(settings, device))
    engine.submit(request("a", range(20), 20), request("b", range(7), 12))
    engine.run()
    assert device.gaps == {gap}


@pytest.mark.parametrize("depth", DEPTHS)
def test_policies_are_told_of_a_step_that_it_took_from_the_decision_before_its_result_to_the_next(depth: int):
    engine = ride(depth=depth)
    hearing = overhear(engine)
    engine.submit(request("a", range(3), 6))
    engine.run()
    assert hearing.steps == [(step, 1.0) for step in range(5)] + [(5, 2.0 if depth == 2 else 1.0)]
