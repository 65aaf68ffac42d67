"""Clients that hang up, on real connections: what they asked for ends within one step, and nobody else notices."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import tiny
from sse import endings, events, joined
from tiny import GatedExecutor, Server, serving

from chairlift.core.config import EngineConfig

COMPLETIONS = "/v1/completions"
STREAM: dict[str, Any] = {"prompt": "q\n", "max_tokens": 200, "stream": True}


@asynccontextmanager
async def gated(**changes: Any) -> AsyncIterator[tuple[Server, GatedExecutor]]:
    async with serving(executor=GatedExecutor, real=True, **changes) as server:
        assert isinstance(server.executor, GatedExecutor)
        yield server, server.executor


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def left(server: Server, others: int = 0) -> None:
    """Waits until the server has noticed that a client is gone: only `others` are still being answered."""
    await until(lambda: len(server.client._streams) == others)


async def test_a_stream_that_is_dropped_ends_within_one_step() -> None:
    async with gated() as (server, executor):
        executor.allow(5)
        async with server.http.stream("POST", COMPLETIONS, json=STREAM) as answer:
            await anext(answer.aiter_lines())
        await left(server)
        executor.open()
        await server.settled()
        assert len(executor.plans) <= 5 + 1


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


async def test_of_many_streams_a_third_hangs_up_and_the_others_get_their_text() -> None:
    config = EngineConfig(max_model_len=64, num_blocks=24, block_size=4, max_num_seqs=8, max_num_batched_tokens=16)
    chance = random.Random(1)
    async with serving(config=config, real=True) as server:
        alone = [(await server.complete(f"{index}\n", max_tokens=16)).json() for index in range(32)]

        async def ask(index: int) -> str | None:
            body = STREAM | {"prompt": f"{index}\n", "max_tokens": 16}
            stop_after = chance.randrange(3) if index % 3 == 0 else None
            seen: list[str] = []
            async with server.http.stream("POST", COMPLETIONS, json=body) as answer:
                async for text in answer.aiter_text():
                    seen.append(text)
                    if stop_after is not None and len(seen) > stop_after:
                        return None
            return "".join(seen)

        texts = await asyncio.gather(*(ask(index) for index in range(32)))
        for index, text in enumerate(texts):
            if index % 3:
                assert text is not None
                assert joined(events(text)) == {0: alone[index]["choices"][0]["text"]}
                assert endings(events(text)) == [(0, "length")]
        await server.settled()
        tally = await server.counted(64)
        assert sum(tally.finished.values()) == 64
        assert tally.finished["error"] == 0


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
