"""The contiguous layout in the scheduler's hands: what is reserved, who waits for what, and that everybody gets on."""

import math
from typing import Any

import pytest
from engines import NEXT, config, ride
from executors import solo
from hypothesis import event, given, settings
from hypothesis import strategies as st
from virtual import Ride, request

from chairlift.core.config import KV_LAYOUTS
from chairlift.core.errors import ConfigError
from chairlift.schedule.layouts import LAYOUTS
from chairlift.schedule.presets import HEADROOMS


def contiguous(**changes: Any) -> Ride:
    """10 blocks of 4 tokens unless told otherwise."""
    return ride(**({"kv_layout": "contiguous", "num_blocks": 10, "max_model_len": 40} | changes))


def blocks(going: Ride, request_id: str) -> list[int]:
    """As the last plan has them."""
    return next(list(work.blocks) for work in going.steps[-1].plan.work if work.seq_id == request_id)


def test_every_layout_has_a_memory():
    assert tuple(LAYOUTS) == KV_LAYOUTS


def test_a_name_that_is_no_layout_is_refused():
    with pytest.raises(ConfigError, match="KV layout 'heap'"):
        config(kv_layout="heap")


def test_a_request_gets_all_that_it_may_need_when_it_gets_on():
    going = contiguous()
    going.submit(request("a", range(5), 8))
    going.step()
    assert blocks(going, "a") == [0, 1, 2]


def test_the_last_token_of_an_answer_needs_no_place():
    going = contiguous()
    going.submit(request("a", range(5), 4))
    going.step()
    assert blocks(going, "a") == [0, 1]


def test_a_run_stays_as_it_is_until_its_owner_leaves():
    going = contiguous()
    going.submit(request("a", range(3), 20))
    going.run()
    assert {tuple(work.blocks) for step in going.steps for work in step.plan.work} == {(0, 1, 2, 3, 4, 5)}


def test_a_request_of_the_whole_pool_runs():
    going = contiguous(max_model_len=41)
    going.submit(request("a", range(20), 21))
    going.run()
    assert going.endings["a"] == ["length"]


@pytest.mark.parametrize("headroom", HEADROOMS)
def test_nothing_beyond_the_runs_is_kept_free(headroom: str):
    """Two runs of five blocks fill the pool, whichever headroom is asked for."""
    going = contiguous(headroom=headroom)
    going.submit(request("a", range(8), 12), request("b", range(8), 12))
    going.step()
    assert going.core.scheduler.snapshot()[:3] == (2, 0, 0)


def test_equal_prompts_share_nothing():
    going = contiguous(enable_prefix_caching=True)
    going.submit(request("a", range(8), 2))
    going.run()
    going.submit(request("b", range(8), 2))
    going.run()
    assert [admitted.cached for step in going.steps for admitted in step.admitted] == [0, 0]


def test_free_blocks_apart_are_no_room_for_one_who_needs_them_together():
    going = contiguous(max_num_seqs=5)
    going.submit(*(request(name, range(4), tokens) for name, tokens in (("a", 1), ("b", 21), ("c", 1), ("d", 5))))
    going.step()  # a, c end at once; b and d hold [1, 6] and [8, 9]
    going.submit(request("e", range(4), 5))
    going.step()
    assert going.core.scheduler.snapshot()[:3] == (2, 1, 2)
    going.run()
    assert going.endings["e"] == ["length"]


def test_who_waits_for_a_run_is_not_overtaken():
    """A stream of short requests, any of which would fit, does not keep a long one from its run."""
    going = contiguous(scheduling_policy="fcfs")
    going.submit(request("first", range(4), 9), request("long", range(20), 20))
    for number in range(30):
        going.submit(request(f"short {number}", range(4), 1, arrival=going.now))
        going.step()
    going.run()
    assert going.work_of("long")[0][0] < going.work_of("short 0")[0][0]


def test_an_urgent_request_displaces_as_many_as_make_its_run():
    """Two blocks are free behind c, and five are wanted: c's two are not enough, those of b beside them are."""
    going = contiguous(scheduling_policy="priority", num_blocks=8)
    for name in "abc":
        going.submit(request(name, range(4), 5, priority=1))
    going.step()
    going.submit(request("urgent", range(8), 13, priority=0, arrival=-100.0))
    step = going.step()
    assert step.plan.preempted == ("c", "b")
    going.run()
    assert all(going.endings[name] == ["length"] for name in ("a", "b", "c", "urgent"))


def test_every_choice_of_a_request_has_a_run_and_computes_the_prompt_itself():
    going = contiguous(max_num_batched_tokens=32)
    going.submit(request("a", range(6), 5, samples=3))
    going.run()
    assert [sum(count for _, count in going.work_of(name)) for name in ("a", "a#1", "a#2")] == [10, 10, 10]
    held = {tuple(work.blocks) for step in going.steps for work in step.plan.work}
    assert held == {(0, 1, 2), (3, 4, 5), (6, 7, 8)}
    assert all(not step.plan.moves for step in going.steps)


def test_choices_for_which_there_is_no_run_follow_one_after_another():
    going = contiguous()
    going.submit(request("a", range(6), 20, samples=3))
    going.run()
    assert max(len(step.plan.work) for step in going.steps) == 1
    texts = [solo(tuple(range(6)), lambda prefix, choice=choice: NEXT(prefix) + choice, 20) for choice in range(3)]
    assert [tuple(going.tokens[name]) for name in ("a", "a#1", "a#2")] == texts


@given(
    asked=st.lists(st.tuples(st.integers(1, 39), st.integers(1, 39), st.integers(0, 4)), min_size=3, max_size=12),
    policy=st.sampled_from(["fcfs", "fair", "shortest"]),
    preset=st.sampled_from(["continuous", "prefill-first", "static-compacted"]),
)
@settings(max_examples=60, deadline=None)
def test_everybody_gets_his_run_and_his_text(asked: list[tuple[int, int, int]], policy: str, preset: str):
    """However holes lie between runs: the longest fits when all before it have left."""
    going = contiguous(scheduling_policy=policy, preset=preset)
    requests = [request(str(number), range(prompt), min(most, 40 - prompt)) for number, (prompt, most, _) in enumerate(asked)]
    waited = False
    for one, (_, _, steps) in zip(requests, asked, strict=True):
        going.submit(one)
        for _ in range(steps):
            going.step()
            waited |= waits_for_a_run(going)
    going.run()
    event(f"somebody waited for a run although blocks were free: {waited}")
    assert going.preemptions == 0
    assert going.free_again
    for one in requests:
        assert going.endings[one.id] == ["length"]
        assert tuple(going.tokens[one.id]) == solo(one.prompt, NEXT, one.stopping.max_tokens)


def waits_for_a_run(going: Ride) -> bool:
    scheduler = going.core.scheduler
    waiting = [one for one in scheduler.sequences if not one.running]
    longest = [one.prompt_len + one.request.stopping.max_tokens - 1 for one in waiting]
    return any(math.ceil(tokens / 4) <= scheduler.pool.free for tokens in longest)
