"""What the comparisons with transformers share: when they are collected, and the two real models, each loaded once."""

from importlib.util import find_spec
from pathlib import Path

import pytest

NEEDED = ("torch", "transformers")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Importing torch takes seconds: only when it is there, and these tests are wanted."""
    unwanted = "not parity" in config.option.markexpr or not all(find_spec(name) for name in NEEDED)
    return True if unwanted and collection_path.name.startswith("test_") else None
