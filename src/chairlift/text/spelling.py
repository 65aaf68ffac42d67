"""Works out from a `tokenizer.json` what bytes its tokens stand for. Knows the decoders of the format, and no vocabulary.

The format: https://huggingface.co/docs/tokenizers/api/decoders
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from chairlift.text.alphabet import SPACE_MARK

Kind = Literal["byte-level", "pieces", "unknown"]


@dataclass(frozen=True, slots=True)
class Spelling:
    """How tokens are written. `strips_space`: a decoded text loses the space that its first token begins with.

    `unknown` spellings have no bytes of their own: text comes only from decoding several tokens together.
    """

    kind: Kind
    strips_space: bool = False


def spelling_of(decoder: Mapping[str, Any] | None) -> Spelling:
    """The spelling that a decoder of `tokenizer.json` undoes."""
    steps = _steps(decoder)
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return Spelling("byte-level")
    if kinds == ["Metaspace"]:
        return Spelling("pieces", strips_space=steps[0].get("prepend_scheme", "always") != "never")
    if not kinds or not all(_of_pieces(step) for step in steps):
        return Spelling("unknown")
    return Spelling("pieces", strips_space="Strip" in kinds)


def _steps(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if decoder is None:
        return []
    if decoder.get("type") == "Sequence":
        return cast("list[Mapping[str, Any]]", decoder.get("decoders", []))
    return [decoder]


def _of_pieces(step: Mapping[str, Any]) -> bool:
    match step.get("type"):
        case "Replace":
            return step.get("pattern") == {"String": SPACE_MARK} and step.get("content") == " "
        case "Strip":
            return (step.get("content"), step.get("start"), step.get("stop")) == (" ", 1, 0)
        case "Fuse" | "ByteFallback":
            return True
        case _:
            return False
