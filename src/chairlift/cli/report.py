"""What several commands report alike, for people and for programs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from chairlift.core.errors import ConfigError

NO_TEMPLATE = "none: prompts are completed, and chats refused, unless --chat-template FILE gives one"


def write_json(path: Path, figures: dict[str, Any] | list[dict[str, Any]]) -> None:
    """`-` is standard output. ConfigError if the file cannot be written."""
    text = json.dumps(figures, indent=2, ensure_ascii=False)
    if path == Path("-"):
        typer.echo(text)
        return
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with columns of even width: the first to the left, the others to the right. All rows are of equal length."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
