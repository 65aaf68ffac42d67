"""The command line, one module a command. Commands import what they need when they run, so that `--help` is quick."""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from chairlift import __version__
from chairlift.cli.bench import bench
from chairlift.cli.chat import chat
from chairlift.cli.check import check
from chairlift.cli.evaluate import evaluate
from chairlift.cli.models import models
from chairlift.cli.replay import replay
from chairlift.cli.run import run
from chairlift.cli.serve import serve
from chairlift.core.errors import ChairliftError

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 120}


INTERRUPTED = 130
"""128 + SIGINT, as shells have it."""
STDERR = 2
"""The last of the three files that every process has."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command and ends the process: 0 if all went well, 1 with one line of reason if not, 2 for a usage error."""
    _occupy_standard_streams()
    try:
        _app()(list(sys.argv[1:] if arguments is None else arguments), prog_name="chairlift")
    except ChairliftError as error:
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


def _occupy_standard_streams() -> None:
    """What the caller has closed leads nowhere: the next file or socket would be taken for it, by us and our children."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(number, True)
    os.close(number)


def _app() -> typer.Typer:
    app = typer.Typer(
        name="chairlift",
        help="A server for language models, built around continuous batching. Start with: chairlift serve",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # its boxes cut long flags off on a terminal of 80 columns
        context_settings=CONTEXT,
    )
    app.callback()(_root)
    for command in (serve, chat, run, models, check, replay):
        app.command()(command)
    app.add_typer(bench(CONTEXT))
    app.add_typer(evaluate(CONTEXT))
    return app


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", is_eager=True, callback=lambda on: _version(on))
    ] = False,
) -> None:
    pass


def _version(on: bool) -> None:
    if on:
        typer.echo(f"chairlift {__version__}")
        raise typer.Exit
