"""The life of a serving process: loading, serving, draining, failing. Signals are real, and reach this very process."""

import asyncio
import contextlib
import signal
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from processes import END_S, python, until
from tiny import GatedExecutor, Setup, make_service, script

from chairlift.core.errors import ConfigError, ModelError
from chairlift.server.run import Ended, Start, bind, run
from chairlift.server.service import Service
from chairlift.server.settings import Settings

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "q"}]}
STUCK = Path(__file__).parents[1] / "support" / "stuck_server.py"


@dataclass
class Process:
    """A serving process within the test's."""

    code: asyncio.Task[Ended]
    http: httpx.AsyncClient
    started: "Started"

    async def until_ready(self) -> None:
        async with asyncio.timeout(10):
            while (await self.http.get("/health")).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def until_unready(self) -> None:
        async with asyncio.timeout(10):
            while (await self.http.get("/health")).status_code == 200:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def ends(self) -> int:
        async with asyncio.timeout(10):
            return (await self.code).code


class Started:
    """Makes the service when loading is done, and keeps hold of its executor."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self.executor: GatedExecutor | None = None

    def __call__(self) -> Service:
        service, executor, _ = make_service(self._setup)
        assert isinstance(executor, GatedExecutor)
        self.executor = executor
        return service

    @property
    def gate(self) -> GatedExecutor:
        assert self.executor is not None
        return self.executor


@asynccontextmanager
async def process(
    settings: Settings | None = None, load: Callable[[Started], Start] = lambda started: started
) -> AsyncIterator[Process]:
    settings = settings or Settings()
    started = Started(Setup(next_token=script("abcdef"), executor=GatedExecutor, settings=settings))
    listener = bind("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    code = asyncio.create_task(run(listener, lambda: load(started), settings))
    async with httpx.AsyncClient(base_url=url, timeout=10) as http:
        try:
            yield Process(code, http, started)
        finally:
            if started.executor is not None:
                started.gate.open()
            if not code.done():
                signal.raise_signal(signal.SIGTERM)
                signal.raise_signal(signal.SIGTERM)
                with contextlib.suppress(asyncio.CancelledError):
                    await code


def test_a_port_in_use_is_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is in use"):
            bind("127.0.0.1", port)


def test_a_host_that_is_not_ours_is_one_clear_line() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1"):
        bind("192.0.2.1", 8000)


async def test_while_it_loads_it_answers_that_it_does() -> None:
    may_load = threading.Event()

    def load(started: Started) -> Start:
        may_load.wait()
        return started

    async with process(load=load) as server:
        assert (await server.http.get("/health")).status_code == 503
        assert (await server.http.get("/v1/models")).status_code == 503
        assert "loading" in (await server.http.post(CHAT, json=BODY)).json()["error"]["message"]
        may_load.set()
        await server.until_ready()
        assert (await server.http.get("/v1/models")).status_code == 200


async def test_a_signal_while_loading_ends_it_at_once() -> None:
    may_load = threading.Event()

    def load(started: Started) -> Start:
        may_load.wait()
        return started

    async with process(load=load) as server:
        await server.http.get("/health")
        signal.raise_signal(signal.SIGINT)
        assert await server.ends() == 0
        assert (await server.code).at_once  # or the interpreter would end beneath the thread that still loads
        may_load.set()


@pytest.mark.parametrize("error", [ModelError("the file is cut"), RuntimeError("a bug")])
async def test_loading_that_fails_is_told_and_ends_it(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    def load(started: Started) -> Start:
        raise error

    async with process(load=load) as server:
        assert await server.ends() == 1
    assert str(error) in caplog.text
    assert ("Traceback" in caplog.text) is not isinstance(error, ModelError)


async def test_a_signal_when_nothing_runs_ends_it() -> None:
    async with process() as server:
        await server.until_ready()
        signal.raise_signal(signal.SIGTERM)
        assert await server.ends() == 0
        with pytest.raises(httpx.ConnectError):
            await server.http.get("/health")


async def test_a_running_answer_may_finish_and_new_ones_are_refused() -> None:
    async with process() as server:
        await server.until_ready()
        server.started.gate.allow()  # a stream's status goes out with its first token
        async with server.http.stream("POST", CHAT, json=BODY | {"stream": True}) as answer:
            signal.raise_signal(signal.SIGTERM)
            await server.until_unready()
            assert (await server.http.post(CHAT, json=BODY)).status_code == 503
            server.started.gate.open()
            lines = [line async for line in answer.aiter_lines() if line]
        assert '"finish_reason":"stop"' in lines[-2]
        assert lines[-1] == "data: [DONE]"
        assert await server.ends() == 0


async def test_an_answer_that_takes_too_long_ends_with_an_error() -> None:
    async with process(Settings(shutdown_timeout_s=0)) as server:
        await server.until_ready()
        server.started.gate.allow()  # a stream's status goes out with its first token
        async with server.http.stream("POST", CHAT, json=BODY | {"stream": True}) as answer:
            signal.raise_signal(signal.SIGTERM)
            lines = [line async for line in answer.aiter_lines() if line]
        assert '"error":{"message":"the server is shutting down"' in lines[-2]
        assert lines[-1] == "data: [DONE]"
        server.started.gate.open()
        assert await server.ends() == 0


async def test_a_second_signal_does_not_wait() -> None:
    async with process(Settings(shutdown_timeout_s=1000)) as server:
        await server.until_ready()
        server.started.gate.allow()  # a stream's status goes out with its first token
        async with server.http.stream("POST", CHAT, json=BODY | {"stream": True}):
            signal.raise_signal(signal.SIGTERM)
            await server.until_unready()
            signal.raise_signal(signal.SIGTERM)
            assert await server.ends() == 0
            assert (await server.code).at_once


@contextmanager
def stuck(shutdown_timeout_s: int) -> Generator[tuple[subprocess.Popen[str], threading.Thread]]:
    """A server in the midst of a step that never ends, after its first signal, and the thread of a client that waits."""
    with python(STUCK, str(shutdown_timeout_s)) as process:
        url = until(process, "http://")
        until(process, "tiny is ready")
        asking = threading.Thread(target=_ask_in_vain, args=(url,))
        asking.start()
        until(process, "computing")
        process.send_signal(signal.SIGTERM)
        until(process, "shutting down")
        yield process, asking
        asking.join()


def test_a_second_signal_ends_the_process_while_answers_may_go_on() -> None:
    with stuck(shutdown_timeout_s=1000) as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(END_S) == 0


def test_a_second_signal_ends_the_process_while_it_waits_for_a_step() -> None:
    with stuck(shutdown_timeout_s=0) as (process, asking):
        asking.join()
        process.send_signal(signal.SIGTERM)
        assert process.wait(END_S) == 0


def _ask_in_vain(url: str) -> None:
    with contextlib.suppress(httpx.HTTPError):
        httpx.post(url + CHAT, json=BODY, timeout=END_S)


async def test_an_engine_that_fails_ends_it_after_its_requests_are_answered() -> None:
    async with process() as server:
        await server.until_ready()
        server.started.gate.fail = "out of luck"
        server.started.gate.open()
        assert (await server.http.post(CHAT, json=BODY)).status_code == 500
        assert await server.ends() == 1
