"""Plain functions on what clients write: the parts of a message, and text that is no valid Unicode. Knows no tokenizer."""

from collections.abc import Mapping, Sequence
from typing import Any

JOINER = ""
"""What stands between the text parts of one message: nothing, so that parts read as the one string they were cut from."""


def flatten(content: str | Sequence[Mapping[str, Any]] | None) -> str | None:
    """The text of a message's content: a list of text parts becomes their concatenation, and an empty list an empty text.

    None stays None: an assistant message with tool calls has no content. Raises ValueError that names a part which is no text.
    """
    if content is None or isinstance(content, str):
        return content
    return JOINER.join(_text_of(place, part) for place, part in enumerate(content))


def _text_of(place: int, part: Mapping[str, Any]) -> str:
    kind, text = part.get("type"), part.get("text")
    if kind != "text":
        raise ValueError(f"content part {place} has type {kind!r}; only 'text' is supported")
    if not isinstance(text, str):
        raise ValueError(f"content part {place} has no 'text'")
    return text


def has_lone_surrogates(text: str) -> bool:
    """Whether `text` has half of a surrogate pair, as JSON's escapes can spell it: it is no valid Unicode then."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def well_formed(text: str) -> str:
    """`text` with each unpaired surrogate replaced by U+FFFD."""
    if not has_lone_surrogates(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
