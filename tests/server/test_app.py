"""The table of routes, the states of the server, keys, names of requests, and origins."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import datetime
from functools import partial

import httpx
import pytest
import tiny
from executors import solo
from tiny import GatedExecutor, Server, serving, until

from chairlift import __version__
from chairlift.server.app import create_app
from chairlift.server.service import State, World
from chairlift.server.settings import Settings
from chairlift.text.template import ChatTemplate

READING = ["/v1/models", "/v1/models/tiny", "/metrics"]
ASKING = ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"]


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as server:
        yield server


@pytest.fixture
async def loading() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(create_app(State(Settings()))), base_url="http://test") as http:
        yield http


@pytest.mark.parametrize("path", ["/health", "/ping", *READING])
async def test_while_loading_nothing_is_ready(loading: httpx.AsyncClient, path: str) -> None:
    answer = await loading.get(path)
    assert answer.status_code == 503
    assert "loading" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ASKING)
async def test_while_loading_nothing_is_answered(loading: httpx.AsyncClient, path: str) -> None:
    assert (await loading.post(path, content="{}")).status_code == 503


async def test_the_version_is_known_at_once(loading: httpx.AsyncClient) -> None:
    assert (await loading.get("/version")).json() == {"version": __version__}


@pytest.mark.parametrize("path", ["/health", "/ping"])
async def test_health_is_empty(server: Server, path: str) -> None:
    answer = await server.http.get(path)
    assert (answer.status_code, answer.content) == (200, b"")


async def test_while_draining_health_is_bad_and_new_requests_are_refused(server: Server) -> None:
    server.state.drain()
    assert (await server.http.get("/health")).status_code == 503
    assert (await server.chat()).status_code == 503
    assert (await server.http.get("/metrics")).status_code == 200


async def test_health_is_bad_once_the_engine_has_ended(server: Server) -> None:
    await server.client.close()
    assert (await server.http.get("/health")).status_code == 503
    assert (await server.chat()).status_code == 503


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/nope", 404), ("GET", ASKING[0], 405), ("POST", "/health", 405)]
)
async def test_what_is_not_there_is_said_in_openais_shape(server: Server, method: str, path: str, status: int) -> None:
    answer = await server.http.request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == status


async def test_the_model_card(server: Server) -> None:
    card = (await server.http.get("/v1/models/alias")).json()
    assert (card["id"], card["object"], card["root"], card["max_model_len"]) == ("alias", "model", "tiny", 256)


async def test_an_unknown_model_card_is_404(server: Server) -> None:
    assert (await server.http.get("/v1/models/org/other")).status_code == 404


async def test_a_text_is_tokenised(server: Server) -> None:
    answer = (await server.post("/tokenize", {"prompt": "hé<|im_end|>", "return_token_strs": True})).json()
    assert answer == {
        "count": 4,
        "max_model_len": 256,
        "tokens": [104, 0xC3, 0xA9, tiny.END],
        "token_strs": ["h", "Ã", "©", "<|im_end|>"],
    }


async def test_messages_are_tokenised_as_a_chat_would_be(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    counted = (await server.post("/tokenize", body)).json()["count"]
    used = (await server.chat("hi", max_tokens=1)).json()["usage"]["prompt_tokens"]
    assert counted == used


@pytest.mark.parametrize(
    "body", [{}, {"prompt": "x", "messages": []}, {"prompt": 1}, {"prompt": "x", "messages": [{"role": "user"}]}]
)
async def test_tokenize_wants_one_of_two(server: Server, body: object) -> None:
    assert (await server.post("/tokenize", body)).status_code == 400


async def test_tokens_become_text_again(server: Server) -> None:
    assert (await server.post("/detokenize", {"tokens": [104, 105, tiny.END]})).json() == {"prompt": "hi<|im_end|>"}


@pytest.mark.parametrize("tokens", [None, "x", [1.5], [-1], [10**9]])
async def test_other_tokens_are_refused(server: Server, tokens: object) -> None:
    assert (await server.post("/detokenize", {"tokens": tokens})).status_code == 400


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/version", "/nope"])
async def test_with_a_key_set_everything_needs_one(path: str) -> None:
    async with serving(settings=Settings(api_keys=("one", "two"))) as server:
        for headers in ({}, {"authorization": "Bearer three"}, {"authorization": "Basic one"}, {"authorization": "one"}):
            answer = await server.http.get(path, headers=headers)
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == 401
        for key in ("one", "two"):
            assert (await server.http.get(path, headers={"authorization": f"Bearer {key}"})).status_code != 401


@pytest.mark.parametrize("path", ["/health", "/ping"])
async def test_probes_need_no_key(path: str) -> None:
    async with serving(settings=Settings(api_keys=("one",))) as server:
        assert (await server.http.get(path)).status_code == 200


@pytest.mark.parametrize(("sent", "kept"), [("mine-1", True), ("no spaces", False), ("x" * 129, False), (None, False)])
async def test_a_request_gets_its_name_back_if_it_is_fit(sent: str | None, kept: bool) -> None:
    async with serving(settings=Settings(request_id_headers=True)) as server:
        answer = await server.chat(max_tokens=1) if sent is None else await _named(server, sent)
        name = answer.headers["x-request-id"]
        assert (name == sent) is kept
        assert answer.json()["id"] == f"chatcmpl-{name}"


async def _named(server: Server, name: str) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    return await server.post("/v1/chat/completions", body, headers={"x-request-id": name})


async def test_names_are_not_sent_back_by_default(server: Server) -> None:
    assert "x-request-id" not in (await _named(server, "mine")).headers


@pytest.mark.parametrize("settings", [Settings(), Settings(request_id_headers=True)])
async def test_a_name_that_a_client_gives_is_that_of_its_answer(settings: Settings) -> None:
    async with serving(settings=settings) as server:
        assert (await _named(server, "mine")).json()["id"] == "chatcmpl-mine"


async def test_two_requests_of_one_name_are_answered_apart_and_the_name_may_be_used_again() -> None:
    async with serving(executor=GatedExecutor) as server:
        assert isinstance(server.executor, GatedExecutor)
        bodies = [{"prompt": prompt, "max_tokens": 50, "request_id": "mine"} for prompt in ("a\n", "bb\n", "a\n")]
        ask = partial(server.post, "/v1/completions", headers={"x-request-id": "mine"})
        together = [asyncio.create_task(ask(body)) for body in bodies[:2]]
        await until(lambda: len(server.service.flights._flights) == 2)
        server.executor.open()
        answers = [*await asyncio.gather(*together), await ask(bodies[2])]
        assert {answer.json()["id"] for answer in answers} == {"cmpl-mine"}
        for body, answer in zip(bodies, answers, strict=True):
            alone = bytes(solo(tuple(body["prompt"].encode()), tiny.letters, 50)).decode()
            assert answer.json()["choices"][0]["text"] == alone
        assert (await server.counted(3)).finished == {"stop": 0, "length": 3, "abort": 0, "error": 0}
        await server.settled()


async def test_other_origins_are_let_in_only_by_name() -> None:
    async with serving(settings=Settings(allowed_origins=("http://good",), api_keys=("k",))) as server:
        preflight = {"access-control-request-method": "POST"}
        good = await server.http.options(ASKING[0], headers={"origin": "http://good"} | preflight)
        bad = await server.http.options(ASKING[0], headers={"origin": "http://bad"} | preflight)
        assert good.headers["access-control-allow-origin"] == "http://good"
        assert "access-control-allow-origin" not in bad.headers


async def test_origins_are_closed_by_default(server: Server) -> None:
    assert "access-control-allow-origin" not in (await server.http.get("/health", headers={"origin": "http://x"})).headers


async def test_series_do_not_grow_with_what_clients_send(server: Server) -> None:
    await server.chat(max_tokens=1)
    before = len((await server.http.get("/metrics")).text.splitlines())
    for index in range(20):
        await server.http.get(f"/{index}")
        await server.chat(model=f"m{index}")
        await server.chat(request_id=f"r{index}", max_tokens=1)
    assert len((await server.http.get("/metrics")).text.splitlines()) == before


async def test_metrics_after_two_answers(server: Server) -> None:
    await server.complete("x" * 39 + "\n", max_tokens=3)
    await server.complete("x" * 39 + "\n", max_tokens=3)
    await server.counted(2)
    await server.settled()
    page = (await server.http.get("/metrics")).text
    labels = 'engine="0",model_name="tiny"'
    for line in (
        f"vllm:prompt_tokens_total{{{labels}}} 80.0",
        f"vllm:prefix_cache_hits_total{{{labels}}} 32.0",
        f"vllm:generation_tokens_total{{{labels}}} 6.0",
        'vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"} 2.0',
        f"vllm:num_requests_running{{{labels}}} 0.0",
    ):
        assert line in page.splitlines()


def dated(server: Server, clock: Callable[[], datetime]) -> ChatTemplate:
    """A template that asks for the time, and so does what the clock does."""
    template = r"{{ strftime_now('rendered') + '\n' }}"
    return ChatTemplate(tiny.source(template=template), server.service.tokenizer, clock=clock)


class SlowClock:
    """Tells the time when it may, as a template or a tokenizer does that has a lot to do."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.may_end = threading.Event()

    def __call__(self) -> datetime:
        self.began.set()
        self.may_end.wait()
        return datetime.min


def broken_chance(_bits: int) -> int:
    raise OSError("secret")


async def test_while_a_prompt_is_prepared_the_server_answers_others(server: Server) -> None:
    slow = SlowClock()
    server.state.ready(replace(server.service, template=dated(server, slow)))
    asking = asyncio.create_task(server.chat(max_tokens=1))
    await asyncio.to_thread(slow.began.wait)
    assert (await server.http.get("/health")).status_code == 200
    assert (await server.complete(max_tokens=1)).status_code == 200
    slow.may_end.set()
    assert (await asking).json()["usage"]["prompt_tokens"] == len("rendered\n")


async def test_our_own_mistakes_are_500_without_their_names(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    server.state.ready(replace(server.service, world=World(randbits=broken_chance)))
    answer = await server.chat()
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "OSError" not in answer.text
    assert "secret" in caplog.text
