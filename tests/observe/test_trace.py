"""The stories of requests: what is kept of them, and how the reason of a wait is worked out from who was first meanwhile."""

from dataclasses import replace
from typing import Any

import pytest
from engines import NEXT, config, ride
from executors import ShadowExecutor
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual import Ride, request

from chairlift.core.events import Step, Submit
from chairlift.core.types import Finish, Held, Limits, Plan, Result, Snapshot, choice_id
from chairlift.engine.core import EngineCore
from chairlift.observe.trace import ENDED_S, MAX_ENDED, MAX_EVENTS, MAX_HOLDS, Event, Trace, Traces


class Watched:
    """An engine in virtual time with the sink of traces behind it: a second a step."""

    def __init__(self, engine: Ride) -> None:
        self.ride = engine
        self.traces = Traces()

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.traces.on_step(self.ride.step())

    def run(self) -> None:
        self.step()
        while self.ride.steps[-1].plan.work or self.ride.steps[-1].wake_at is not None:
            self.step()

    def story(self, name: str) -> Trace:
        trace = self.traces.read(name, self.ride.now)
        assert trace is not None
        return trace

    def reasons(self, name: str) -> list[tuple[float, int | str | None]]:
        return [(event.at_s, event.reason) for event in self.story(name).events if event.kind == "held"]


def watched(**changes: Any) -> Watched:
    return Watched(ride(**changes))


def kinds(trace: Trace) -> list[str]:
    return [event.kind for event in trace.events]


def test_who_finds_all_places_taken_waits_for_one():
    engine = watched(max_num_seqs=1)
    engine.ride.submit(request("a", range(3), 5), request("b", range(3), 5))
    engine.run()
    assert engine.reasons("b") == [(0.0, "no_place")]
    assert engine.story("b").waited_s == {"no_place": 5.0}


class Leaving(ShadowExecutor):
    """`b` leaves while step 2 is computed, when the next one has been decided already."""

    ride: Ride

    def collect(self) -> Result:
        if self.next_up.step == 2:
            self.ride.end("b")
        return super().collect()


def test_who_was_first_and_left_while_two_steps_were_in_flight_is_remembered():
    settled, executor = config(max_num_seqs=1, depth=2), Leaving(20, 4, NEXT)
    engine = Watched(Ride(EngineCore(settled, executor)))
    executor.ride = engine.ride
    engine.ride.submit(request("a", range(3), 9))
    engine.step(2)
    engine.ride.submit(request("b", range(3), 5), request("c", range(3), 5))
    engine.run()
    assert kinds(engine.story("b")) == ["queued", "finished"]
    assert engine.reasons("c")[0] == (3.0, "behind")


def test_whom_the_pace_keeps_out_waits_for_the_gate():
    engine = watched(max_num_seqs=16, num_blocks=60, itl_target_s=0.5)  # a step takes a second, so only few may run
    engine.ride.submit(*(request(str(number), range(number, number + 3), 5) for number in range(8)))
    engine.run()
    assert {reason for number in range(8) for _, reason in engine.reasons(str(number))} == {"gate", "behind"}


def test_who_does_not_fit_into_memory_waits_for_blocks():
    engine = watched()
    engine.ride.submit(request("a", range(60), 4), request("b", range(100, 130), 4))
    engine.step(6)
    assert engine.reasons("b") == [(0.0, "budget"), (3.0, "no_block")]


def test_a_step_without_tokens_left_is_a_reason():
    engine = watched(max_num_seqs=2, max_num_batched_tokens=2)
    engine.ride.submit(request("a", range(9), 4), request("b", range(9), 4))
    engine.step()
    engine.ride.submit(request("c", range(9), 4))
    engine.step()
    assert engine.reasons("c") == [(1.0, "no_place")]
    alone = watched(split="whole")
    alone.ride.submit(request("a", range(14), 4), request("b", range(9), 4))
    alone.step()
    assert alone.reasons("b") == [(0.0, "budget")]


