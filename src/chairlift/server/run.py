"""The life of a serving process: bind the port, load while answering, serve, drain, end with an exit code.

Knows signals, sockets and uvicorn; what is loaded comes in as a function, so it knows no models.

Exit codes: 0 after a signal, also if answers had to be cut; 1 if loading failed or the engine did. The first SIGTERM or SIGINT
drains: new requests get 503, running ones may go on for `shutdown_timeout_s` and then end with an error. The second ends
the process at once, in the midst of a step or of a prompt that is being prepared; for a third the system's own answer is
restored.
"""

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, NoReturn, TypeVar

import uvicorn
from starlette.types import ASGIApp

from chairlift.core.errors import ChairliftError, ConfigError
from chairlift.engine.client import EngineClient
from chairlift.server.app import create_app
from chairlift.server.protocol import LimitedProtocol
from chairlift.server.service import Service, State, World
from chairlift.server.settings import Settings

log = logging.getLogger(__name__)

BACKLOG = 2048
HEALTH_POLL_S = 0.5
"""How often the process looks whether its engine has failed."""
LAST_WORDS_S = 5
"""After the engine has ended, connections have so long to take their answers."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
EXIT_OK, EXIT_FAILED = 0, 1

Start = Callable[[], Service]
"""Makes the engine and its service. It is called on the event loop, as clients belong to one."""
Load = Callable[[], Start]
"""Fetches, reads and compiles. It is called in a thread, and takes as long as it takes."""

T = TypeVar("T")


class Ended(NamedTuple):
    """How serving has ended. `at_once`: nobody is to wait for threads that may still be at work."""

    code: int
    at_once: bool


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, before anything is loaded. Raises ConfigError with one clear line if there can be none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(_why_not(host, port, error)) from None


def _why_not(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use already; stop what runs there, or choose another with --port"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} may not be opened by this user; choose one above 1023 with --port"
    return f"cannot listen on {host}:{port}: {error.strerror or error}"


def serve(listener: socket.socket, load: Load, settings: Settings, *, world: World | None = None) -> int:
    """Serves until a signal or a failure, and returns the exit code. To be called in the main thread.

    After a second signal it does not return: it ends the process.
    """
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        ended = runner.run(run(listener, load, settings, world=world))
        if ended.at_once:
            _leave(ended.code)
        return ended.code


def _leave(code: int) -> NoReturn:
    """Both the event loop and the interpreter would wait for their worker threads, however long those take."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop  # is not there on Windows

    return uvloop.new_event_loop


async def run(listener: socket.socket, load: Load, settings: Settings, *, world: World | None = None) -> Ended:
    """The same on an event loop that is running already."""
    state = State(settings)
    server = web_server(create_app(state, world=world))
    signals = _Signals(asyncio.get_running_loop())
    with signals.caught():
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            ended = await _live(state, load, signals)
        finally:
            server.should_exit = True
            server.force_exit = not await _unless(signals.second, asyncio.shield(serving))
            await serving
        return Ended(ended.code, ended.at_once or signals.second.is_set())


def web_server(app: ASGIApp) -> uvicorn.Server:
    """Uvicorn as we use it, for sockets that are bound already. It leaves signals to its caller."""
    return _Server(
        uvicorn.Config(
            app,
            http=LimitedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # an address is that of the connection: `callers.peer`
            timeout_graceful_shutdown=LAST_WORDS_S,
        )
    )


async def _live(state: State, load: Load, signals: "_Signals") -> Ended:
    loading = asyncio.ensure_future(_in_thread(load))
    if not await _unless(signals.first, loading):
        log.info("stopped while loading")
        # An interpreter that ends beneath a thread that compiles takes what that thread still uses: the process would crash.
        return Ended(EXIT_OK, at_once=True)
    try:
        service = loading.result()()
    except ChairliftError as error:
        log.error("%s", error)
        return Ended(EXIT_FAILED, at_once=False)
    except Exception:
        log.exception("the model could not be loaded")
        return Ended(EXIT_FAILED, at_once=False)
    state.ready(service)
    log.info("%s is ready", service.names[0])
    try:
        return Ended(await _serve_until_end(state, service.client, signals), at_once=False)
    finally:
        await _unless(signals.second, asyncio.ensure_future(service.client.close()))


async def _serve_until_end(state: State, client: EngineClient, signals: "_Signals") -> int:
    if await _unless(signals.first, asyncio.ensure_future(_failure(client))):
        log.error("the engine has failed: the server ends")
        return EXIT_FAILED
    state.drain()
    running = client.snapshot().running + client.snapshot().waiting
    log.info("shutting down: %d requests have up to %g s to finish", running, state.settings.shutdown_timeout_s)
    await _unless(signals.second, asyncio.ensure_future(client.drain(state.settings.shutdown_timeout_s)))
    return EXIT_OK


async def _failure(client: EngineClient) -> None:
    """Returns once the engine has failed. Its thread may be stuck or gone, so it is asked rather than listened to."""
    while client.health() != "failed":  # noqa: ASYNC110
        await asyncio.sleep(HEALTH_POLL_S)


async def _unless(event: asyncio.Event, work: "asyncio.Future[Any]") -> bool:
    """Waits for `work`, but not beyond `event`. Says whether the work was done; otherwise it is cancelled."""
    waiting = asyncio.ensure_future(event.wait())
    await asyncio.wait((work, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if work.done():
        return True
    work.cancel()
    await asyncio.wait((work,))
    return False


async def _in_thread(function: Callable[[], T]) -> T:
    """Runs `function` in a thread that does not hold the process up when it is to end in the midst of it."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(callback: Callable[..., None], outcome: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody wants to know any more
            loop.call_soon_threadsafe(lambda: None if done.done() else callback(outcome))

    def work() -> None:
        try:
            result = function()
        except Exception as error:  # noqa: BLE001 (carried to whoever awaits)
            tell(done.set_exception, error)
        else:
            tell(done.set_result, result)

    threading.Thread(target=work, name="load", daemon=True).start()
    return await done


class _Signals:
    """Turns the signals that end a process into events: the first, and the second."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    @contextlib.contextmanager
    def caught(self) -> Generator[None]:
        for number in SIGNALS:
            self._loop.add_signal_handler(number, self._heard)
        try:
            yield
        finally:
            self._release()

    def _heard(self) -> None:
        if self.first.is_set():
            self.second.set()
            self._release()
        self.first.set()

    def _release(self) -> None:
        for number in SIGNALS:
            self._loop.remove_signal_handler(number)


class _Server(uvicorn.Server):
    """Uvicorn with its hands off the signals: it would end at the first one, and stop accepting before anything has drained."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield
