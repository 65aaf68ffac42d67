"""The engine in virtual time: when steps begin and end, and what is told of each request."""

import pytest
from engines import config
from virtual import GREEDY, request

from chairlift.core.types import Request, Stopping
from chairlift.engine.core import EngineCore
from chairlift.sim.cost import Linear
from chairlift.sim.executor import END, WORD, SimExecutor
from chairlift.sim.loop import moments, run

LENGTHS = {"short": 2, "long": 5}
DECISION_S = 0.25
SECONDLY = Linear(step_s=1.0)


def core(cost: Linear = SECONDLY, **changes: int | float | str | bool | None) -> EngineCore:
    return EngineCore(config(**changes), SimExecutor(cost, LENGTHS))


def asks(name: str, arrival: float = 0.0, *, max_tokens: int = 20, min_tokens: int = 0) -> Request:
    stopping = Stopping(max_tokens, min_tokens, eos_ids=frozenset({END}))
    return request(name, [WORD] * 4, arrival=arrival, stopping=stopping, sampling=GREEDY)


def test_an_answer_is_as_long_as_it_was_told():
    assert {name: len(journey.token_times) for name, journey in run(core(), [asks("short"), asks("long")]).items()} == LENGTHS


def test_an_answer_of_unknown_length_ends_at_its_limit():
    journey = run(core(), [asks("unknown", max_tokens=7)])["unknown"]
    assert (len(journey.token_times), journey.finish) == (7, "length")


def test_an_end_that_may_not_be_drawn_yet_is_put_off():
    assert len(run(core(), [asks("short", min_tokens=4)])["short"].token_times) == 4 + 1  # the end itself comes after them


def test_a_step_takes_what_it_costs():
    assert run(core(Linear(step_s=0.5, token_s=0.25)), [asks("short")])["short"].token_times == [1.5, 2.25]


@pytest.mark.parametrize(("depth", "step_s"), [(1, 1.25), (2, 1.0)])
def test_a_decision_takes_no_time_of_its_own_while_a_step_is_in_flight(depth: int, step_s: float):
    settings = config(depth=depth)
    journey = run(EngineCore(settings, SimExecutor(SECONDLY, LENGTHS, decision_s=DECISION_S)), [asks("long")])["long"]
    assert (journey.ttft_s, journey.itl_s) == (1.25, [step_s] * 4)


def test_a_machine_that_is_faster_than_the_host_waits_for_it():
    machine = SimExecutor(Linear(step_s=0.125), LENGTHS, decision_s=DECISION_S)
    assert run(EngineCore(config(depth=2), machine), [asks("long")])["long"].itl_s == [DECISION_S] * 4


@pytest.mark.parametrize("depth", [1, 2])
def test_a_step_that_costs_the_host_nothing_takes_as_long_whatever_is_in_flight(depth: int):
    journeys = run(core(depth=depth), [asks("long"), asks("short", arrival=0.5)])
    assert journeys["long"].token_times == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert journeys["short"].token_times == [float(depth + 1), float(depth + 2)]


def test_nothing_happens_until_somebody_arrives():
    journey = run(core(), [asks("short", arrival=100.0)])["short"]
    assert (journey.ttft_s, journey.latency_s) == (1.0, 2.0)


def test_who_arrives_during_a_step_waits_for_its_end():
    journeys = run(core(), [asks("long"), asks("short", arrival=0.5)])
    assert journeys["short"].token_times == [2.0, 3.0]


def test_the_clock_jumps_to_the_timer_of_a_gate():
    journey = run(core(preset="dynamic", batch_wait_s=30.0), [asks("short")])["short"]
    assert journey.token_times == [31.0, 32.0]


def test_gaps_between_tokens():
    assert run(core(Linear(step_s=0.25)), [asks("long")])["long"].itl_s == [0.25] * 4


def test_a_run_can_be_left_at_a_time():
    journey = run(core(), [asks("long")], until=2.0)["long"]
    assert (journey.token_times, journey.finish, journey.latency_s) == ([1.0, 2.0], None, None)


def test_every_preemption_is_told():
    """The younger one yields as soon as both have grown into the whole pool, and once more after its return."""
    crowded = core(num_blocks=10, block_size=1, max_model_len=10)
    journeys = run(crowded, [asks(name, max_tokens=6) for name in ("a", "b")])
    assert {name: journey.preemptions for name, journey in journeys.items()} == {"a": 0, "b": 2}


def test_a_choice_that_is_put_back_after_the_fork_is_preempted():
    four = request("a", [WORD] * 14, stopping=Stopping(5), sampling=GREEDY, samples=4)
    journeys = run(core(num_blocks=5, max_model_len=20), [four])
    assert journeys["a"].preemptions == 0
    assert sum(journey.preemptions for journey in journeys.values()) > 0


def test_a_run_without_requests_is_one_idle_step():
    assert [moment.at for moment in moments(core(), [])] == [0.0]