def test_a_closed_gate_is_a_reason():
    engine = watched(preset="dynamic-compacted", batch_wait_s=3.0)
    engine.ride.submit(request("a", range(3), 2))
    engine.run()
    assert engine.story("a").waited_s == {"gate": 3.0}


def test_who_stands_behind_another_is_told_so_until_it_is_first():
    engine = watched(max_num_seqs=1)
    engine.ride.submit(*(request(name, range(3), 5, arrival=float(-3 + place)) for place, name in enumerate("abc")))
    engine.run()
    assert engine.reasons("c") == [(1.0, "behind"), (6.0, "no_place")]
    assert engine.story("c").waited_s == {"behind": 5.0, "no_place": 5.0}


@pytest.mark.parametrize("rights", [{"tenant": "other"}, {"priority": 1}])
def test_who_came_later_is_behind_whatever_its_rights(rights: dict[str, Any]):
    engine = watched(max_num_seqs=1, scheduling_policy="fcfs")
    engine.ride.submit(request("a", range(3), 5), request("b", range(3), 5))
    engine.ride.submit(request("c", range(3), 5, arrival=1.0, **rights))
    engine.step(3)
    assert [reason for _, reason in engine.reasons("c")] == ["behind"]


def test_a_reason_ends_with_the_last_who_waits():
    """What comes while nobody waits, in the midst of a step, has waited for nothing but the step's end."""
    engine = watched(max_num_seqs=1)
    engine.ride.submit(request("a", range(3), 2), request("b", range(3), 1))
    engine.run()
    plan, now = Plan(99, ()), engine.ride.now
    late = replace(engine.ride.steps[-1], plan=plan, now=now, within=(Submit(request("c", range(3), arrival=now)),))
    engine.traces.on_step(late)
    engine.ride.now += 5.0
    assert engine.story("c").waited_s == {}


def test_a_tenant_over_its_share_is_told_so():
    engine = watched(max_num_seqs=1)
    engine.ride.submit(request("a", range(9), 9, tenant="heavy"))
    engine.ride.submit(request("b", range(9), 9, tenant="heavy"))
    engine.step()
    engine.ride.submit(request("c", range(3), 9, tenant="light", arrival=1.0))
    engine.step(4)
    assert [reason for _, reason in engine.reasons("b")] == ["no_place", "share"]
    assert engine.reasons("c")[-1][1] == "no_place"


def test_who_is_overtaken_by_the_more_urgent_is_told_so():
    engine = watched(max_num_seqs=1, scheduling_policy="priority")
    engine.ride.submit(request("a", range(9), 9, priority=-5), request("b", range(9), 9, priority=1))
    engine.step()
    engine.ride.submit(request("c", range(3), 9, priority=0, arrival=1.0))
    engine.step(4)
    assert [reason for _, reason in engine.reasons("b")] == ["no_place", "urgent"]


def test_making_way_for_another_tenants_share_is_told_so():
    engine = watched(max_num_seqs=2)
    engine.ride.submit(*(request(name, [7] * 3, 9, tenant="many") for name in "ab"))
    engine.step(2)
    engine.ride.submit(request("c", range(3), 2, arrival=2.0, tenant="one"))
    engine.run()
    (preempted,) = (event for event in engine.story("b").events if event.kind == "preempted")
    assert preempted.reason == "share"


def test_making_way_is_told_on_both_sides():
    engine = watched(max_num_seqs=1)
    engine.ride.submit(request("a", range(3), 9, priority=1))
    engine.step(2)
    engine.ride.submit(request("b", range(3), 2, arrival=2.0))
    engine.run()
    assert engine.reasons("b") == []
    assert engine.reasons("a")[-1][1] == "no_place"
    (preempted,) = (event for event in engine.story("a").events if event.kind == "preempted")
    assert preempted.reason == "urgent"
    assert kinds(engine.story("a"))[-4:] == ["held", "resumed", "prefill", "finished"]


