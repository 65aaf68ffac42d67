"""Continuous batching beside static and dynamic: who joins when, and what padding is computed."""

from array import array
from typing import Any

import pytest
from engines import ride
from virtual import Ride, request

from chairlift.core.types import Plan, Sequence, Work
from chairlift.schedule.gates import Continuous, Paced
from chairlift.schedule.policy import Past
from chairlift.schedule.presets import GATES

OUTPUTS = (5, 100, 20, 8)
ROOMY: dict[str, Any] = {"num_blocks": 200, "max_model_len": 256, "max_num_batched_tokens": 64}


def five(preset: str) -> Ride:
    """Four requests with outputs of 5, 100, 20 and 8 tokens on four places, and a fifth that waits from the beginning."""
    engine = ride(preset=preset, **ROOMY)
    engine.submit(*(request(str(number), range(number, number + 6), count) for number, count in enumerate(OUTPUTS)))
    engine.submit(request("fifth", range(30, 36), 10))
    engine.run()
    return engine


def first_step(engine: Ride, request_id: str) -> int:
    return engine.work_of(request_id)[0][0]


def last_step(engine: Ride, request_id: str) -> int:
    return engine.work_of(request_id)[-1][0]


def pads(engine: Ride) -> int:
    return sum(len(work.tokens) for step in engine.steps for work in step.plan.work if work.pad)


def test_continuous_batching_gives_a_place_on_as_soon_as_it_is_free():
    engine = five("continuous")
    assert first_step(engine, "fifth") == last_step(engine, "0") + 1


@pytest.mark.parametrize("preset", [name for name in GATES if name != "continuous"])
def test_nobody_gets_on_while_a_group_runs(preset: str):
    engine = five(preset)
    spans = [(first_step(engine, name), last_step(engine, name)) for name in ("0", "1", "2", "3", "fifth")]
    assert not any(begin < other <= end for begin, end in spans for other, _ in spans)


@pytest.mark.parametrize("preset", ["static", "static-compacted", "dynamic", "dynamic-compacted"])
def test_the_fifth_waits_for_the_longest_of_the_group(preset: str):
    engine = five(preset)
    assert first_step(engine, "fifth") == last_step(engine, "1") + 1


def test_padded_rows_are_computed_until_the_group_ends():
    engine = five("static")
    longest = max(OUTPUTS)
    assert pads(engine) == sum(longest - count for count in OUTPUTS)


def test_compacted_rows_are_dropped():
    assert pads(five("static-compacted")) == 0


def test_short_prompts_are_padded_to_the_longest():
    engine = ride(preset="static", **ROOMY)
    engine.submit(request("short", range(3), 4), request("long", range(20), 4))
    engine.run()
    assert pads(engine) == 17


def test_sorting_groups_requests_of_like_length():
    engine = ride(preset="static-sorted", max_num_seqs=2, **ROOMY)
    engine.submit(*(request(str(count), range(4), count) for count in (50, 5, 49, 6)))
    engine.run()
    assert pads(engine) == 2
    assert first_step(engine, "49") == first_step(engine, "50")


def test_sorting_never_passes_over_the_oldest():
    engine = ride(preset="static-sorted", max_num_seqs=2, **ROOMY)
    engine.submit(request("oldest", range(4), 60), *(request(f"r{number}", range(4), 5) for number in range(6)))
    engine.run()
    assert first_step(engine, "oldest") == 0


def test_a_finished_text_is_delivered_at_once():
    engine = five("static")
    ended = next(step for step in engine.steps for output in step.outputs if output.seq_id == "0" and output.finish)
    assert ended.plan.step == last_step(engine, "0")


def test_static_takes_what_waits_without_waiting_for_more():
    engine = ride(preset="static", **ROOMY)
    engine.submit(request("a", range(4)))
    assert engine.step().plan.work[0].seq_id == "a"


def test_dynamic_waits_for_the_group_to_fill():
    engine = ride(preset="dynamic", batch_wait_s=5.5, **ROOMY)
    engine.submit(request("a", range(4), arrival=0.0))
    step = engine.step()
    assert (step.plan.work, step.wake_at) == ((), 5.5)


