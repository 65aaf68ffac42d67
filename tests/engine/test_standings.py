"""Where requests stand, and that whoever is ended in any state has freed everything in the next step."""

import pytest
from engines import ride
from virtual import Ride, request

from chairlift.core.types import Standing


def standing(engine: Ride, name: str) -> Standing:
    return next(one for one in engine.core.scheduler.standings() if one.id == name)


def in_state(state: str) -> Ride:
    """An engine whose request `a` is in this state. It has been stepped."""
    engine = ride(num_blocks=14, max_model_len=56, num_host_blocks=20 if state == "swapped" else 0)
    if state in ("preempted", "swapped"):
        engine.submit(*(request(str(number), range(number, number + 6), 40) for number in range(3)))
        engine.submit(request("a", range(6), 40, arrival=1.0))
        while not any("a" in step.plan.preempted for step in engine.steps):
            engine.step()
        return engine
    if state == "queued":
        engine.submit(request("0", range(40, 90), 6))
    engine.submit(request("a", range(40), 10, arrival=1.0))
    for _ in range({"queued": 1, "prefill": 2, "decode": 4}[state]):
        engine.step()
    return engine


STATES = ["queued", "prefill", "decode", "preempted", "swapped"]


@pytest.mark.parametrize("state", STATES)
def test_states_are_told(state: str):
    engine = in_state(state)
    told = standing(engine, "a")
    assert told.state == state
    assert (told.position is None) is (state in ("prefill", "decode"))
    assert (told.blocks > 0) is (told.computed > 0) is (state in ("prefill", "decode", "swapped"))


@pytest.mark.parametrize("state", STATES)
def test_whoever_is_ended_has_freed_everything_in_the_next_step(state: str):
    engine = in_state(state)
    before = {one.id: one.blocks for one in engine.core.scheduler.standings()}
    engine.end("a")
    for name in before.keys() - {"a"}:
        engine.end(name)
    engine.step()
    assert (engine.endings["a"], engine.free_again) == (["abort"], True)


def test_places_in_the_queue_are_in_order():
    engine = ride(max_num_seqs=1)
    engine.submit(*(request(name, range(3), 9, arrival=float(place)) for place, name in enumerate("abc")))
    engine.step()
    assert [(one.id, one.position, one.tokens) for one in engine.core.scheduler.standings()] == [
        ("a", None, 1),
        ("b", 0, 0),
        ("c", 1, 0),
    ]


def test_places_that_must_become_free_are_those_of_all_choices_before_and_its_own():
    engine = ride(max_num_seqs=4)
    engine.submit(request("a", range(3), 9, samples=4))
    engine.submit(*(request(name, range(3), 9, arrival=place, samples=place) for place, name in ((1, "b"), (2, "c"), (3, "d"))))
    engine.step()
    told = [(one.id, one.position, one.ahead) for one in engine.core.scheduler.standings() if one.position is not None]
    assert told == [("b", 0, 1), ("c", 1, 3), ("c#1", 1, 3), ("d", 2, 6), ("d#1", 2, 6), ("d#2", 2, 6)]
