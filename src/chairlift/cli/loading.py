"""Loads a model for a command, with progress on standard error."""

import os
from pathlib import Path

from rich.console import Console

from chairlift import compose, machine
from chairlift.cli.progress import progress
from chairlift.models.registry import Sources, user_sources
from chairlift.text import tokenizer


def user_console() -> Console:
    return Console(stderr=True, highlight=False)


def sources(console: Console) -> Sources:
    """Where this user's models come from, with progress shown on the console.

    A tokenizer that cannot be rebuilt is found in the first bytes of a file, before the rest of it is fetched.
    """
    return user_sources(os.environ, progress(console), check=tokenizer.build)


def load_engine(spec: str, options: compose.EngineOptions, *, template: Path | None = None) -> compose.Engine:
    """Fetches and loads the model that `spec` names. ChairliftError in one line if that is not possible."""
    return compose.load(
        spec,
        options,
        sources=sources(user_console()),
        free_bytes=machine.free_memory(),
        template=None if template is None else compose.read_template(template),
    )
