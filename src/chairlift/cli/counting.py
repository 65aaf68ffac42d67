"""Shows how far counted work is, and how much time is left: a bar on a terminal, a few plain lines elsewhere."""

from collections.abc import Callable
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

PLAIN_STEPS = 4
"""Lines that a piece of work gets without a terminal."""
PLAIN_LEAST = 1000
"""Less than this gets only the first of them."""


class Counter(Protocol):
    """Is told how far one piece of work after another is. `start` and `done` come in pairs."""

    def start(self, label: str, total: int) -> None: ...
    def advance(self, count: int) -> None: ...
    def done(self) -> None: ...
    def notice(self, text: str) -> None: ...


def counter(console: Console) -> Counter:
    """What fits the console."""
    if console.is_terminal:
        return CountingBars(console)
    return CountingLines(lambda text: console.print(text, markup=False, soft_wrap=True))


class CountingBars:
    """One bar at a time. It vanishes when its work is done."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._running: Progress | None = None

    def start(self, label: str, total: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        running = self._running = Progress(*columns, console=self._console, transient=True)
        running.add_task(label, total=total)
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


class CountingLines:
    """A line at the start of each piece of work, and one for every quarter of it."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._label = ""
        self._total = self._seen = 0

    def start(self, label: str, total: int) -> None:
        self._label, self._total, self._seen = label, total, 0
        self._write(label)

    def advance(self, count: int) -> None:
        before, self._seen = self._seen, self._seen + count
        step = self._seen * PLAIN_STEPS // self._total
        if self._total >= PLAIN_LEAST and before * PLAIN_STEPS // self._total < step < PLAIN_STEPS:
            self._write(f"{self._label}: {100 * step // PLAIN_STEPS} %")

    def done(self) -> None:
        self._label = ""

    def notice(self, text: str) -> None:
        self._write(text)
