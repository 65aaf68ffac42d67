"""`chairlift replay`: plays a record of `serve --record` again, and says whether every decision is made again."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chairlift.cli import options

if TYPE_CHECKING:
    from chairlift.sim.replay import Replay


def replay(
    record: Annotated[Path, typer.Argument(metavar="FILE", help="A record, as `chairlift serve --record FILE` writes it.")],
    json: options.Json = None,
) -> None:
    """Play a recorded run again, without a model, and compare every decision of the scheduler.

    It needs no more than the record: nothing is computed. Ends with 1 at the first step that is planned otherwise.
    """
    from chairlift.cli.report import write_json
    from chairlift.core.errors import ConfigError
    from chairlift.engine.tape import MAX_LINE_CHARS
    from chairlift.sim.replay import replay as play

    try:
        with record.open(encoding="utf-8", errors="replace") as lines:
            played = play(iter(lambda: lines.readline(MAX_LINE_CHARS + 1), ""))
    except OSError as error:
        raise ConfigError(f"{record}: {error.strerror}") from None
    if json is not None:
        write_json(json, _figures(played))
    if json != Path("-"):
        typer.echo(_words(played))
    raise typer.Exit(0 if played.difference is None else 1)


def _words(played: "Replay") -> str:
    what = (
        f"{played.steps:,} steps and {played.requests:,} requests of {played.header.model} in {played.lasted_s:.1f} s"
        f" ({played.preemptions:,} preemptions)"
    )
    return f"identical: {what}" if played.difference is None else f"different: {played.difference}"


def _figures(played: "Replay") -> dict[str, Any]:
    return {
        "identical": played.difference is None,
        "difference": played.difference,
        "steps": played.steps,
        "requests": played.requests,
        "preemptions": played.preemptions,
        "lasted_s": played.lasted_s,
        "model": played.header.model,
        "chairlift": played.header.version,
        "started": played.header.started,
    }
