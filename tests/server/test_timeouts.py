"""Requests whose time is over: an answer with what there is, or 408 before the first token. The clock is the test's own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from sse import endings, events, joined
from tiny import GatedExecutor, Server, serving, until

from chairlift.core.config import EngineConfig
from chairlift.server.settings import Settings

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ONE_PLACE = EngineConfig(max_model_len=256, num_blocks=64, max_num_seqs=1, max_num_batched_tokens=64)


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def timed(**settings: Any) -> AsyncIterator[tuple[Server, GatedExecutor, Clock]]:
    """A server with one place, a gated executor and a clock that is moved by hand."""
    clock = Clock()
    async with serving(executor=GatedExecutor, config=ONE_PLACE, settings=Settings(**settings), clock=clock) as server:
        assert isinstance(server.executor, GatedExecutor)
        yield server, server.executor, clock
        await server.settled()


async def computed(executor: GatedExecutor, count: int) -> None:
    await until(lambda: len(executor.plans) == count)


def body(path: str, **fields: Any) -> dict[str, Any]:
    start = {"messages": [{"role": "user", "content": "q"}]} if path == CHAT else {"prompt": "q\n"}
    return start | {"max_tokens": 50} | fields


LIMITS: list[tuple[dict[str, Any], dict[str, Any]]] = [({"request_timeout_s": 10.0}, {}), ({}, {"timeout_s": 10})]


@pytest.mark.parametrize(("settings", "fields"), LIMITS)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_ends_in_time_with_what_it_has(
    settings: dict[str, Any], fields: dict[str, Any], path: str, stream: bool
) -> None:
    async with timed(**settings) as (server, executor, clock):
        asking = asyncio.create_task(server.post(path, body(path, stream=stream, **fields)))
        executor.allow(3)
        await computed(executor, 3)
        await asyncio.sleep(0)
        clock.now += 11.0
        executor.open()
        answer = await asking
        assert answer.status_code == 200
        choice = events(answer.text)[-1]["choices"][0] if stream else answer.json()["choices"][0]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "timeout")
        if stream:
            assert 3 <= len(joined(events(answer.text))[0]) <= 4
        else:
            assert 3 <= answer.json()["usage"]["completion_tokens"] <= 4


@pytest.mark.parametrize(
    ("settings", "fields"), [*LIMITS, ({"queue_timeout_s": 10.0}, {}), ({"queue_timeout_s": 99.0}, {"queue_timeout_s": 10})]
)
@pytest.mark.parametrize("stream", [True, False])
async def test_before_the_first_token_it_is_408_and_not_to_be_retried(
    settings: dict[str, Any], fields: dict[str, Any], stream: bool
) -> None:
    async with timed(**settings) as (server, executor, clock):
        first = asyncio.create_task(server.post(COMPLETIONS, body(COMPLETIONS, timeout_s=10**6)))
        await server.taken()
        executor.allow()
        await computed(executor, 1)
        second = asyncio.create_task(server.post(CHAT, body(CHAT, stream=stream, **fields)))
        await server.taken(2)
        clock.now += 11.0
        executor.open()
        answer = await second
        assert (answer.status_code, answer.headers["x-should-retry"]) == (408, "false")
        assert answer.json()["error"]["code"] == 408
        assert (await first).status_code == 200
        assert len({work.seq_id for plan in executor.plans for work in plan.work}) == 1


async def test_the_client_cannot_take_more_time_than_the_operator_gives() -> None:
    async with timed(request_timeout_s=10.0) as (server, executor, clock):
        asking = asyncio.create_task(server.complete(max_tokens=50, timeout_s=1000))
        executor.allow(2)
        await computed(executor, 2)
        clock.now += 11.0
        executor.open()
        assert (await asking).json()["choices"][0]["stop_reason"] == "timeout"


async def test_of_several_prompts_the_late_ones_end_empty_beside_the_others() -> None:
    async with timed(queue_timeout_s=10.0) as (server, executor, clock):
        asking = asyncio.create_task(server.complete(["a\n", "b\n"], max_tokens=8, stream=True))
        executor.allow(2)
        await computed(executor, 2)
        clock.now += 11.0
        executor.open()
        chunks = events((await asking).text)
        assert sorted(endings(chunks)) == [(0, "length"), (1, "length")]
        assert [len(text) for _, text in sorted(joined(chunks).items())] == [8, 0]


async def test_after_a_keep_alive_the_status_is_out_and_the_408_is_an_event() -> None:
    clock = Clock()
    settings = Settings(sse_keep_alive_s=0.001, queue_timeout_s=10.0)
    async with serving(executor=GatedExecutor, config=ONE_PLACE, settings=settings, clock=clock, real=True) as server:
        assert isinstance(server.executor, GatedExecutor)
        first = asyncio.create_task(server.complete(max_tokens=50))
        await server.taken()
        server.executor.allow()
        await computed(server.executor, 1)
        async with server.http.stream("POST", COMPLETIONS, json=body(COMPLETIONS, stream=True)) as answer:
            lines = answer.aiter_lines()
            assert await anext(lines) == ": keep-alive"
            clock.now += 11.0
            server.executor.open()
            told = [line async for line in lines if line.startswith("data")]
        assert (answer.status_code, '"code":408' in told[0], told[1:]) == (200, True, ["data: [DONE]"])
        await first
        await server.settled()


@pytest.mark.parametrize("field", ["timeout_s", "queue_timeout_s", "stall_timeout_s"])
@pytest.mark.parametrize("value", [0, -1, "5", 10**7, True, [1]])
async def test_a_time_that_is_none_is_400(field: str, value: Any) -> None:
    async with serving() as server:
        answer = await server.complete("hi\n", **{field: value})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


@pytest.mark.parametrize(
    ("settings", "fields", "expected"),
    [
        ({"stall_timeout_s": 10.0}, {}, 10.0),
        ({}, {"stall_timeout_s": 5}, 5.0),
        ({"stall_timeout_s": 10.0}, {"stall_timeout_s": 5}, 5.0),
        ({"stall_timeout_s": 10.0}, {"stall_timeout_s": 50}, 10.0),
        ({}, {}, None),
    ],
)
async def test_the_shorter_time_between_tokens_counts(
    settings: dict[str, Any], fields: dict[str, Any], expected: float | None
) -> None:
    async with timed(**settings) as (server, executor, _):
        asking = asyncio.create_task(server.post(COMPLETIONS, body(COMPLETIONS, **fields)))
        executor.allow()
        await computed(executor, 1)
        assert [one.request.limits.stall_s for one in server.client._core.scheduler.sequences] == [expected]
        executor.open()
        await asking


async def test_without_limits_nothing_ends_by_time() -> None:
    async with timed() as (server, executor, clock):
        asking = asyncio.create_task(server.complete(max_tokens=9))
        executor.allow(2)
        await computed(executor, 2)
        clock.now += 10.0**9
        executor.open()
        assert (await asking).json()["usage"]["completion_tokens"] == 9


async def test_the_openai_client_does_not_ask_again_after_a_408() -> None:
    clock = Clock()
    async with serving(executor=GatedExecutor, config=ONE_PLACE, clock=clock, real=True) as server:
        assert isinstance(server.executor, GatedExecutor)
        first = asyncio.create_task(server.complete(max_tokens=5))
        await server.taken()
        server.executor.allow()
        await computed(server.executor, 1)
        async with openai.AsyncOpenAI(base_url=str(server.http.base_url.join("v1")), api_key="k", max_retries=2) as client:
            asking = asyncio.create_task(client.completions.create(model="tiny", prompt="q", extra_body={"timeout_s": 10}))
            await server.taken(2)
            clock.now += 11.0
            server.executor.open()
            with pytest.raises(openai.APIStatusError) as error:
                await asking
        assert error.value.status_code == 408
        await first
        assert sum((await server.counted(2)).finished.values()) == 2
