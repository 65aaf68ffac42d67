"""Shows how long work goes on: bars on a terminal, a few plain lines elsewhere. Writes to standard error only."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

PLAIN_STEPS = 4
"""Lines that a piece of work gets without a terminal."""
PLAIN_LEAST = 64 * 2**20
"""Bytes below which it gets only the first of them."""


def progress(console: Console) -> "Bars | Lines":
    """What fits the console: see `chairlift.models.fetch.Progress`."""
    if console.is_terminal:
        return Bars(console)
    return Lines(lambda text: console.print(text, markup=False, soft_wrap=True))


class Bars:
    """One bar at a time."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._running: Progress | None = None

    def start(self, label: str, total_bytes: int | None) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        running = self._running = Progress(*columns, console=self._console)
        running.add_task(label, total=total_bytes)
        running.start()

    def advance(self, count: int) -> None:
        if self._running is not None:
            self._running.advance(self._running.task_ids[0], count)

    def done(self) -> None:
        if self._running is not None:
            self._running.stop()
        self._running = None

    def notice(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


class Lines:
    """A line at the start of each piece of work, and one for every quarter of it."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._label = ""
        self._total = 0
        self._seen = 0
        self._step = 0

    def start(self, label: str, total_bytes: int | None) -> None:
        self._label, self._total, self._seen, self._step = label, total_bytes or 0, 0, 0
        size = f" ({self._total / 2**20:.0f} MiB)" if self._total else ""
        self._write(f"{label}{size}")

    def advance(self, count: int) -> None:
        self._seen += count
        step = self._seen * PLAIN_STEPS // self._total if self._total >= PLAIN_LEAST else 0
        if self._step < step < PLAIN_STEPS:
            self._write(f"{self._label}: {100 * step // PLAIN_STEPS} %")
        self._step = max(self._step, step)

    def done(self) -> None:
        self._label = ""

    def notice(self, text: str) -> None:
        self._write(text)


@contextmanager
def steps(console: Console, label: str, total: int) -> "Iterator[StepBar | StepLines]":
    """Shows work that is counted in steps of any kind: `advance(count)`, and `note(text)` for what was just finished."""
    if not console.is_terminal:
        yield StepLines(lambda text: console.print(text, markup=False, soft_wrap=True))
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, auto_refresh=False) as running:
        yield StepBar(running, label, total)


class StepBar:
    """It is drawn for every hundredth, and by no thread of its own, which would take time from what is measured."""

    def __init__(self, running: Progress, label: str, total: int) -> None:
        self._running = running
        self._task = running.add_task(label, total=total)
        self._part = max(1, total // 100)
        self._undrawn = 0

    def advance(self, count: int) -> None:
        self._running.advance(self._task, count)
        self._undrawn += count
        if self._undrawn >= self._part:
            self._running.refresh()
            self._undrawn = 0

    def note(self, text: str) -> None:
        self._running.console.print(text, markup=False, soft_wrap=True)
        self._running.refresh()


class StepLines:
    """Only what was finished."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write

    def advance(self, count: int) -> None: ...

    def note(self, text: str) -> None:
        self._write(text)