def test_who_lost_its_blocks_comes_back_with_what_the_cache_kept():
    engine = watched(num_blocks=14, max_model_len=56)
    engine.ride.submit(*(request(str(number), range(number, number + 6), 40) for number in range(3)))
    engine.run()
    story = engine.story("1")
    (first, *_) = (event for event in story.events if event.kind == "preempted")
    resumed = [event for event in story.events if event.kind == "resumed"]
    assert first.reason == "no_block"
    assert len(resumed) == kinds(story).count("preempted") == sum("1" in step.plan.preempted for step in engine.ride.steps)
    assert resumed[0].cached is not None


def test_every_chunk_of_a_prompt_is_told_and_no_token_after_the_first():
    engine = watched()
    engine.ride.submit(request("a", range(40), 9))
    engine.run()
    story = engine.story("a")
    assert [event.tokens for event in story.events if event.kind == "prefill"] == [16, 16, 8]
    assert kinds(story) == ["queued", "admitted", "prefill", "prefill", "prefill", "first_token", "finished"]
    assert story.events[-1] == Event(10.0, "finished", tokens=9, finish="length")


def test_prompt_tokens_out_of_the_cache_are_told():
    engine = watched()
    engine.ride.submit(request("a", range(12), 1))
    engine.run()
    engine.ride.submit(request("b", range(12), 1))
    engine.run()
    assert [event.cached for event in engine.story("b").events if event.kind == "admitted"] == [8]


def test_times_count_from_arrival():
    engine = watched()
    engine.ride.now = 100.0
    engine.ride.submit(request("a", range(3), 2, arrival=98.0))
    engine.run()
    assert [event.at_s for event in engine.story("a").events] == [2.0, 2.0, 2.0, 2.0, 3.0]


@pytest.mark.parametrize("finish", ["abort", "stop"])
def test_an_end_from_outside_is_told(finish: Finish):
    engine = watched()
    engine.ride.submit(request("a", range(3), 9))
    engine.step(2)
    engine.ride.end("a", finish)
    engine.step()
    last = engine.story("a").events[-1]
    assert (last.kind, last.finish, last.reason, last.tokens) == ("finished", finish, None, 2)


def test_a_limit_of_time_is_told():
    engine = watched(max_num_seqs=1)
    engine.ride.submit(request("a", range(3), 9), request("b", range(3), 9, limits=Limits(queue_until=2.5)))
    engine.run()
    assert engine.story("b").events[-1] == Event(3.0, "finished", tokens=0, finish="length", reason="timeout")
    assert engine.story("b").waited_s == {"no_place": 3.0}


def test_of_a_long_story_the_middle_is_left_out_and_counted():
    engine = watched(max_model_len=600, num_blocks=200, max_num_seqs=1, max_num_batched_tokens=1)
    engine.ride.submit(request("a", [number % 50 for number in range(590)], 2))
    engine.run()
    story = engine.story("a")
    assert (len(story.events), story.dropped) == (MAX_EVENTS, 590 + 4 - MAX_EVENTS)
    assert (story.events[0].kind, story.events[-1].kind) == ("queued", "finished")


def test_reasons_that_lie_too_far_back_are_forgotten_and_counted():
    traces = Traces()
    for number in range(MAX_HOLDS + 100):
        plan = Plan(number, (), held=Held("no_place" if number % 2 else "no_block", "a"))
        taken = (Submit(request("a", range(3))),) if number == 0 else ()
        traces.on_step(Step(float(number), plan, (), (), Snapshot(1, 1, 0, 1), taken=taken))
    story = traces.read("a", MAX_HOLDS + 100.0)
    assert story is not None
    assert story.dropped == 101 + (MAX_HOLDS + 1 - MAX_EVENTS)  # the one of before the first step, too
    assert len(story.events) == MAX_EVENTS


