"""Where the text to be predicted comes from: the one that comes with the program, or a file."""

from importlib import resources
from pathlib import Path

from chairlift.core.errors import ConfigError

MAX_TEXT_BYTES = 64 * 2**20
"""More than anybody wants to wait for."""
SHIPPED = "text.txt"


def shipped() -> str:
    """English prose of many kinds, written for this project: about 11,500 tokens of a common vocabulary."""
    return resources.files("chairlift.evaluate").joinpath(SHIPPED).read_text(encoding="utf-8")


def read(path: Path) -> str:
    """A text in a file. ConfigError if it cannot be read, is too large, or is not UTF-8."""
    try:
        if path.stat().st_size > MAX_TEXT_BYTES:
            raise ConfigError(f"{path}: a text may have at most {MAX_TEXT_BYTES // 2**20} MiB")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: a text must be UTF-8") from None
