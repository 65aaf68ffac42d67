"""Writes down what an engine does, so that it can be replayed: a sink of steps, and a thread that puts them into a file.

Knows files and threads; what the lines say is the business of `engine.tape`. The engine only ever hands a step over. If the
file cannot take it, or not fast enough, the record ends there with one line in the log, and no request is hurt.
"""

import contextlib
import logging
import os
import queue
import threading
from pathlib import Path
from typing import Self, TextIO

from chairlift.core.events import Step
from chairlift.engine.tape import Writer

log = logging.getLogger(__name__)

MAX_BACKLOG = 4096
"""Steps that wait to be written. A disk that is further behind will not catch up."""
CLOSE_S = 10.0
"""How long closing waits for a disk that is stuck."""


def create(path: Path) -> TextIO:
    """A new file that only its owner may read: a record says who asked for how much, and when. Raises OSError."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii")


class Recorder:
    """The sink. It owns the file from `start` on; `close` it at the end, after the engine."""

    def __init__(self, file: TextIO, writer: Writer, header: str, *, backlog: int = MAX_BACKLOG) -> None:
        self._file = file
        self._writer = writer
        self._header = header
        self._steps: queue.Queue[Step | None] = queue.Queue(backlog)
        self._over = False
        """Nothing is taken any more: it was closed, or it has failed."""
        self._thread = threading.Thread(target=self._run, name="record", daemon=True)

    def start(self) -> Self:
        self._thread.start()
        return self

    def on_refusal(self, reason: str) -> None: ...

    def on_step(self, step: Step) -> None:
        if self._over:
            return
        try:
            self._steps.put_nowait(step)
        except queue.Full:
            self._over = True
            log.error("the record ends here, the server goes on: %d steps wait to be written", self._steps.maxsize)

    def close(self) -> None:
        """Writes what is left. A disk that is stuck holds nobody up for long."""
        self._over = True
        if not self._thread.is_alive():
            return
        with contextlib.suppress(queue.Full):
            self._steps.put(None, timeout=CLOSE_S)
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        try:
            with self._file:
                self._write()
        except Exception as error:  # noqa: BLE001 (whatever it is, the engine goes on)
            self._over = True
            log.error("the record ends here, the server goes on: %s", error)

    def _write(self) -> None:
        self._file.write(self._header + "\n")
        while (step := self._next()) is not None:
            for line in self._writer.step(step):
                self._file.write(line + "\n")

    def _next(self) -> Step | None:
        """The next step, or None at the end. Before it waits, what is written so far is made to be in the file."""
        if self._steps.empty():
            self._file.flush()
        return self._steps.get()
