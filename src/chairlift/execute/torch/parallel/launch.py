"""Starts the processes of the other ranks, hears what becomes of them, and ends them.

Knows processes and channels; knows no tensors. A follower ends by itself when its channel does, so none outlives this process,
however that ends.
"""

import contextlib
import logging
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from chairlift.core.errors import ChairliftError, ConfigError, ExecutorLost, ModelError
from chairlift.execute.torch.parallel.channel import END, Broken, Channel, Failed, Message, Order, Post

log = logging.getLogger(__name__)

FOLLOWER = "chairlift.execute.torch.parallel.follow"
CLOSE_S = 10.0
"""A follower has so long to end after it was asked to."""
NEWS_S = 2.0
"""After a failure: if a follower is to blame for it, that is known by then."""
OTHERS_S = 0.5
"""One rank that is killed makes the others fail. Whoever speaks first is not blamed before so long."""

_ERRORS: dict[str, type[ChairliftError]] = {kind.__name__: kind for kind in (ConfigError, ModelError)}
"""What a follower says of the caller's doing is raised as it is."""

M = TypeVar("M", bound=Message)


@dataclass(slots=True)
class _Follower:
    rank: int
    process: subprocess.Popen[bytes]
    channel: Channel
    said: list[Message] = field(default_factory=list[Message])
    left: bool = False
    """It has ended, and nobody had asked it to."""

    @property
    def killed(self) -> bool:
        return (self.process.returncode or 0) < 0

    @property
    def failure(self) -> Failed | None:
        return next((message for message in self.said if isinstance(message, Failed)), None)


class Crew:
    """The followers: ranks 1, 2, … of which every one is a process. `lost` is set when one of them has ended unasked."""

    def __init__(self, devices: Sequence[str], *, timeout_s: float, follower: str = FOLLOWER) -> None:
        """`devices` are those of all ranks, the first one's included. Nobody may need longer than `timeout_s` to take a plan.

        `follower` is the module that is run.
        """
        self.lost = threading.Event()
        self._devices, self._timeout_s, self._module = devices, timeout_s, follower
        self._followers: list[_Follower] = []
        self._news = threading.Condition()
        self._closing = False
        self._judged: ChairliftError | None = None
        self._watcher = threading.Thread(target=self._watch, name="ranks", daemon=True)

    def start(self) -> "Crew":
        """Returns while they are still starting. ConfigError if the system has no room for one more process or file."""
        for rank, device in enumerate(self._devices[1:], start=1):
            try:
                self._followers.append(self._started(rank, device))
            except OSError as error:
                raise ConfigError(f"rank {rank} cannot be started: {error.strerror}") from None
        self._watcher.start()
        return self

    def order(self, order: Order) -> None:
        self.send(msgspec.json.encode(order))

    def send(self, frame: bytes) -> None:
        """The same for all of them."""
        for follower in self._followers:
            try:
                follower.channel.send(frame)
            except TimeoutError:
                raise ExecutorLost(f"{_name(follower)} has taken no plan for {self._timeout_s:g} s") from None

    def expect(self, kind: type[M]) -> list[M]:
        """Waits for a message of this kind from every follower. Raises as `check` if one of them ends instead."""
        with self._news:
            self._news.wait_for(lambda: self.lost.is_set() or all(_find(one.said, kind) for one in self._followers))
        self.check()
        return [found for one in self._followers for found in (_find(one.said, kind),) if found is not None]

    def check(self) -> None:
        """Raises what a follower has failed with, or ExecutorLost if it has just ended."""
        if self.lost.is_set():
            raise self._verdict()

    def await_loss(self) -> str | None:
        """Why a follower has ended unasked, when one has. None if this crew is closed before."""
        with self._news:
            self._news.wait_for(lambda: self._closing or self.lost.is_set())
        return str(self._verdict()) if self.lost.is_set() else None

    def explain(self, *, within_s: float = NEWS_S) -> None:
        """To be called when something else has failed: raises as `check` if that was a follower's doing."""
        self.lost.wait(within_s)
        self.check()

    def close(self, *, at_once: bool = False) -> None:
        """Returns when all of them have ended: after what they were asked for, or `at_once`."""
        with self._news:
            self._closing = True
            self._news.notify_all()
        for follower in self._followers:
            if at_once or self.lost.is_set():
                follower.process.kill()
                continue
            with contextlib.suppress(OSError):
                follower.channel.send(END)
        for follower in self._followers:
            _wait(follower.process)
        if self._watcher.is_alive():
            self._watcher.join()
        for follower in self._followers:
            follower.channel.close()

    def _started(self, rank: int, device: str) -> _Follower:
        ours, theirs = Channel.pair()
        post = Post(rank, len(self._devices), device, theirs.fileno())
        try:
            process = subprocess.Popen(  # noqa: S603  (this very program)
                [sys.executable, "-P", "-m", self._module, msgspec.json.encode(post).decode()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},  # noqa: PTH109
                start_new_session=True,  # Ctrl-C in a terminal is for rank 0
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.limit(self._timeout_s)
        return _Follower(rank, process, ours)

    def _watch(self) -> None:
        with selectors.DefaultSelector() as selector:
            for follower in self._followers:
                selector.register(follower.channel, selectors.EVENT_READ, follower)
            while selector.get_map():
                for key, _ in selector.select():
                    if not self._heard(key.data):
                        selector.unregister(key.fileobj)

    def _heard(self, follower: _Follower) -> bool:
        """False at the end of its channel, when its process has ended as well."""
        try:
            message = follower.channel.hear()
        except (Broken, OSError) as error:
            message = Failed("Broken", f"it said what nobody understands: {error}")
            follower.process.kill()
        if message is None:
            _wait(follower.process)
        with self._news:
            if message is not None:
                follower.said.append(message)
            elif not self._closing:
                follower.left = True
                self.lost.set()
            self._news.notify_all()
        return message is not None

    def _verdict(self) -> ChairliftError:
        """The same for all who ask."""
        with self._news:
            self._news.wait_for(lambda: self._judged or any(one.killed for one in self._followers), timeout=OTHERS_S)
            self._judged = self._judged or self._judge([one for one in self._followers if one.left])
        return self._judged

    def _judge(self, gone: Sequence[_Follower]) -> ChairliftError:
        guilty = next((one for one in gone if one.killed), gone[0])
        failure = guilty.failure
        if failure is None:
            return ExecutorLost(f"{_name(guilty)} {_how(guilty.process.returncode)}")
        if failure.trace:
            log.error("rank %d has failed\n%s", guilty.rank, failure.trace)
        first = (failure.text.strip() or failure.error).splitlines()[0]
        return _ERRORS.get(failure.error, ExecutorLost)(f"rank {guilty.rank}: {first}")


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(CLOSE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _find(said: Sequence[Message], kind: type[M]) -> M | None:
    return next((message for message in said if isinstance(message, kind)), None)


def _name(follower: _Follower) -> str:
    return f"rank {follower.rank} (process {follower.process.pid})"


def _how(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"has ended with code {code}"
