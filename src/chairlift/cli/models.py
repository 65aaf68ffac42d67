"""`chairlift models`: which models have a name here, and which of them are on this machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chairlift.cli import options

if TYPE_CHECKING:
    from chairlift.models.registry import Cached


def models(
    fetch: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Fetch this model first; may be given several times.")
    ] = None,
    json: options.Json = None,
) -> None:
    """List the known models and what of them is in the cache.

    Others need no entry here: any command takes a .gguf file, a Hugging Face folder or org/name[:QUANT].
    """
    from chairlift.cli.loading import sources, user_console
    from chairlift.cli.report import write_json
    from chairlift.models.registry import cached, resolve

    origin = sources(user_console())
    for name in fetch or ():
        resolve(name, origin)
    known = cached(origin.cache)
    if json is not None:
        write_json(json, [_figures(entry) for entry in known])
    if json != Path("-"):
        for entry in known:
            typer.echo(_line(entry))


def _line(entry: "Cached") -> str:
    where = "not fetched yet" if entry.bytes is None else f"{entry.bytes / 2**20:.0f} MiB in {entry.path}"
    return f"{entry.name}: {entry.about}; {entry.licence}; {where}"


def _figures(entry: "Cached") -> dict[str, str | int | None]:
    return {
        "name": entry.name,
        "about": entry.about,
        "licence": entry.licence,
        "path": None if entry.bytes is None else str(entry.path),
        "bytes": entry.bytes,
    }
