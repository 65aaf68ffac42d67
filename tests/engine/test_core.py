"""The engine's step in virtual time: faults that users of other servers met, as tests of their kind."""

from dataclasses import replace

import pytest
from engines import NEXT, config, ride
from executors import ShadowExecutor, hashed, scripted_logprobs, solo
from virtual import GREEDY, Ride, request

from chairlift.core.errors import NeverFits
from chairlift.core.types import Plan, Result, Stopping
from chairlift.engine.core import EngineCore
from chairlift.schedule import door


def states(engine: Ride) -> tuple[int, int]:
    snapshot = engine.core.scheduler.snapshot()
    return snapshot.running, snapshot.waiting


# ── admission and order ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_prompt_bigger_than_the_pool_is_refused_and_blocks_nobody():
    engine = ride(num_blocks=8, block_size=16, max_model_len=512)
    with pytest.raises(NeverFits):
        door.check(request("a", range(200)), engine.core.scheduler.config)
    engine.submit(request("b", range(10)))
    engine.run()
    assert engine.endings["b"] == ["length"]


def test_a_big_request_starts_in_bounded_time_though_small_ones_keep_coming():
    engine = ride(num_blocks=64, block_size=4, max_model_len=256, max_num_seqs=8)
    engine.submit(request("running", range(100), 60))
    engine.step()
    engine.submit(request("big", range(156), 4, arrival=1.0))
    for number in range(60):
        engine.submit(request(f"small{number}", [number, 3], 4, arrival=2.0 + number))
        engine.step()
    engine.run()
    ended = next(
        step.plan.step for step in engine.steps for output in step.outputs if output.seq_id == "running" and output.finish
    )
    assert engine.work_of("big")[0][0] <= ended + 10


def test_a_small_prompt_overtakes_a_huge_one_that_is_being_computed():
    engine = ride(num_blocks=64, max_model_len=256, max_num_batched_tokens=16)
    engine.submit(request("huge", range(200)))
    engine.step()
    engine.submit(request("tiny", range(5), arrival=1.0))
    engine.run()
    assert engine.work_of("tiny")[-1][0] < engine.work_of("huge")[-4][0]


def test_a_running_stream_gets_a_token_in_every_step_of_a_long_prefill():
    engine = ride(num_blocks=100, max_model_len=256, max_num_batched_tokens=16)
    engine.submit(request("stream", range(4), 60))
    engine.step()
    engine.submit(request("long", range(200), arrival=1.0))
    engine.run()
    steps = [step for step, _ in engine.work_of("stream")]
    assert steps == list(range(60))


def test_the_shortest_request_leaves_and_the_next_gets_on_in_the_following_step():
    engine = ride(num_blocks=100, max_model_len=128)
    engine.submit(
        *(request(str(n), range(n, n + 3), count) for n, count in enumerate((5, 50, 20, 8))), request("fifth", [9], 3)
    )
    engine.run()
    assert engine.work_of("fifth")[0][0] == engine.work_of("0")[-1][0] + 1


def test_equal_arrivals_are_served_in_the_order_in_which_they_came():
    engine = ride(max_num_seqs=1)
    engine.submit(*(request(name, range(3), 2) for name in "bca"))
    engine.run()
    assert [engine.work_of(name)[0][0] for name in "bca"] == [0, 2, 4]


# ── preemption ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def crowded(count: int = 3, blocks: int = 14) -> Ride:
    engine = ride(num_blocks=blocks, block_size=4, max_model_len=56, max_num_batched_tokens=16)
    engine.submit(*(request(str(number), range(number, number + 6), 40, arrival=float(number)) for number in range(count)))
    return engine


def test_preempted_requests_write_the_same_text_as_undisturbed_ones():
    engine = crowded()
    engine.run()
    assert engine.preemptions > 0
    assert {n: tuple(engine.tokens[n]) for n in "012"} == {n: solo(tuple(range(int(n), int(n) + 6)), NEXT, 40) for n in "012"}


