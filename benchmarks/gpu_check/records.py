"""What a stage finds, as lines of JSON in a file: what was found before a crash is not lost. Knows no stage, and no PyTorch."""

import json
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """One case that was measured; what it does not have is None. Times and rates are medians of `runs`.

    `bytes_per_step` and `operations_per_step` are what a step asks of the device at least (`chairlift.core.costs`), and
    `gap_ms` is the time from the end of one step's computation to the beginning of the next.
    """

    case: str
    unit: str
    value: float
    runs: tuple[float, ...] = ()
    step_ms: float | None = None
    gap_ms: float | None = None
    bytes_per_step: int | None = None
    operations_per_step: int | None = None


@dataclass
class Found:
    """Everything that one stage wrote down, in order; of what was written twice, the later."""

    facts: dict[str, str] = field(default_factory=dict[str, str])
    figures: list[Figure] = field(default_factory=list[Figure])
    failures: list[str] = field(default_factory=list[str])
    fatal: str | None = None
    """Why no other stage can run either."""

    def take(self, figure: Figure) -> None:
        """In the place of an earlier one of the same case, if there is one: it has more runs."""
        at = next((at for at, one in enumerate(self.figures) if one.case == figure.case), len(self.figures))
        self.figures[at : at + 1] = [figure]


class Record:
    """Writes down what a stage finds, and tells on the terminal how far it is. `began` is a moment of `time.monotonic`."""

    def __init__(self, path: Path, *, stage: str, began: float) -> None:
        self._path, self._stage, self._began = path, stage, began

    def fact(self, name: str, value: object) -> None:
        """Something that is so, and is not measured."""
        self._write("fact", [name, str(value)])
        self.progress(f"{name}: {value}")

    def figure(self, figure: Figure) -> None:
        self._write("figure", asdict(figure))
        self.progress(f"{figure.case}: {figure.value:,.1f} {figure.unit}")

    def failure(self, words: str) -> None:
        """The stage has not passed, and goes on."""
        self._write("failure", words)
        self.progress(f"FAILED {words}")

    def fatal(self, words: str) -> None:
        """No stage can run here."""
        self._write("fatal", words)

    def progress(self, words: str) -> None:
        sys.stderr.write(f"{time.monotonic() - self._began:6.1f} s  {self._stage}: {words}\n")
        sys.stderr.flush()

    def _write(self, kind: str, what: object) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([kind, what]) + "\n")


def read(path: Path) -> Found:
    """What is there, which may be nothing. A last line that was cut off is left out."""
    found = Found()
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            kind, what = json.loads(line)
        except ValueError:
            break
        _take(found, kind, what)
    return found


def _take(found: Found, kind: str, what: Any) -> None:
    match kind:
        case "fact":
            found.facts[what[0]] = what[1]
        case "figure":
            found.take(Figure(**what | {"runs": tuple(what["runs"])}))
        case "failure":
            found.failures.append(what)
        case _:
            found.fatal = what
