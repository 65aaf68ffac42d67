"""Clients that hang up, on real connections: what they asked for ends within one step, and nobody else notices."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import tiny
from executors import solo
from sse import endings, events, joined
from tiny import GatedExecutor, Server, serving, until

from chairlift.core.config import EngineConfig

COMPLETIONS = "/v1/completions"
STREAM: dict[str, Any] = {"prompt": "q\n", "max_tokens": 200, "stream": True}


@asynccontextmanager
async def gated(**changes: Any) -> AsyncIterator[tuple[Server, GatedExecutor]]:
    async with serving(executor=GatedExecutor, real=True, **changes) as server:
        assert isinstance(server.executor, GatedExecutor)
        yield server, server.executor


async def left(server: Server, others: int = 0) -> None:
    """Waits until the server has noticed that a client is gone: only `others` are still being answered."""
    await until(lambda: len(server.client._streams) == others)


async def first_line(server: Server, body: dict[str, Any]) -> str:
    """What comes first of a stream that is dropped then."""
    async with server.http.stream("POST", COMPLETIONS, json=body) as answer:
        return await anext(answer.aiter_lines())


async def test_a_stream_that_is_dropped_ends_within_one_step() -> None:
    async with gated() as (server, executor):
        executor.allow(5)
        async with server.http.stream("POST", COMPLETIONS, json=STREAM) as answer:
            await anext(answer.aiter_lines())
        await left(server)
        executor.open()
        await server.settled()
        assert len(executor.plans) <= 5 + 1


async def test_streams_with_logprobs_that_are_dropped_leave_nothing_behind() -> None:
    async with gated() as (server, executor):
        beside = asyncio.create_task(server.complete("0\n", max_tokens=200, logprobs=2))
        await until(lambda: len(server.client._streams) == 1)
        for _ in range(50):
            dropped = asyncio.create_task(first_line(server, STREAM | {"logprobs": 5}))
            await until(lambda: len(server.client._streams) == 2)
            executor.allow(3)
            assert '"top_logprobs":[{' in await dropped
            await left(server, others=1)
        executor.open()
        told = (await beside).json()["choices"][0]
        assert told["text"] == alone(0, 200)
        assert "".join(told["logprobs"]["tokens"]) == told["text"]
        await server.settled()


async def test_an_answer_that_nobody_waits_for_ends_within_one_step() -> None:
    async with gated() as (server, executor):
        executor.allow(3)
        asking = asyncio.create_task(server.complete(max_tokens=200))
        await until(lambda: len(executor.plans) == 3)
        asking.cancel()
        await left(server)
        executor.open()
        await server.settled()
        assert len(executor.plans) <= 4
        assert (await server.counted(1)).finished == {"stop": 0, "length": 0, "abort": 1, "error": 0}


async def test_a_prompt_that_nobody_waits_for_is_not_computed_to_its_end() -> None:
    async with gated() as (server, executor):
        executor.allow(1)
        asking = asyncio.create_task(server.complete("x" * 250, max_tokens=4))
        await until(lambda: len(executor.plans) == 1)
        asking.cancel()
        await left(server)
        executor.open()
        await server.settled()
        assert sum(plan.tokens for plan in executor.plans) <= 2 * tiny.CONFIG.max_num_batched_tokens


async def test_a_request_that_left_the_queue_is_never_computed() -> None:
    config = EngineConfig(max_model_len=256, num_blocks=64, max_num_seqs=1, max_num_batched_tokens=64)
    async with gated(config=config) as (server, executor):
        first = asyncio.create_task(server.complete("a\n", max_tokens=3))
        await until(lambda: len(server.client._streams) == 1)
        second = asyncio.create_task(server.complete("left\n", max_tokens=3))
        await until(lambda: len(server.client._streams) == 2)
        second.cancel()
        await left(server, others=1)
        executor.open()
        assert (await first).status_code == 200
        await server.settled()
        assert len({work.seq_id for plan in executor.plans for work in plan.work}) == 1
        assert (await server.counted(2)).prompt_tokens == 2


@pytest.mark.parametrize(("blocks", "preempts"), [(64, False), (12, True)])
async def test_of_many_streams_a_third_hangs_up_and_the_others_get_their_text(blocks: int, preempts: bool) -> None:
    config = EngineConfig(max_model_len=48, num_blocks=blocks, block_size=4, max_num_seqs=8, max_num_batched_tokens=16)
    stay, leave = [index for index in range(32) if index % 3], [index for index in range(32) if not index % 3]
    async with gated(config=config) as (server, executor):

        async def ask(index: int) -> str:
            body = STREAM | {"prompt": f"{index}\n", "max_tokens": 16}
            async with server.http.stream("POST", COMPLETIONS, json=body) as answer:
                return "".join([text async for text in answer.aiter_text()])

        asking = [asyncio.create_task(ask(index)) for index in range(32)]
        await until(lambda: len(server.client._streams) == 32)
        executor.allow(6)
        await until(lambda: len(executor.plans) == 6)
        for index in leave:
            asking[index].cancel()
        await left(server, others=len(stay))
        executor.open()
        for index in stay:
            text = await asking[index]
            assert joined(events(text)) == {0: alone(index)}
            assert endings(events(text)) == [(0, "length")]
        await server.settled()
        tally = await server.counted(32)
        assert tally.finished == {"stop": 0, "length": len(stay), "abort": len(leave), "error": 0}
        assert (tally.preemptions > 0) is preempts


def alone(index: int, tokens: int = 16) -> str:
    """What the model says to this prompt if nobody else asks."""
    return bytes(solo(tuple(f"{index}\n".encode()), tiny.letters, tokens)).decode()


@pytest.mark.parametrize("fields", [{}, {"stream": True}])
async def test_forty_hang_ups_leave_no_trace(fields: dict[str, Any]) -> None:
    config = EngineConfig(max_model_len=256, num_blocks=64, max_num_seqs=4, max_num_batched_tokens=64, max_num_queued_reqs=300)
    async with serving(config=config, real=True) as server:
        asked = [asyncio.create_task(server.complete(f"{index}\n", max_tokens=100, **fields)) for index in range(40)]
        for place, task in enumerate(asked):
            if place % 5:
                await asyncio.sleep(0)
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        await left(server)
        await server.settled()
        assert (await server.complete(max_tokens=2)).status_code == 200


async def test_answers_that_nobody_waits_for_leave_nothing_beside_many_that_end() -> None:
    config = EngineConfig(max_model_len=256, num_blocks=256, max_num_seqs=64, max_num_batched_tokens=128)
    async with gated(config=config) as (server, executor):
        asked = [asyncio.create_task(server.complete(f"{index}\n", max_tokens=200)) for index in range(50)]
        await until(lambda: len(server.client._streams) == 50)
        for task in asked:
            task.cancel()
        await left(server)
        executor.open()
        for _ in range(10):
            answers = await asyncio.gather(*(server.complete(f"{index}\n", max_tokens=2) for index in range(20)))
            assert {answer.status_code for answer in answers} == {200}
        await server.settled()
        assert (await server.counted(250)).finished == {"stop": 0, "length": 200, "abort": 50, "error": 0}
        assert (await server.http.get("/v1/requests")).json()["data"] == []
        assert not server.service.flights._tenants


async def test_a_load_generator_that_is_killed_three_times_leaves_a_server_that_answers() -> None:
    config = EngineConfig(max_model_len=256, num_blocks=64, max_num_seqs=8, max_num_batched_tokens=64, max_num_queued_reqs=500)
    raw = json.dumps(STREAM).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(raw)
    async with gated(config=config) as (server, executor):
        address = server.http.base_url.host, server.http.base_url.port
        for _ in range(3):
            writers = [(await asyncio.open_connection(*address))[1] for _ in range(200)]
            for writer in writers:
                writer.write(head + raw)
            await until(lambda: len(server.client._streams) == 200)
            executor.allow(2)
            for writer in writers:
                writer.transport.abort()
            await left(server)
        before = len(executor.plans)
        executor.open()
        assert (await server.complete(max_tokens=2)).status_code == 200
        await server.settled()
        assert len(executor.plans) <= before + 5