def test_the_ended_are_forgotten_after_a_while_and_beyond_a_number():
    engine = watched()
    engine.ride.submit(request("old", range(3), 1))
    engine.step()
    assert engine.traces.read("old", ENDED_S) is not None
    assert engine.traces.read("old", ENDED_S + 1.0) is None
    for number in range(MAX_ENDED):
        engine.ride.submit(request(str(number), [1], 1))
    while len(engine.ride.core.inbox) or engine.ride.steps[-1].plan.work:
        engine.step()
    assert engine.traces.read("old", 1.0) is None
    assert engine.traces.read("0", engine.ride.now) is not None
    engine.ride.now += 2 * ENDED_S
    engine.step()
    assert not engine.traces._ended


def test_a_request_that_nobody_knows_has_no_story():
    assert Traces().read("x", 0.0) is None


RIGHTS = st.fixed_dictionaries(
    {
        "max_tokens": st.integers(1, 20),
        "priority": st.sampled_from([0, 0, 1, -3]),
        "tenant": st.sampled_from("abc"),
        "samples": st.sampled_from([1, 1, 2]),
    }
)


@settings(max_examples=60, deadline=None)
@given(
    asked=st.lists(st.tuples(st.integers(1, 30), RIGHTS, st.integers(0, 3)), min_size=1, max_size=12),
    policy=st.sampled_from(["fcfs", "fair", "priority", "prefix"]),
    preset=st.sampled_from(["continuous", "dynamic-compacted", "prefill-first"]),
)
def test_every_second_of_waiting_has_a_reason(asked: list[tuple[int, dict[str, Any], int]], policy: str, preset: str):
    """Whoever waits is held by something, from the moment it is queued until it gets on, and no longer."""
    engine = watched(scheduling_policy=policy, preset=preset, max_num_seqs=2, num_blocks=15)
    waits: dict[str, float] = {}
    for number, (length, rights, steps) in enumerate(asked):
        engine.ride.submit(request(str(number), range(number, number + length), **rights, arrival=engine.ride.now))
        for _ in range(steps):
            watch(engine, waits)
    watch(engine, waits)
    while engine.ride.steps[-1].plan.work or engine.ride.steps[-1].wake_at is not None:
        watch(engine, waits)
    for number, (_, rights, _) in enumerate(asked):
        for choice in range(rights["samples"]):
            story = engine.story(choice_id(str(number), choice))
            assert story.ended
            if rights["samples"] == 1:  # others wait without a reason of their own while who computes their prompt is away
                assert (sum(story.waited_s.values()), story.dropped) == (waits.get(str(number), 0.0), 0)


def watch(engine: Watched, waits: dict[str, float]) -> None:
    """A step, and a second of waiting for whoever it leaves in the queue."""
    engine.step()
    for standing in engine.ride.core.scheduler.standings():
        if standing.position is not None:
            waits[standing.id] = waits.get(standing.id, 0.0) + 1.0


def test_all_choices_of_a_request_wait_and_get_on_with_it():
    engine = watched(max_num_seqs=2)
    engine.ride.submit(request("a", range(3), 5), request("b", range(3), 5, samples=2))
    engine.run()
    for name in ("b", "b#1"):
        story = engine.story(name)
        assert story.waited_s == {"no_place": 5.0}
        assert [kind for kind in kinds(story) if kind != "prefill"] == ["queued", "held", "admitted", "first_token", "finished"]


def test_a_choice_that_memory_has_no_room_for_is_told_to_be_away():
    engine = watched(num_blocks=4, max_model_len=16, enable_prefix_caching=False)
    engine.ride.submit(request("a", range(11), 5, samples=4))
    engine.run()
    away = {name for step in engine.ride.steps for name in step.put_back}
    assert away
    for name in away:
        found = kinds(engine.story(name))
        assert found[found.index("first_token") + 1 :][:2] == ["preempted", "held"]
        assert found[-1] == "finished"
