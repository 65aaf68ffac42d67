"""Runs an engine core in a thread: wakes it when there is something to do, and keeps its failures from spreading.

Knows threads, a clock and sinks; knows nothing of streams and HTTP. An idle loop sleeps until a command or a timer wakes it.
"""

import logging
import threading
from collections.abc import Callable, Iterable

from chairlift.core.errors import ExecutorLost
from chairlift.core.events import Health, Step
from chairlift.core.ports import Sink
from chairlift.engine.core import Command, EngineCore

log = logging.getLogger(__name__)

MAX_DOUBTS = 3
"""Failures in a row that no request explains, after which the engine gives up."""

STALL_S = 60.0
"""A step that has been running for longer than this is no longer called healthy."""


class EngineLoop:
    """The thread of one engine. `publish` is called with every step, and `failed` once if the engine ends by a fault."""

    def __init__(
        self,
        core: EngineCore,
        *,
        clock: Callable[[], float],
        publish: Callable[[Step], None],
        failed: Callable[[str], None],
        sinks: Iterable[Sink] = (),
    ) -> None:
        self.clock = clock
        self._core = core
        self._publish = publish
        self._failed = failed
        self._sinks = list(sinks)
        self._telling = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self.failure: str | None = None
        """Why the engine has ended, if it did by a fault."""
        self._lost: str | None = None
        """Why the executor is gone, if that was told while it had nothing to do."""
        self._step_began: float | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, command: Command) -> None:
        """Any thread may call this. The command is taken before the next step, or in the midst of the running one."""
        self._core.inbox.append(command)
        self._wake.set()

    def tell_refusal(self, reason: str) -> None:
        self._tell_sinks(lambda sink: sink.on_refusal(reason))

    def stop(self) -> None:
        """Ends the thread after the running step. Returns when it has ended."""
        self._closing = True
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def health(self) -> Health:
        if self.failure is not None:
            return "failed"
        if self._closing or not self._thread.is_alive():
            return "closed"
        began = self._step_began
        return "stalled" if began is not None and self.clock() - began > STALL_S else "ok"

    def _run(self) -> None:
        try:
            self._loop()
        except ExecutorLost as error:
            log.error("the engine has failed: %s", error)
            self._end(error)
        except Exception as error:
            log.exception("the engine has failed")
            self._end(error)
        finally:
            self._core.close()

    def _loop(self) -> None:
        self._core.watch(self._lose)
        while not self._closing:
            self._wake.clear()
            if self._lost is not None:
                raise ExecutorLost(self._lost)
            self._step_began = self.clock()
            try:
                step = self._core.step(self._step_began)
            except ExecutorLost as error:
                self._fail_step(error)
                raise
            except Exception as error:
                log.exception("a step has failed")
                if not self._fail_step(error) or self._core.doubts >= MAX_DOUBTS:
                    raise
                continue
            self._step_began = None
            self._tell(step)
            if not step.plan.work:
                self._wake.wait(self._patience(step.wake_at))

    def _lose(self, why: str) -> None:
        self._lost = why
        self._wake.set()

    def _fail_step(self, error: Exception) -> bool:
        """False if it was not the executor that raised."""
        failed = self._core.fail_step(self.clock(), f"the model could not be run: {error}")
        if failed is not None:
            self._tell(failed)
        return failed is not None

    def _patience(self, wake_at: float | None) -> float | None:
        return None if wake_at is None else max(0.0, wake_at - self.clock())

    def _end(self, error: Exception) -> None:
        self.failure = f"the engine has failed: {error}"
        self._abandon(self.failure)
        self._failed(self.failure)

    def _abandon(self, message: str) -> None:
        """A last step, in which everyone gets an answer. If the scheduler is what has failed, the client answers alone."""
        try:
            self._tell(self._core.abandon(self.clock(), message))
        except Exception:
            log.exception("the requests of the failed engine could not be ended in order")

    def _tell(self, step: Step) -> None:
        """Sinks first: whoever has read an answer finds it counted."""
        self._tell_sinks(lambda sink: sink.on_step(step))
        self._publish(step)

    def _tell_sinks(self, tell: Callable[[Sink], None]) -> None:
        with self._telling:
            for sink in list(self._sinks):
                try:
                    tell(sink)
                except Exception:
                    log.exception("%s raised and is switched off", type(sink).__name__)
                    self._sinks.remove(sink)
