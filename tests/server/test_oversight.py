"""What is in flight, and the end of it: shown and cancelled by those who may."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from sse import endings, events, joined
from tiny import GatedExecutor, Server, serving, until

from chairlift.core.config import EngineConfig
from chairlift.core.errors import ConfigError
from chairlift.server.settings import Settings

ONE_PLACE = EngineConfig(max_model_len=256, num_blocks=64, max_num_seqs=1, max_num_batched_tokens=64)
KEYS = Settings(api_keys=("one", "two"), admin_key="boss")


def bearer(key: str | None) -> dict[str, str]:
    return {} if key is None else {"authorization": f"Bearer {key}"}


@asynccontextmanager
async def waiting(settings: Settings | None = None) -> AsyncIterator[tuple[Server, dict[str, asyncio.Task[httpx.Response]]]]:
    """A server on which `first` (of key one) has got two tokens and goes on, and `second` (of key two) waits."""
    async with serving(executor=GatedExecutor, config=ONE_PLACE, settings=settings or Settings()) as server:
        assert isinstance(server.executor, GatedExecutor)
        asked: dict[str, asyncio.Task[httpx.Response]] = {}
        for count, (name, key) in enumerate({"first": "one", "second": "two"}.items(), start=1):
            body = {"prompt": "q\n", "max_tokens": 60, "request_id": name, "stream": name == "first"}
            asked[name] = asyncio.create_task(server.post("/v1/completions", body, headers=bearer(key)))
            await server.taken(count)
        server.executor.allow(2)
        executor = server.executor
        await until(lambda: len(executor.plans) == 2 and server.metrics.read().generation_tokens == 2)
        yield server, asked
        server.executor.open()
        await asyncio.gather(*asked.values())
        await server.settled()
        assert not server.service.flights._flights


async def listed(server: Server, key: str | None = None) -> list[dict[str, Any]]:
    """Lets the engine, which waits in the midst of a step, take one more."""
    asking = asyncio.create_task(server.http.get("/v1/requests", headers=bearer(key)))
    await until(lambda: server.client._core.inbox or asking.done())
    assert isinstance(server.executor, GatedExecutor)
    if not asking.done():
        server.executor.allow()
    answer = await asking
    assert answer.status_code == 200
    return answer.json()["data"]


async def test_requests_are_listed_with_their_state() -> None:
    async with waiting() as (server, _):
        first, second = await listed(server)
        assert (first["id"], first["state"], first["position"], first["prompt_tokens"]) == ("cmpl-first", "decode", None, 2)
        assert first["tokens"] >= 2
        assert first["blocks"] == 1
        assert (second["id"], second["state"], second["position"], second["blocks"]) == ("cmpl-second", "queued", 0, 0)
        assert second["expected_start_s"] > 0


async def test_nothing_in_flight_is_an_empty_list() -> None:
    async with serving() as server:
        assert (await server.http.get("/v1/requests")).json() == {"object": "list", "data": []}


@pytest.mark.parametrize(
    ("key", "seen"), [("one", ["cmpl-first"]), ("two", ["cmpl-second"]), ("boss", ["cmpl-first", "cmpl-second"])]
)
async def test_everyone_sees_their_own_and_the_admin_key_all(key: str, seen: list[str]) -> None:
    async with waiting(KEYS) as (server, _):
        assert [entry["id"] for entry in await listed(server, key)] == seen


async def test_a_cancelled_stream_ends_with_a_chunk_that_says_abort() -> None:
    async with waiting() as (server, asked):
        answer = await server.http.post("/v1/requests/cmpl-first/cancel")
        assert answer.json() == {"id": "cmpl-first", "object": "request", "cancelled": True}
        chunks = events((await asked["first"]).text)
        assert endings(chunks) == [(0, "abort")]
        assert chunks[-1]["choices"][0]["stop_reason"] == "cancelled"
        assert len(joined(chunks)[0]) >= 1


async def test_a_cancelled_answer_in_one_piece_says_abort_too() -> None:
    async with waiting() as (server, asked):
        await server.http.post("/v1/requests/cmpl-second/cancel")
        choice = (await asked["second"]).json()["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == ("", "abort")
    assert len({work.seq_id for plan in server.executor.plans for work in plan.work}) == 1


@pytest.mark.parametrize(("key", "status"), [("one", 404), ("two", 200), ("boss", 200), ("three", 401), (None, 401)])
async def test_only_who_may_see_a_request_may_cancel_it(key: str | None, status: int) -> None:
    async with waiting(KEYS) as (server, asked):
        answer = await server.http.post("/v1/requests/cmpl-second/cancel", headers=bearer(key))
        assert answer.status_code == status
        assert isinstance(server.executor, GatedExecutor)
        server.executor.open()
        ended = (await asked["second"]).json()["choices"][0]["finish_reason"]
        assert ended == ("abort" if status == 200 else "length")


async def test_what_is_not_in_flight_cannot_be_cancelled() -> None:
    async with serving() as server:
        answer = await server.http.post("/v1/requests/cmpl-x/cancel")
        assert (answer.status_code, answer.json()["error"]["param"]) == (404, "id")


@pytest.mark.parametrize("address", ["10.0.0.1", "not an address"])
async def test_without_keys_only_the_loopback_is_answered(address: str) -> None:
    async with serving() as server:
        transport = httpx.ASGITransport(server.app, client=(address, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as elsewhere:
            assert (await elsewhere.get("/v1/requests")).status_code == 403
            assert (await elsewhere.post("/v1/requests/cmpl-x/cancel")).status_code == 403


@pytest.mark.parametrize("header", ["x-forwarded-for", "forwarded", "x-real-ip"])
async def test_what_a_proxy_on_this_machine_passes_on_is_not_from_the_loopback(header: str) -> None:
    async with serving(real=True) as server:
        assert (await server.http.get("/v1/requests", headers={header: "127.0.0.1"})).status_code == 403
        assert (await server.http.get("/v1/requests")).status_code == 200


async def test_an_admin_key_alone_is_asked_for_on_the_loopback_too() -> None:
    async with serving(settings=Settings(admin_key="boss")) as server:
        assert (await server.http.get("/v1/requests")).status_code == 403
        assert (await server.http.get("/v1/requests", headers=bearer("boss"))).status_code == 200
        assert (await server.complete(max_tokens=1)).status_code == 200


def test_an_empty_admin_key_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="admin_key must not be empty"):
        Settings(admin_key="")


async def test_while_draining_requests_are_listed() -> None:
    async with serving() as server:
        server.state.drain()
        assert (await server.http.get("/v1/requests")).status_code == 200


async def test_an_engine_that_has_ended_lists_nothing() -> None:
    async with serving() as server:
        await server.client.close()
        assert (await server.http.get("/v1/requests")).status_code == 503
