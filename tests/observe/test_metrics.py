"""The tally of what an engine reports."""

from dataclasses import astuple, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.core.events import Admitted, Step
from chairlift.core.types import Held, Move, Output, Plan, Request, Snapshot, Stopping
from chairlift.observe.metrics import Metrics, Tally

QUIET = Step(now=0.0, plan=Plan(0, ()), outputs=(), admitted=(), snapshot=Snapshot(0, 0, 10, 10))


def request(prompt: int) -> Request:
    return Request(id="a", prompt=(1,) * prompt, stopping=Stopping(max_tokens=1))


def after(*steps: Step) -> Tally:
    metrics = Metrics()
    for step in steps:
        metrics.on_step(step)
    return metrics.read()


def test_gauges_are_those_of_the_last_step() -> None:
    busy = replace(QUIET, snapshot=Snapshot(running=3, waiting=2, free_blocks=4, total_blocks=16))
    assert (after(busy).running, after(busy).waiting, after(busy).kv_cache_usage) == (3, 2, 0.75)
    assert (after(busy, QUIET).running, after(busy, QUIET).kv_cache_usage) == (0, 0.0)


def test_tokens_are_counted_when_they_are_admitted_and_made() -> None:
    admitted = (Admitted(request(20), queried=20, cached=16), Admitted(request(5), queried=5, cached=0))
    tally = after(replace(QUIET, admitted=admitted, outputs=(Output("a", (1, 2)), Output("b", (3,)))))
    assert (tally.prompt_tokens, tally.prompt_tokens_cached, tally.generation_tokens) == (25, 16, 3)
    assert (tally.prefix_queries, tally.prefix_hits) == (25, 16)


def test_every_ending_is_counted_once_by_its_kind() -> None:
    outputs = (Output("a", (1,)), Output("a", (2,), "stop"), Output("b", (), "abort"), Output("c", (1,), "stop"))
    assert after(replace(QUIET, outputs=outputs)).finished == {"stop": 2, "length": 0, "abort": 1, "error": 0}


def test_those_in_host_memory_are_told_and_what_is_moved_there_and_back_is_counted() -> None:
    moves = (Move("store", 3, 0), Move("store", 4, 1), Move("copy", 1, 2), Move("load", 7, 3))
    snapshot = Snapshot(1, 2, 10, 10, swapped=1, free_host_blocks=6, total_host_blocks=8)
    step = replace(QUIET, plan=Plan(1, (), moves=moves), snapshot=snapshot)
    tally = after(step, step)
    assert (tally.swapped, tally.host_cache_usage, tally.swapped_out, tally.swapped_in) == (1, 0.25, 4, 2)


def test_preemptions_are_counted() -> None:
    step = replace(QUIET, plan=Plan(1, (), preempted=("a", "b"), held=Held("no_block", "a")), put_back=("c",))
    assert after(step).preemptions == 3


def test_whoever_is_computed_again_because_a_step_failed_is_not_counted_as_preempted() -> None:
    failed = replace(QUIET, plan=Plan(1, (), preempted=("a", "b"), held=Held("no_block", "c")), raised=True)
    tried = replace(QUIET, plan=Plan(2, (), preempted=("a",), held=Held("gate", "b")))
    assert after(failed, tried).preemptions == 0


def test_refusals_are_counted_by_limit_and_unknown_ones_together() -> None:
    metrics = Metrics()
    for reason in ("max_num_queued_reqs", "max_num_queued_reqs", "never_fits", "made up", "another"):
        metrics.on_refusal(reason)
    assert metrics.read().refused == {"max_num_queued_reqs": 2, "max_num_queued_tokens": 0, "never_fits": 1, "other": 2}


COUNTS = st.integers(0, 5)
STEPS = st.builds(
    lambda free, cached, tokens, preempted, finish: replace(
        QUIET,
        plan=Plan(0, (), preempted=("x",) * preempted, held=Held("no_block", "x")),
        outputs=(Output("a", (1,) * tokens, finish),),
        admitted=(Admitted(request(cached + 1), queried=cached + 1, cached=cached),),
        snapshot=Snapshot(1, 1, free, 10),
    ),
    st.integers(0, 10),
    COUNTS,
    COUNTS,
    COUNTS,
    st.sampled_from([None, "stop", "length", "abort", "error"]),
)


def counters(tally: Tally) -> list[int]:
    flat: list[Any] = list(astuple(tally))[3:-2]
    return [*flat, *tally.finished.values(), *tally.refused.values()]


@settings(max_examples=50, deadline=None)
@given(st.lists(STEPS, max_size=6))
def test_counters_never_fall(steps: list[Step]) -> None:
    metrics = Metrics()
    before = counters(metrics.read())
    for step in steps:
        metrics.on_step(step)
        now = counters(metrics.read())
        assert all(new >= old for new, old in zip(now, before, strict=True))
        before = now
