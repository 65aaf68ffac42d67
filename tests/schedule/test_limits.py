"""Limits of time in virtual time: a step takes one second."""

from typing import Any

import pytest
from engines import NEXT, config, ride
from executors import ShadowExecutor, solo
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual import Ride, request

from chairlift.core.types import TIMEOUT, Finish, Limits
from chairlift.engine.core import EngineCore


def ended(engine: Ride, name: str) -> tuple[float, Finish, object]:
    """When, how and why."""
    return next(
        (step.now, output.finish, output.stop_reason)
        for step in engine.steps
        for output in step.outputs
        if output.seq_id == name and output.finish
    )


def busy(**changes: Any) -> Ride:
    """An engine with one place, which is taken for forty steps."""
    engine = ride(max_num_seqs=1, **changes)
    engine.submit(request("busy", range(4), 40))
    return engine


# ── the queue ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_whoever_has_not_got_on_in_time_ends_without_a_token():
    engine = busy()
    engine.submit(request("late", range(5), limits=Limits(queue_until=7.0)))
    engine.run()
    assert ended(engine, "late") == (7.0, "length", TIMEOUT)
    assert (engine.tokens["late"], engine.work_of("late"), engine.free_again) == ([], [], True)


def test_whoever_has_got_on_in_time_is_left_alone():
    engine = ride()
    engine.submit(request("a", range(5), 20, limits=Limits(queue_until=1.0)))
    engine.run()
    assert len(engine.tokens["a"]) == 20


def test_a_preempted_request_is_not_in_the_queue_for_the_first_time():
    engine = ride(num_blocks=14, max_model_len=56)
    for number in range(3):
        limits = Limits(queue_until=number + 2.0)
        engine.submit(request(str(number), range(number, number + 6), 40, arrival=float(number), limits=limits))
    engine.run()
    assert engine.preemptions
    assert [len(engine.tokens[name]) for name in "012"] == [40] * 3


def test_a_time_that_is_over_before_the_first_step_is_over():
    engine = ride()
    engine.now = 3.0
    engine.submit(request("a", range(5), limits=Limits(queue_until=2.0)))
    engine.step()
    assert ended(engine, "a")[1:] == ("length", TIMEOUT)


# ── the whole request ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_running_request_ends_in_time_with_what_it_has():
    engine = ride()
    engine.submit(request("a", range(5), 40, limits=Limits(finish_until=6.0)))
    engine.run()
    assert ended(engine, "a") == (6.0, "length", TIMEOUT)
    assert tuple(engine.tokens["a"]) == solo(tuple(range(5)), NEXT, 6)
    assert engine.free_again


def test_time_that_is_over_frees_the_place_in_the_same_step():
    engine = ride(max_num_seqs=1)
    engine.submit(request("a", range(5), 40, limits=Limits(finish_until=6.0)), request("b", range(3)))
    engine.run()
    assert engine.work_of("b")[0][0] == 6


def test_a_prompt_that_takes_too_long_is_not_computed_to_its_end():
    engine = ride(num_blocks=100, max_model_len=256)
    engine.submit(request("a", range(200), limits=Limits(finish_until=3.0)))
    engine.run()
    assert (sum(count for _, count in engine.work_of("a")), engine.free_again) == (48, True)


def test_a_preempted_request_ends_in_time():
    engine = ride(num_blocks=14, max_model_len=56)
    for number in range(3):
        engine.submit(request(str(number), range(number, number + 6), 40, arrival=float(number)))
    limits = Limits(finish_until=30.0)
    engine.submit(request("3", range(3, 9), 40, arrival=3.0, limits=limits))
    engine.run()
    assert ended(engine, "3") == (30.0, "length", TIMEOUT)
    assert engine.free_again


# ── between two tokens ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_stream_that_stands_still_for_too_long_ends():
    engine = ride(preset="prefill-first", num_blocks=100, max_model_len=256)
    engine.submit(request("a", range(5), 40, limits=Limits(stall_s=5.0)))
    for _ in range(3):
        engine.step()
    engine.submit(request("long", range(200)))  # 13 steps
    engine.run()
    assert ended(engine, "a") == (8.0, "length", TIMEOUT)
    assert (len(engine.tokens["a"]), engine.endings["long"]) == (3, ["length"])


def test_a_stream_that_keeps_moving_may_take_as_long_as_it_likes():
    engine = ride()
    engine.submit(request("a", range(5), 40, limits=Limits(stall_s=1.5)))
    engine.run()
    assert len(engine.tokens["a"]) == 40


