from typing import Any

import pytest

from chairlift.text.spelling import Spelling, spelling_of

REPLACE: dict[str, Any] = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
FALLBACK, FUSE = {"type": "ByteFallback"}, {"type": "Fuse"}
STRIP: dict[str, Any] = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "decoders": list(steps)}


@pytest.mark.parametrize(("decoder", "expected"), [
    ({"type": "ByteLevel"}, Spelling("byte-level")),
    (sequence({"type": "ByteLevel"}), Spelling("byte-level")),
    (sequence(REPLACE, FALLBACK, FUSE), Spelling("pieces")),
    (sequence(REPLACE, FALLBACK, FUSE, STRIP), Spelling("pieces", strips_space=True)),
    ({"type": "Metaspace", "prepend_scheme": "always"}, Spelling("pieces", strips_space=True)),
    ({"type": "Metaspace", "prepend_scheme": "never"}, Spelling("pieces")),
    ({"type": "WordPiece"}, Spelling("unknown")),
    (sequence({**REPLACE, "content": "_"}), Spelling("unknown")),
    (None, Spelling("unknown")),
])  # fmt: skip
def test_a_decoder_says_how_tokens_are_spelt(decoder: dict[str, Any] | None, expected: Spelling):
    assert spelling_of(decoder) == expected
