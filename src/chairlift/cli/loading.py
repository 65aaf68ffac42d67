"""Loads a model for a command, with progress on standard error."""

import os
from pathlib import Path

from rich.console import Console

from chairlift import compose, machine
from chairlift.cli.progress import progress
from chairlift.models.registry import Sources, user_sources


def user_console() -> Console:
    return Console(stderr=True, highlight=False)


def sources(console: Console) -> Sources:
    """Where this user's models come from, with progress shown on the console."""
    return user_sources(os.environ, progress(console))


def load_engine(spec: str, options: compose.EngineOptions, *, template: Path | None = None) -> compose.Engine:
    """Fetches and loads the model that `spec` names. ChairliftError in one line if that is not possible."""
    return compose.load(
        spec,
        options,
        sources=sources(user_console()),
        free_bytes=machine.free_memory(),
        template=None if template is None else compose.read_template(template),
    )
