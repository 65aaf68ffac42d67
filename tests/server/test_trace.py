"""What became of a request, told to those who may hear it: in flight and after its end."""

import asyncio
from typing import Any

import httpx
import pytest
from tiny import GatedExecutor, Server, serving, until

from chairlift.core.config import EngineConfig
from chairlift.server.flights import MAX_ENDED, Flight, Flights
from chairlift.server.oversight import MAX_TOLD
from chairlift.server.settings import Settings

ONE_PLACE = EngineConfig(max_model_len=256, num_blocks=64, max_num_seqs=1, max_num_batched_tokens=64)
KEYS = Settings(api_keys=("one", "two"), admin_key="boss")


def bearer(key: str | None) -> dict[str, str]:
    return {} if key is None else {"authorization": f"Bearer {key}"}


async def story(server: Server, request_id: str, key: str | None = None) -> list[dict[str, Any]]:
    answer = await server.http.get(f"/v1/requests/{request_id}/trace", headers=bearer(key))
    assert answer.status_code == 200
    assert (answer.json()["id"], answer.json()["object"]) == (request_id, "request.trace")
    return answer.json()["data"]


def kinds(told: dict[str, Any]) -> list[str]:
    return [event["event"] for event in told["events"]]


async def test_an_ended_request_is_told_from_queue_to_end() -> None:
    async with serving() as server:
        await server.complete("hello\n", max_tokens=3, request_id="mine")
        (told,) = await story(server, "cmpl-mine")
    assert kinds(told) == ["queued", "admitted", "prefill", "first_token", "finished"]
    queued, *_, finished = told["events"]
    assert (queued["tokens"], queued["waiting"]) == (6, 0)
    assert (finished["tokens"], finished["finish"]) == (3, "length")
    assert (told["index"], told["model"], told["ended"], told["dropped"]) == (0, "tiny", True, 0)


async def test_every_choice_has_its_story() -> None:
    async with serving() as server:
        await server.complete(["a\n", "b\n"], max_tokens=1, request_id="two")
        assert [told["index"] for told in await story(server, "cmpl-two")] == [0, 1]


async def test_of_many_requests_of_one_id_the_latest_are_told() -> None:
    async with serving() as server:
        for number in range(MAX_TOLD + 3):
            await server.complete("a\n", max_tokens=1 + (number > 2), request_id="same")
        answer = (await server.http.get("/v1/requests/cmpl-same/trace")).json()
        assert (len(answer["data"]), answer["omitted"]) == (MAX_TOLD, 3)
        assert {told["events"][-1]["tokens"] for told in answer["data"]} == {2}


async def test_who_waits_is_told_why_while_it_waits() -> None:
    async with serving(executor=GatedExecutor, config=ONE_PLACE) as server:
        assert isinstance(server.executor, GatedExecutor)
        bodies = [{"prompt": "q\n", "max_tokens": 9, "request_id": name} for name in ("first", "second", "third")]
        asked: list[asyncio.Task[httpx.Response]] = []
        executor = server.executor
        for count, body in enumerate(bodies, start=1):
            asked.append(asyncio.create_task(server.post("/v1/completions", body)))
            await server.taken(count)
        executor.allow(3)
        await until(lambda: len(executor.plans) == 3 and not server.client._core.inbox)
        reasons = {}
        for name in ("second", "third"):
            (told,) = await story(server, f"cmpl-{name}")
            reasons[name] = [event["reason"] for event in told["events"] if event["event"] == "held"]
            assert not told["ended"]
        assert reasons == {"second": ["no_place"], "third": ["behind"]}
        server.executor.open()
        await asyncio.gather(*asked)


async def test_who_was_cancelled_reads_so_in_its_story() -> None:
    async with serving(executor=GatedExecutor) as server:
        assert isinstance(server.executor, GatedExecutor)
        asked = asyncio.create_task(server.complete("q\n", max_tokens=60, request_id="x"))
        await server.taken()
        await server.http.post("/v1/requests/cmpl-x/cancel")
        await asked
        server.executor.open()
        await server.counted(ended=1)
        (told,) = await story(server, "cmpl-x")
        assert (told["events"][-1]["finish"], told["events"][-1]["reason"]) == ("abort", "cancelled")


@pytest.mark.parametrize(("key", "status"), [("one", 200), ("boss", 200), ("two", 404), ("three", 401), (None, 401)])
async def test_only_who_may_see_a_request_may_read_its_story(key: str | None, status: int) -> None:
    async with serving(settings=KEYS) as server:
        await server.post("/v1/completions", {"prompt": "q\n", "max_tokens": 1, "request_id": "x"}, headers=bearer("one"))
        assert (await server.http.get("/v1/requests/cmpl-x/trace", headers=bearer(key))).status_code == status


async def test_without_keys_stories_are_told_on_the_loopback_only() -> None:
    async with serving() as server:
        transport = httpx.ASGITransport(server.app, client=("10.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as elsewhere:
            assert (await elsewhere.get("/v1/requests/cmpl-x/trace")).status_code == 403


async def test_an_unknown_request_has_no_story() -> None:
    async with serving() as server:
        answer = await server.http.get("/v1/requests/cmpl-x/trace")
        assert (answer.status_code, answer.json()["error"]["param"]) == (404, "id")


async def test_an_engine_that_has_ended_still_tells() -> None:
    async with serving() as server:
        await server.complete("q\n", max_tokens=1, request_id="x")
        await server.client.close()
        assert kinds((await story(server, "cmpl-x"))[0])[-1] == "finished"


def test_only_so_many_ended_requests_are_remembered() -> None:
    flights = Flights()
    for number in range(MAX_ENDED + 10):
        with flights.entered({str(number): Flight(f"id{number}", 0, "", "m", 0)}):
            pass
    assert (list(flights.remembered("id9")), len(list(flights.remembered("id10")))) == ([], 1)
