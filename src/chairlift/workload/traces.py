"""Reads published traces of LLM traffic. Knows their file formats; knows nothing of engines, and no texts: traces have none.

Columns are found by their names. A file that cannot be what it is said to be is refused with the line that is wrong.
"""

import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from chairlift.core.errors import TraceError

HASHED_TOKENS = 512
"""Tokens that a hash id of a Mooncake trace stands for; the last id of a prompt stands for what is left."""

MAX_TOKENS = 100_000_000
"""Of a prompt or an answer. No model has such a context: whoever states more has not counted tokens."""

MAX_HASH_ID = 2_000_000_000
"""Ids become tokens, which are 32-bit integers; some are left for answers."""

MAX_TIME_MS = 1e13
"""The largest time stamp, three hundred years in milliseconds."""

MAX_SHOWN = 40
"""Characters of a wrong value that a message repeats."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request of a trace: when it came, in seconds after the first one, and how many tokens it and its answer had.

    Two prompts with the same hash id at the same place have the same tokens there. Without hash ids nothing is known of what
    prompts have in common.
    """

    arrival_s: float
    prompt_tokens: int
    answer_tokens: int
    hash_ids: tuple[int, ...] = ()


def read_azure(path: Path) -> list[Arrival]:
    """By arrival, to the microsecond. The file is one of AzurePublicDataset's LLM inference traces, of any year.

    Source: Patel et al., "Splitwise" (ISCA 2024), for that of 2023. TraceError if it is not such a file.
    """
    return _from_first(_azure_rows(path))


def read_mooncake(path: Path) -> list[Arrival]:
    """By arrival, with hash ids of 512 tokens each. The file is one of Mooncake's: one JSON object a line, times in ms.

    Source: Qin et al., "Mooncake" (FAST 2025). TraceError if it is not such a file.
    """
    return _from_first(_mooncake_rows(path))


def _from_first(rows: Iterable[Arrival]) -> list[Arrival]:
    """By arrival, counted from the first one. Those that came at the same time stay in the order of the file."""
    ordered = sorted(rows, key=lambda row: row.arrival_s)
    return [replace(row, arrival_s=row.arrival_s - ordered[0].arrival_s) for row in ordered]


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TraceError(f"{path}: this is no text") from None
    if not text.strip():
        raise TraceError(f"{path}: the file is empty")
    return text.split("\n")


# ── Azure ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _azure_rows(path: Path) -> Iterator[Arrival]:
    rows = csv.DictReader(_lines(path))
    try:
        yield from _azure_arrivals(rows, path)
    except csv.Error as error:
        raise TraceError(f"{path}: line {rows.line_num + 1}: {error}") from None


def _azure_arrivals(rows: "csv.DictReader[str]", path: Path) -> Iterator[Arrival]:
    columns = list(rows.fieldnames or ())
    for column in ("TIMESTAMP", "ContextTokens", "GeneratedTokens"):
        if column not in columns:
            raise TraceError(f"{path}: line 1: there is no column {column}, only {_shown(', '.join(columns))}")
    first: datetime | None = None
    for row in rows:
        where = f"{path}: line {rows.line_num}"
        if None in row or None in row.values():
            raise TraceError(f"{where}: it has not as many values as there are columns")
        moment = _moment(row["TIMESTAMP"], where)
        first = first or moment
        if (moment.tzinfo is None) != (first.tzinfo is None):
            raise TraceError(f"{where}: only some times have a time zone")
        prompt, answer = (_decimal(row[column], column, where) for column in ("ContextTokens", "GeneratedTokens"))
        # From the first line on, so that no precision is lost in a large number.
        yield Arrival((moment - first).total_seconds(), prompt, answer)


def _moment(text: str, where: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise TraceError(f"{where}: TIMESTAMP is no time: {_shown(text)!r}") from None


def _decimal(text: str, column: str, where: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_SHOWN):
        raise TraceError(f"{where}: {column} is no number of tokens: {_shown(text)!r}")
    return _count(int(text), column, where)


# ── Mooncake ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _mooncake_rows(path: Path) -> Iterator[Arrival]:
    for number, line in enumerate(_lines(path), start=1):
        if line.strip():
            yield _mooncake_row(line, f"{path}: line {number}")


def _mooncake_row(line: str, where: str) -> Arrival:
    row = _object(line, where)
    for field in ("timestamp", "input_length", "output_length", "hash_ids"):
        if field not in row:
            raise TraceError(f"{where}: there is no field {field!r}")
    time_ms = row["timestamp"]
    if not isinstance(time_ms, int | float) or isinstance(time_ms, bool) or not 0 <= time_ms <= MAX_TIME_MS:
        raise TraceError(f"{where}: timestamp is no number of milliseconds: {_shown(time_ms)}")
    prompt = _count(row["input_length"], "input_length", where)
    answer = _count(row["output_length"], "output_length", where)
    ids = row["hash_ids"]
    if not isinstance(ids, list) or not all(type(one) is int and 0 <= one <= MAX_HASH_ID for one in ids):
        raise TraceError(f"{where}: hash_ids is no list of integers from 0 to {MAX_HASH_ID:,}: {_shown(ids)}")
    if len(ids) != -(-prompt // HASHED_TOKENS):
        raise TraceError(f"{where}: {len(ids)} hash_ids of {HASHED_TOKENS} tokens are not {prompt} tokens")
    return Arrival(time_ms / 1000, prompt, answer, tuple(ids))


def _object(line: str, where: str) -> dict[str, object]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise TraceError(f"{where}: this is no JSON: {_shown(line)!r}") from None
    if not isinstance(row, dict):
        raise TraceError(f"{where}: this is no JSON object: {_shown(line)!r}")
    return row


# ── both ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _count(value: object, name: str, where: str) -> int:
    if type(value) is not int or not 1 <= value <= MAX_TOKENS:
        raise TraceError(f"{where}: {name} is no number of tokens from 1 to {MAX_TOKENS:,}: {_shown(value)}")
    return value


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"
