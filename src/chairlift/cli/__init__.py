"""The command line, one module a command. Commands import what they need when they run, so that `--help` is quick."""

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


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command and ends the process: 0 if all went well, 1 with one line of reason if not, 2 for a usage error."""
    try:
        _app()(list(sys.argv[1:] if arguments is None else arguments), prog_name="chairlift")
    except ChairliftError as error:
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


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