def test_dynamic_starts_when_the_oldest_has_waited_long_enough():
    engine = ride(preset="dynamic", batch_wait_s=5.5, **ROOMY)
    engine.submit(request("a", range(4)))
    engine.run()
    assert engine.steps[-1].now >= 5.5
    assert next(step.now for step in engine.steps if step.plan.work) == 6.0


def test_dynamic_starts_at_once_when_the_group_is_full():
    engine = ride(preset="dynamic", batch_wait_s=1000.0, **ROOMY)
    engine.submit(*(request(str(number), range(4)) for number in range(4)))
    assert len(engine.step().plan.work) == 4


def test_nobody_joins_a_running_group_even_if_it_is_small():
    engine = ride(preset="static", **ROOMY)
    engine.submit(request("a", range(4), 10))
    engine.step()
    engine.submit(request("b", range(4), 2))
    engine.run()
    assert first_step(engine, "b") == last_step(engine, "a") + 1


@pytest.mark.parametrize("preset", ["static", "dynamic", "static-sorted"])
def test_a_member_that_was_preempted_rejoins_its_own_group(preset: str):
    engine = ride(preset=preset, num_blocks=9, max_model_len=36, batch_wait_s=0.0)
    engine.submit(*(request(str(number), range(number, number + 8), 12) for number in range(4)))
    engine.submit(request("later", range(3), 2))
    engine.run()
    assert engine.preemptions > 0
    assert all(first_step(engine, "later") > last_step(engine, str(number)) for number in range(4))


def test_a_member_that_leaves_while_it_waits_does_not_hold_up_its_group():
    engine = ride(preset="static", num_blocks=9, max_model_len=36)
    engine.submit(request("a", range(24), 10), request("b", range(24), 10), request("c", range(4), 2))
    engine.step()
    engine.end("b")
    engine.run()
    assert (engine.endings["a"], engine.endings["b"], engine.endings["c"]) == (["length"], ["abort"], ["length"])


class TestPaced:
    """The gate by itself: who may run beside whom."""

    @staticmethod
    def sequences(count: int) -> list[Sequence]:
        return [Sequence(request(str(number), range(10)), number) for number in range(count)]

    @staticmethod
    def gate(*, steps: int = 0, rows: int = 8, elapsed_s: float = 0.1) -> Paced:
        """After so many steps of so many next tokens each."""
        gate = Paced(Continuous(), itl_target_s=1.0, floor=1)
        work = tuple(Work(str(number), 9, array("i", [1]), array("i")) for number in range(rows))
        for _ in range(steps):
            gate.observe(Past(Plan(0, work), elapsed_s, ()))
        return gate

    def takes(self, gate: Paced, running: int) -> bool:
        *others, one = self.sequences(running + 1)
        return gate.takes(one, others)

    def test_where_nobody_runs_anybody_may(self):
        assert self.takes(self.gate(steps=10, elapsed_s=50.0), 0)

    def test_a_few_may_before_anything_is_known(self):
        assert [self.takes(self.gate(), running) for running in (3, 4)] == [True, False]

    def test_no_more_than_twice_as_many_as_ever_ran(self):
        assert [self.takes(self.gate(steps=10), running) for running in (15, 16)] == [True, False]

    def test_nobody_joins_a_step_that_would_take_too_long(self):
        assert not self.takes(self.gate(steps=10, elapsed_s=0.95), 8)

    def test_what_the_inner_gate_refuses_stays_out(self):
        engine = ride(preset="static", itl_target_s=5.0, **ROOMY)
        engine.submit(request("a", range(4), 10))
        engine.step()
        engine.submit(request("b", range(4), 2))
        engine.run()
        assert first_step(engine, "b") == last_step(engine, "a") + 1

    def test_an_urgent_request_displaces_a_lower_one_although_no_more_may_run(self):
        engine = ride(scheduling_policy="priority", itl_target_s=0.5, max_num_seqs=8, num_blocks=200, max_model_len=256)
        engine.submit(*(request(f"low{number}", range(4), 60, priority=1000) for number in range(8)))
        for _ in range(6):
            engine.step()
        assert len(engine.core.scheduler.running) == 4  # a step takes twice the target, so only the fewest run
        engine.submit(request("urgent", range(9, 13), 4, arrival=engine.now))
        step = engine.step()
        assert (len(step.plan.preempted), [admitted.request.id for admitted in step.admitted]) == (1, ["urgent"])