def test_tables_of_resumed_requests_count_from_position_zero():
    engine = crowded()
    engine.run()
    rows = [work for step in engine.steps for work in step.plan.work]
    assert all(len(work.blocks) >= -(-(work.start + len(work.tokens)) // 4) for work in rows)
    assert engine.free_again


def test_preemptions_of_a_request_are_bounded():
    engine = ride(num_blocks=20, block_size=16, max_model_len=320, max_num_batched_tokens=64)
    engine.submit(request("a", range(60), 200), request("b", range(100, 300), 60, arrival=1.0))
    engine.run()
    assert 0 < engine.preemptions <= 4
    assert sum(tokens for _, tokens in engine.work_of("b")) <= 3 * 260


def test_a_preempted_request_resumes_before_later_arrivals():
    engine = crowded(count=3)
    while not engine.preemptions:
        engine.step()
    victim = engine.steps[-1].plan.preempted[0]
    engine.submit(request("late", range(3), 2, arrival=engine.now))
    since = len(engine.steps)
    engine.run()
    resumed = next(step for step, _ in engine.work_of(victim) if step >= since)
    assert resumed <= engine.work_of("late")[0][0]


def test_no_admission_in_a_step_that_preempted():
    engine = crowded(count=6)
    engine.run()
    for step in engine.steps:
        assert not (step.plan.preempted and step.admitted)


# ── ends ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_abort_while_the_last_step_runs_beats_the_finish():
    class Leaving(ShadowExecutor):
        def collect(self) -> Result:
            engine.end("a")
            return super().collect()

    settings = config()
    engine = Ride(EngineCore(settings, Leaving(20, 4, NEXT)))
    engine.submit(request("a", range(3), 1))
    engine.step()
    assert (engine.endings["a"], engine.tokens["a"], engine.free_again) == (["abort"], [], True)


def test_a_waiting_request_that_leaves_never_starts():
    engine = ride(max_num_seqs=1)
    engine.submit(request("a", range(3), 10), request("b", range(5)))
    engine.step()
    engine.end("b")
    engine.run()
    assert (engine.work_of("b"), engine.endings["b"]) == ([], ["abort"])


def test_requests_that_leave_a_full_pools_queue_let_go_of_the_prefix_that_they_share():
    engine = ride(num_blocks=16)
    engine.submit(request("holder", range(56), 8))
    for _ in range(4):
        engine.step()
    for start in (0, 34, 68):
        names = [f"b{number}" for number in range(start, start + 34)]
        engine.submit(*(request(name, [*range(40), *range(100, 120)]) for name in names))
        engine.step()
        assert states(engine) == (1, 34)
        for name in names:
            engine.end(name)
        engine.step()
        assert states(engine) == (1, 0)
    engine.run()
    assert engine.free_again


def test_leaving_in_mid_prefill_computes_no_further_chunk():
    engine = ride(num_blocks=100, max_model_len=256)
    engine.submit(request("a", range(200)))
    engine.step()
    engine.end("a")
    engine.run()
    assert (len(engine.work_of("a")), engine.free_again) == (1, True)


def test_leaving_twice_answers_once():
    engine = ride()
    engine.submit(request("a", range(3)))
    engine.end("a")
    engine.end("a")
    engine.run()
    assert engine.endings["a"] == ["abort"]


def test_a_waiting_request_with_a_cached_prefix_holds_nothing():
    engine = ride(max_num_seqs=1)
    engine.submit(request("first", range(16), 2))
    engine.run()
    engine.submit(request("busy", range(40, 44), 30))
    engine.step()
    before = engine.core.scheduler.pool.free
    for number in range(100):
        engine.submit(request(f"w{number}", range(16), 2))
        engine.end(f"w{number}")
    engine.step()
    assert abs(engine.core.scheduler.pool.free - before) <= 1


def test_an_id_can_be_used_again_after_its_end():
    engine = ride()
    for _ in range(2):
        engine.submit(request("a", range(3), 2))
        engine.run()
        engine.endings.clear()
    assert len(engine.tokens["a"]) == 4


def test_ends_are_not_drawn_before_the_least_number_of_tokens():
    engine = ride(next_token=lambda prefix: 7)
    limits = Stopping(20, min_tokens=10, eos_ids=frozenset({2, 7}))
    engine.submit(request("a", range(3), stopping=limits))
    engine.run()
    assert (engine.tokens["a"], engine.endings["a"]) == ([8] * 10 + [7], ["stop"])


# ── failures ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Failing(ShadowExecutor):
    """In step 1 it reports the row of one request as failed, or raises."""

    def __init__(self, *, row: str = "") -> None:
        super().__init__(20, 4, NEXT)
        self.row = row

    def collect(self) -> Result:
        result = super().collect()
        if self.collecting.step != 1:
            return result
        if not self.row:
            raise ValueError("out of order")
        return result._replace(
            rows=tuple(row for row in result.rows if row.seq_id != self.row), failed=((self.row, "no numbers"),)
        )


def test_a_failed_row_ends_alone():
    engine = Ride(EngineCore(config(), Failing(row="a")))
    engine.submit(request("a", range(3)), request("b", range(4, 9)))
    engine.run()
    assert (engine.endings["a"], engine.endings["b"], engine.free_again) == (["error"], ["length"], True)
    assert tuple(engine.tokens["b"]) == solo(tuple(range(4, 9)), NEXT, 4)


def test_a_fault_outside_the_executor_is_not_blamed_on_requests():
    assert ride().core.fail_step(0.0, "it broke") is None


# ── prefix cache ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def cached(engine: Ride, name: str) -> int:
    return next(output.cached for step in engine.steps for output in step.outputs if output.seq_id == name and output.finish)


def test_answers_enter_the_cache_too():
    engine = ride(num_blocks=60, max_model_len=200)
    engine.submit(request("one", range(40), 20))
    engine.run()
    engine.submit(request("two", [*range(40), *engine.tokens["one"], 1, 2, 3], 2))
    engine.run()
    assert cached(engine, "two") == 56  # 60 tokens less the last, of which no keys were computed, in blocks of 4


def test_recomputed_tokens_are_no_hits():
    engine = crowded(count=4)
    engine.run()
    assert engine.preemptions > 0
    assert sum(admitted.cached for step in engine.steps for admitted in step.admitted) == 0


@pytest.mark.parametrize(("salt", "hits"), [("x", 12), ("y", 0), ("", 0)])
def test_a_salt_hits_only_itself(salt: str, hits: int):
    engine = ride()
    engine.submit(request("one", range(13), 2, cache_salt="x"))
    engine.run()
    engine.submit(request("two", range(13), 2, cache_salt=salt))
    engine.run()
    assert cached(engine, "two") == hits


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("budget", [16, 64])
def test_a_prompt_near_the_context_limit_is_answered(caching: bool, budget: int):
    engine = ride(max_num_batched_tokens=budget, enable_prefix_caching=caching)
    for name in ("cold", "warm"):
        engine.submit(request(name, range(60), 4))
        engine.run()
    assert tuple(engine.tokens["cold"]) == tuple(engine.tokens["warm"]) == solo(tuple(range(60)), NEXT, 4)


def test_two_equal_prompts_side_by_side_do_not_disturb_each_other():
    engine = ride(num_blocks=40)
    engine.submit(request("a", range(12), 10), request("b", range(12), 10))
    engine.run()
    assert engine.tokens["a"] == engine.tokens["b"] == list(solo(tuple(range(12)), NEXT, 10))


# ── chunks ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_only_the_last_chunk_of_a_prompt_draws():
    engine = ride(num_blocks=40)
    engine.submit(request("a", range(60), 2))
    engine.run()
    drawn = [bool(work.draws) for step in engine.steps for work in step.plan.work]
    assert drawn == [False, False, False, True, True]


@pytest.mark.parametrize("budget", [4, 16, 17, 64])
@pytest.mark.parametrize("length", [15, 16, 17, 33])
def test_chunks_do_not_change_the_text(budget: int, length: int):
    engine = ride(next_token=hashed(1000), max_num_batched_tokens=budget)
    engine.submit(request("a", range(length), 8))
    engine.run()
    assert tuple(engine.tokens["a"]) == solo(tuple(range(length)), hashed(1000), 8)


def test_plans_describe_themselves():
    engine = ride()
    engine.submit(request("a", range(3), 2))
    plan: Plan = engine.step().plan
    assert (plan.step, plan.tokens, plan.work[0].start, plan.work[0].tokens.tolist()) == (0, 3, 0, [0, 1, 2])
    engine.run()
    assert engine.steps[-1].plan.closed == ()


def test_a_step_that_computes_something_never_says_that_nobody_runs():
    engine = crowded(count=6)
    engine.run()
    assert all(step.snapshot.running for step in engine.steps if step.plan.work)
    assert engine.steps[-1].snapshot.running == 0


def test_the_executor_hears_once_of_every_request_that_has_ended():
    settings = config()
    executor = ShadowExecutor(20, 4, NEXT)
    engine = Ride(EngineCore(settings, executor))
    for name in "ab":
        engine.submit(request(name, range(3), 2))
        engine.run()
    assert [plan.closed for plan in executor.plans] == [(), (), ("a",), ()]


def test_blocks_of_a_failed_request_leave_the_index():
    engine = Ride(EngineCore(config(), Failing(row="a")))
    engine.submit(request("a", range(16)), request("b", range(40, 43)))
    engine.step()
    before = len(engine.core.scheduler.index)
    engine.run()
    assert (before, len(engine.core.scheduler.index)) == (2, 1)


# ── what draws are told and tell ──────────────────────────────────────────────────────────────────────────────────────────


def test_every_token_comes_with_its_logprobs_if_they_are_asked_for():
    engine = ride()
    engine.submit(request("a", range(5), 3, sampling=replace(GREEDY, logprobs=2)), request("b", range(4), 3))
    engine.run()
    outputs = [output for step in engine.steps for output in step.outputs]
    told = [output.logprobs for output in outputs if output.seq_id == "a"]
    assert told == [(scripted_logprobs(token, 2),) for token in engine.tokens["a"]]
    assert all(output.logprobs == () for output in outputs if output.seq_id == "b")


def test_a_plan_tells_the_same_history_after_its_sequence_has_grown():
    engine = ride()
    engine.submit(request("a", range(5), 4))
    engine.run()
    works = [work for step in engine.steps for work in step.plan.work]
    draws = [draw for work in works for draw in work.draws]
    assert [work.end for work in works] == [5, 6, 7, 8]
    assert {draw.history is draws[0].history for draw in draws} == {True}
    assert draws[0].history is not None
    assert draws[0].history.tolist() == [*range(5), *engine.tokens["a"]]