def test_the_time_to_the_first_token_is_no_standing_still():
    engine = busy()
    engine.submit(request("a", range(5), 9, limits=Limits(stall_s=2.0)))
    engine.run()
    assert len(engine.tokens["a"]) == 9


def test_a_step_that_takes_long_is_over_when_its_token_is_there():
    engine = ride()
    engine.submit(request("a", range(5), 9, limits=Limits(stall_s=2.0)))
    engine.step()
    engine.now += 100.0  # the prompt's step took so long
    engine.run()
    assert len(engine.tokens["a"]) == 9


# ── waking up, and what is kept ───────────────────────────────────────────────────────────────────────────────────────────


def test_an_engine_that_waits_for_its_gate_wakes_up_for_a_limit():
    engine = ride(preset="dynamic", batch_wait_s=50.0)
    engine.submit(request("a", range(5), limits=Limits(queue_until=7.0)))
    assert engine.step().wake_at == 7.0


def test_whoever_has_ended_wakes_nobody():
    engine = ride()
    engine.submit(request("a", range(5), 2, limits=Limits(finish_until=1000.0)))
    engine.run()
    assert engine.steps[-1].wake_at is None


def test_those_that_have_ended_are_not_kept_until_their_limit():
    engine = ride()
    for number in range(1000):
        engine.submit(request(str(number), range(3), 1, limits=Limits(finish_until=1e6)))
        engine.step()
    assert len(engine.core.scheduler._limits._heap) < 200


@pytest.mark.parametrize("preset", ["static", "dynamic", "static-compacted"])
def test_a_member_of_a_group_whose_time_is_over_does_not_hold_up_the_others(preset: str):
    engine = ride(preset=preset, max_num_seqs=2)
    engine.submit(request("a", range(5), 40, limits=Limits(finish_until=2.0)), request("b", range(3), 9), request("c", [1]))
    engine.run()
    assert [engine.endings[name] for name in "abc"] == [["length"]] * 3
    assert engine.free_again


@given(
    requests=st.lists(
        st.tuples(
            st.integers(1, 12),
            st.integers(1, 30),
            st.none() | st.integers(1, 40),
            st.none() | st.integers(1, 60),
            st.none() | st.integers(1, 6),
        ),
        min_size=1,
        max_size=8,
    ),
    pauses=st.lists(st.sampled_from([0.0, 0.0, 0.0, 4.0, 9.0]), max_size=20),
    depth=st.sampled_from([1, 2]),
)
@settings(max_examples=100, deadline=None)
def test_nobody_outlives_a_limit_and_nobody_ends_before_it(
    requests: list[tuple[int, int, int | None, int | None, int | None]], pauses: list[float], depth: int
):
    settled = config(num_blocks=14, max_model_len=56, max_num_seqs=3, depth=depth)
    engine = Ride(EngineCore(settled, ShadowExecutor(14, 4, NEXT)))
    limited = {
        str(number): request(str(number), range(number, number + prompt), most, limits=Limits(queue, finish, stall))
        for number, (prompt, most, queue, finish, stall) in enumerate(requests)
    }
    engine.submit(*limited.values())
    waits = iter(pauses)
    for _ in range(600):
        step = engine.step()
        if not step.plan.work and step.wake_at != step.now:
            break
        engine.now += next(waits, 0.0)
    assert engine.free_again
    for name, one in limited.items():
        when, _, reason = ended(engine, name)
        text = tuple(engine.tokens[name])
        assert text == solo(one.prompt, NEXT, len(text))
        if reason != TIMEOUT:
            assert len(text) == one.stopping.max_tokens
            continue
        due = _due_by_hand(engine, name, one.limits)
        assert due is not None
        assert when >= due


def _due_by_hand(engine: Ride, name: str, limits: Limits) -> float | None:
    """The first limit that was passed, read off the record of the steps."""
    moments: list[float] = []
    if limits.queue_until is not None and not engine.work_of(name):
        moments.append(limits.queue_until)
    if limits.finish_until is not None:
        moments.append(limits.finish_until)
    if limits.stall_s is not None:
        told = [i for i, step in enumerate(engine.steps) for out in step.outputs if out.seq_id == name and out.tokens]
        moments += [engine.steps[i + 1].now + limits.stall_s for i in told[-1:] if i + 1 < len(engine.steps)]
    return min(moments, default=None)
