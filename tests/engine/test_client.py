"""Streams over a real engine thread: merging, leaving, failures, limits. Nothing here waits on a clock."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Container
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from engines import NEXT, config
from executors import ShadowExecutor, scripted_logprobs, solo
from virtual import GREEDY, request

from chairlift.core.errors import ExecutorLost, NeverFits, QueueFull, Refused, Unavailable
from chairlift.core.events import Step
from chairlift.core.types import Plan, Result, Stopping
from chairlift.engine.client import Delta, EngineClient, Stream


class GatedExecutor(ShadowExecutor):
    """Computes a step only when the test lets it; or raises in the steps that are `broken`."""

    def __init__(self, *, gated: bool = False, broken: Container[int] = (), error: Exception | None = None) -> None:
        super().__init__(200, 4, NEXT)
        self.permits = threading.Semaphore(0 if gated else 10**9)
        self.launched = threading.Semaphore(0)
        self.broken = broken
        self.error = error or ValueError("the adder is broken")

    def launch(self, plan: Plan) -> None:
        super().launch(plan)
        self.launched.release()

    def collect(self) -> Result:
        self.permits.acquire()
        if self.next_up.step in self.broken:
            self.drop()
            raise self.error
        return super().collect()


class Recorder:
    """A sink that keeps what it is told, or raises."""

    def __init__(self, *, raises: bool = False) -> None:
        self.steps: list[Step] = []
        self.refusals: list[str] = []
        self.calls = 0
        self.raises = raises

    def on_step(self, step: Step) -> None:
        self.calls += 1
        if self.raises:
            raise RuntimeError("no disk")
        self.steps.append(step)

    def on_refusal(self, reason: str) -> None:
        self.refusals.append(reason)


@asynccontextmanager
async def engine(executor: GatedExecutor | None = None, *, sinks: Any = (), **changes: Any) -> AsyncIterator[EngineClient]:
    executor = executor or GatedExecutor()
    client = EngineClient(config(**{"num_blocks": 200, "max_model_len": 256} | changes), executor, sinks=sinks).start()
    try:
        yield client
    finally:
        executor.permits.release(1000)
        await client.close()
        assert executor.closed


async def read(stream: Stream) -> list[Delta]:
    async with stream:
        return [delta async for delta in stream]


def tokens(deltas: list[Delta]) -> tuple[int, ...]:
    return tuple(token for delta in deltas for token in delta.tokens)


async def settled(client: EngineClient) -> bool:
    """True when everything has ended and all blocks are free, which takes the engine one more turn after the last end."""
    for _ in range(10_000):
        snapshot = client.snapshot()
        if (snapshot.running, snapshot.waiting, snapshot.free_blocks) == (0, 0, snapshot.total_blocks):
            return True
        await asyncio.sleep(0)
    return False


async def test_a_stream_brings_its_tokens_and_one_finish():
    async with engine() as client:
        deltas = await read(client.submit(request("a", range(5), 9)))
        assert tokens(deltas) == solo(tuple(range(5)), NEXT, 9)
        assert [delta.finish for delta in deltas if delta.finish] == ["length"]


@pytest.mark.parametrize(("depth", "places"), [(1, 4), (2, 4), (2, 1)])
async def test_many_streams_each_get_their_own(depth: int, places: int):
    async with engine(depth=depth, max_num_seqs=places) as client:
        prompts = {str(n): tuple(range(n, n + 3 + n % 7)) for n in range(40)}
        answers = await asyncio.gather(*(read(client.submit(request(name, p, 12))) for name, p in prompts.items()))
        for (name, prompt), deltas in zip(prompts.items(), answers, strict=True):
            assert tokens(deltas) == solo(prompt, NEXT, 12), name
        assert await settled(client)


async def test_a_slow_reader_gets_merged_deltas_and_misses_nothing():
    async with engine() as client:
        async with client.submit(request("slow", range(5), 50)) as slow:
            await read(client.submit(request("other", range(9), 60)))
            deltas = [delta async for delta in slow]
        assert tokens(deltas) == solo(tuple(range(5)), NEXT, 50)
        assert len(deltas) <= 2


async def test_merged_deltas_have_the_logprobs_of_all_their_tokens():
    async with engine() as client:
        async with client.submit(request("slow", range(5), 50, sampling=replace(GREEDY, logprobs=3))) as slow:
            await read(client.submit(request("other", range(9), 60)))
            deltas = [delta async for delta in slow]
        assert [len(delta.logprobs) for delta in deltas] == [len(delta.tokens) for delta in deltas]
        told = tuple(one for delta in deltas for one in delta.logprobs)
        assert told == tuple(scripted_logprobs(token, 3) for token in tokens(deltas))


async def test_leaving_a_stream_frees_everything():
    async with engine() as client:
        async with client.submit(request("a", range(5), 200)) as stream:
            async for _ in stream:
                break
        assert await settled(client)


async def test_leaving_while_waiting_never_computes_anything():
    executor = GatedExecutor(gated=True)
    async with engine(executor, max_num_seqs=1) as client:
        first = client.submit(request("a", range(5), 3))
        async with client.submit(request("b", range(7), 3)):
            pass
        executor.permits.release(100)
        await read(first)
        assert not [work for plan in executor.plans for work in plan.work if work.seq_id == "b"]


async def test_a_stop_seen_by_the_reader_counts_as_stop():
    recorder, executor = Recorder(), GatedExecutor(gated=True)
    async with engine(executor, sinks=[recorder]) as client:
        executor.permits.release()
        async with client.submit(request("a", range(5), 200)) as stream:
            async for _ in stream:
                client.finish("a")
                break
        executor.permits.release(1000)
        assert await settled(client)
    assert [o.finish for step in recorder.steps for o in step.outputs if o.finish] == ["stop"]


async def test_a_request_that_can_never_fit_is_refused_and_leaves_no_trace():
    recorder = Recorder()
    async with engine(sinks=[recorder]) as client:
        with pytest.raises(NeverFits):
            client.submit(request("a", range(300)))
        assert recorder.refusals == ["never_fits"]
        assert len(await read(client.submit(request("a", range(5), 1)))) == 1


async def test_a_full_queue_refuses_with_a_time_to_come_back():
    executor = GatedExecutor(gated=True)
    async with engine(executor, max_num_seqs=1, max_num_queued_reqs=2) as client:
        streams = [client.submit(request(name, range(5))) for name in "abc"]
        with pytest.raises(QueueFull) as refusal:
            client.submit(request("d", range(5)))
        assert (refusal.value.limit, 1 <= refusal.value.retry_after_s <= 120) == ("max_num_queued_reqs", True)
        executor.permits.release(1000)
        for stream in streams:
            assert (await read(stream))[-1].finish == "length"


async def test_whoever_finds_a_free_place_does_not_count_as_waiting():
    async with engine(max_num_seqs=4, max_num_queued_reqs=1) as client:
        streams = [client.submit(request(str(number), range(5))) for number in range(5)]
        assert [(await read(stream))[-1].finish for stream in streams] == ["length"] * 5


async def test_requests_that_belong_together_are_queued_together_or_not_at_all():
    recorder = Recorder()
    async with engine(sinks=[recorder], max_num_seqs=2, max_num_queued_reqs=1) as client:
        with pytest.raises(NeverFits):
            client.submit_all([request("a", range(5)), request("b", range(300))])
        assert [len(await read(s)) > 0 for s in client.submit_all([request(name, range(5)) for name in "abc"])] == [True] * 3
    assert {admitted.request.id for step in recorder.steps for admitted in step.admitted} == set("abc")


async def test_a_job_that_could_never_be_queued_is_not_told_to_come_back():
    async with engine(max_num_seqs=2, max_num_queued_reqs=1) as client:
        with pytest.raises(NeverFits, match="the request wants 4 answers, but at most 2 can run and 1 wait"):
            client.submit_all([request(name, range(5)) for name in "abcd"])


async def test_every_choice_has_a_stream_of_its_own():
    async with engine() as client:
        streams = client.submit_all([request("a", range(9), 12, samples=3), request("b", range(5), 6)])
        assert [stream.id for stream in streams] == ["a", "a#1", "a#2", "b"]
        answers = await asyncio.gather(*map(read, streams))
        assert [len(tokens(deltas)) for deltas in answers] == [12, 12, 12, 6]
        assert len({tokens(deltas) for deltas in answers}) == 4
        assert await settled(client)


@pytest.mark.parametrize("left", [0, 1])
async def test_leaving_a_stream_ends_its_own_choice_only(left: int):
    executor = GatedExecutor(gated=True)
    async with engine(executor) as client:
        streams = client.submit_all([request("a", range(30), 12, samples=3)])
        executor.permits.release()
        async with streams.pop(left):
            pass
        executor.permits.release(1000)
        assert [(await read(stream))[-1].finish for stream in streams] == ["length", "length"]
        assert await settled(client)


async def test_choices_count_as_requests_in_the_queue_and_their_prompt_once():
    executor = GatedExecutor(gated=True)
    limits = {"max_num_seqs": 4, "max_num_queued_reqs": 5, "max_num_queued_tokens": 100}
    async with engine(executor, **limits) as client:
        first = client.submit_all([request("a", range(30), 40, samples=4)])
        executor.permits.release(3)
        async for _ in first[0]:
            break
        client.submit_all([request("b", range(50), samples=3)])
        with pytest.raises(QueueFull, match="3 requests are waiting already"):
            client.submit_all([request("c", range(5), samples=3)])
        client.submit_all([request("d", range(50), samples=2)])
        client.cancel("b")
        with pytest.raises(QueueFull, match="100 prompt tokens are waiting already"):
            client.submit(request("e", range(5)))


async def test_whoever_fills_the_queue_keeps_no_other_tenant_out():
    executor = GatedExecutor(gated=True)
    async with engine(executor, max_num_seqs=1, max_num_queued_reqs=6, max_num_queued_tokens=60) as client:
        client.submit_all([request(f"a{number}", range(10), tenant="a") for number in range(6)])
        client.submit_all([request(f"b{number}", range(10), tenant="b") for number in range(3)])
        for tenant in "ab":
            with pytest.raises(QueueFull):
                client.submit(request("more", range(10), tenant=tenant))
        client.submit(request("c", range(10), tenant="c"))
        with pytest.raises(QueueFull, match="prompt tokens"):
            client.submit(request("d", range(30), tenant="d"))


async def test_a_full_queue_is_at_most_twice_as_long_for_ever_new_tenants():
    executor = GatedExecutor(gated=True)
    async with engine(executor, max_num_seqs=1, max_num_queued_reqs=4) as client:
        for number in range(50):
            with contextlib.suppress(QueueFull):
                client.submit(request(str(number), range(3), tenant=str(number)))
        assert len(client._queued) <= 2 * (4 + 1)


async def test_idle_time_does_not_make_the_queue_look_slow():
    times = [0.0]
    executor = GatedExecutor(gated=True)
    client = EngineClient(
        config(num_blocks=200, max_num_seqs=1, max_num_queued_reqs=1), executor, clock=lambda: times[0]
    ).start()
    executor.permits.release(4)
    await read(client.submit(request("a", range(5))))
    times[0] = 3600.0
    executor.permits.release(4)
    await read(client.submit(request("b", range(5))))
    client.submit_all([request("c", range(5)), request("d", range(5))])
    with pytest.raises(QueueFull) as refusal:
        client.submit(request("e", range(5)))
    executor.permits.release(1000)
    await client.close()
    assert refusal.value.retry_after_s <= 2


async def test_a_reader_hears_of_an_abort_from_elsewhere():
    executor = GatedExecutor(gated=True)
    async with engine(executor) as client:
        reader = asyncio.create_task(read(client.submit(request("a", range(5), 200))))
        await asyncio.sleep(0)
        client.abort("a")
        assert (await reader)[-1].finish == "abort"


async def test_an_empty_prompt_is_refused_and_harms_nobody():
    async with engine() as client:
        with pytest.raises(Refused, match="the prompt is empty"):
            client.submit(request("a", []))
        assert (await read(client.submit(request("b", range(5)))))[-1].finish == "length"


async def test_queued_tokens_are_limited_too_but_one_request_may_always_wait():
    executor = GatedExecutor(gated=True)
    async with engine(executor, max_num_seqs=1, max_num_queued_tokens=10) as client:
        client.submit(request("a", range(50)))
        with pytest.raises(QueueFull, match="50 prompt tokens are waiting"):
            client.submit(request("b", range(5)))


@pytest.mark.parametrize("depth", [1, 2])
async def test_one_broken_step_harms_nobody(depth: int):
    async with engine(GatedExecutor(broken={1}), depth=depth) as client:
        assert tokens(await read(client.submit(request("a", range(5), 9)))) == solo(tuple(range(5)), NEXT, 9)
        assert client.health() == "ok"


async def test_a_request_that_fails_alone_ends_with_an_error_and_its_prompt_is_not_taken_again():
    times = [0.0]
    executor = GatedExecutor(broken={1, 3})  # with everyone, then alone; the step between proves the executor
    client = EngineClient(config(num_blocks=200), executor, clock=lambda: times[0]).start()
    last = (await read(client.submit(request("a", range(5), 9))))[-1]
    assert (last.finish, "the adder is broken" in str(last.stop_reason)) == ("error", True)
    with pytest.raises(Refused, match="this prompt has made the model fail; it is not taken again for 600 s"):
        client.submit(request("b", range(5), 9))
    assert tokens(await read(client.submit(request("c", range(6), 9)))) == solo(tuple(range(6)), NEXT, 9)
    times[0] = 601.0
    assert tokens(await read(client.submit(request("d", range(5), 9)))) == solo(tuple(range(5)), NEXT, 9)
    assert client.health() == "ok"
    await client.close()


@pytest.mark.parametrize("depth", [1, 2])
async def test_an_engine_that_keeps_failing_answers_everyone_and_says_so(depth: int):
    recorder = Recorder()
    async with engine(GatedExecutor(broken=range(10**9)), sinks=[recorder], max_num_seqs=1, depth=depth) as client:
        answers = await asyncio.gather(*(read(client.submit(request(str(n), range(5), 9))) for n in range(6)))
        assert [deltas[-1].finish for deltas in answers] == ["error"] * 6
        assert client.health() == "failed"
        with pytest.raises(Unavailable, match="the engine has failed"):
            client.submit(request("late", range(5)))
    ends = [output.seq_id for step in recorder.steps for output in step.outputs if output.finish]
    assert (sorted(ends), recorder.steps[-1].snapshot.waiting) == ([str(number) for number in range(6)], 0)


@pytest.mark.parametrize("depth", [1, 2])
async def test_an_executor_that_is_gone_is_not_tried_again(depth: int, caplog: pytest.LogCaptureFixture):
    executor, recorder = GatedExecutor(broken=[2], error=ExecutorLost("rank 1 is gone")), Recorder()
    async with engine(executor, sinks=[recorder], max_num_seqs=2, depth=depth) as client:
        answers = await asyncio.gather(*(read(client.submit(request(str(n), range(5), 9))) for n in range(6)))
        assert [deltas[-1].finish for deltas in answers] == ["error"] * 6
        assert {deltas[-1].stop_reason for deltas in answers} == {"the engine has failed: rank 1 is gone"}
        assert client.health() == "failed"
    assert executor.plans[-1].step <= 1 + depth
    ends = [output.seq_id for step in recorder.steps for output in step.outputs if output.finish]
    assert sorted(ends) == [str(number) for number in range(6)]
    assert ("the engine has failed: rank 1 is gone" in caplog.text, "Traceback" in caplog.text) == (True, False)


class Mortal(GatedExecutor):
    """Hands out what it is told to call when it is lost."""

    def watch(self, lost: Callable[[str], None]) -> None:
        self.lost = lost


async def test_an_executor_that_is_lost_while_nothing_runs_ends_the_engine():
    executor = Mortal()
    async with engine(executor) as client:
        await read(client.submit(request("a", range(5), 9)))
        executor.lost("rank 1 is gone")
        await asyncio.to_thread(client._loop._thread.join)
        assert client.health() == "failed"
        with pytest.raises(Unavailable, match="the engine has failed: rank 1 is gone"):
            client.submit(request("late", range(5)))


async def test_an_engine_is_closed_while_two_steps_are_in_flight():
    executor = GatedExecutor(gated=True)
    async with engine(executor, depth=2) as client:
        stream = client.submit(request("a", range(5), 9))
        for _ in range(2):
            await asyncio.to_thread(executor.launched.acquire)
        closing = asyncio.create_task(client.close())
        assert (await read(stream))[-1].finish == "abort"
        executor.permits.release(2)
        await closing


async def test_a_sink_that_raises_is_switched_off_and_harms_nobody(caplog: pytest.LogCaptureFixture):
    bad, good = Recorder(raises=True), Recorder()
    async with engine(sinks=[bad, good]) as client:
        await read(client.submit(request("a", range(5), 9)))
    assert (bad.calls, "switched off" in caplog.text) == (1, True)
    assert len(good.steps) >= 9


async def test_draining_lets_the_running_finish_and_refuses_new_ones():
    executor = GatedExecutor(gated=True)
    async with engine(executor) as client:
        reader = asyncio.create_task(read(client.submit(request("a", range(5), 9))))
        draining = asyncio.create_task(client.drain(60))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="shutting down"):
            client.submit(request("b", range(5)))
        executor.permits.release(100)
        await draining
        assert (await reader)[-1].finish == "length"


async def test_what_does_not_finish_in_time_is_aborted():
    executor = GatedExecutor(gated=True)
    async with engine(executor) as client:
        reader = asyncio.create_task(read(client.submit(request("a", range(5), 9))))
        await asyncio.sleep(0)
        await client.drain(0)
        assert (await reader)[-1].finish == "abort"


async def test_a_stalled_step_is_not_called_healthy():
    times = [0.0]
    executor = GatedExecutor(gated=True)
    client = EngineClient(config(num_blocks=200), executor, clock=lambda: times[0]).start()
    client.submit(request("a", range(5)))
    await asyncio.to_thread(executor.launched.acquire)
    before = client.health()
    times[0] = 61.0
    assert (before, client.health()) == ("ok", "stalled")
    executor.permits.release(100)
    await client.close()


def test_an_engine_to_which_nobody_listens_any_more_goes_on() -> None:
    """As after a second signal in the midst of a step: the event loop is closed, and the process is about to end."""
    executor, clients = GatedExecutor(gated=True), list[EngineClient]()

    async def leave() -> None:
        clients.append(EngineClient(config(num_blocks=200), executor).start())
        clients[0].submit(request("a", range(5), 3))
        await asyncio.to_thread(executor.launched.acquire)

    asyncio.run(leave())
    executor.permits.release(3)
    assert all(executor.launched.acquire(timeout=10) for _ in range(2))
    assert clients[0].health() == "ok"
    asyncio.run(clients[0].close())


async def test_a_closed_engine_is_not_healthy():
    client = EngineClient(config(), ShadowExecutor(20, 4, NEXT)).start()
    await client.close()
    assert client.health() == "closed"


async def test_a_stop_token_is_the_reason():
    async with engine() as client:
        first = solo((1, 2), NEXT, 1)[0]
        limits = Stopping(9, stop_ids=frozenset({first}))
        deltas = await read(client.submit(request("a", [1, 2], stopping=limits)))
        assert (deltas[-1].finish, deltas[-1].stop_reason, tokens(deltas)) == ("stop", first, (first,))


async def test_the_dynamic_gate_wakes_the_loop_by_its_timer():
    async with engine(preset="dynamic", batch_wait_s=0.02) as client:
        one = request("a", range(5), 3, arrival=client.now())
        assert (await read(client.submit(one)))[-1].finish == "length"
