"""Turns generated tokens into text as they come, holding back nothing but characters that are not complete yet.

Knows the bytes of tokens; knows no stop strings and no requests.
"""

import codecs
from collections.abc import Sequence
from typing import Protocol


class Vocabulary(Protocol):
    """What a detokeniser asks of a tokenizer."""

    @property
    def exact(self) -> bool: ...
    @property
    def special_ids(self) -> frozenset[int]: ...
    def token_bytes(self, index: int, /) -> bytes: ...
    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = ...) -> str: ...


class Detokenizer:
    """The text of one answer, token by token, in constant time each. The pieces join to what `decode` gives for all tokens.

    An answer continues its prompt. So the space that the first token of a SentencePiece vocabulary begins with stays, where
    `decode`, which takes ids for a whole text, may drop it. An id outside the vocabulary (padding of the head) adds nothing.
    """

    def __init__(self, vocabulary: Vocabulary, *, skip_special_tokens: bool = True) -> None:
        self._vocabulary = vocabulary
        self._skipped = vocabulary.special_ids if skip_special_tokens else frozenset[int]()
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._window = _Window(vocabulary)

    def feed(self, token_id: int) -> str:
        """The text that this token completes; may be empty."""
        if token_id in self._skipped:
            return ""
        if not self._vocabulary.exact:
            return self._window.feed(token_id)
        try:
            added = self._vocabulary.token_bytes(token_id)
        except IndexError:
            return ""
        return self._utf8.decode(added)

    def finish(self) -> str:
        """What was held back: an incomplete character is U+FFFD now."""
        if not self._vocabulary.exact:
            return self._window.finish()
        return self._utf8.decode(b"", True)


_TAIL = 6
"""Tokens before the new ones that are decoded with them, so that decoders which look at their neighbours see some."""

_LIMIT = 32
"""Tokens that may wait for a character to be completed, before they are taken to be broken."""


class _Window:
    """For tokens that have no bytes of their own: decodes the last few again and again, and takes what is new."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._ids: list[int] = []
        self._sent = 0
        """How many of `_ids` have their text out already."""

    def feed(self, token_id: int) -> str:
        self._ids.append(token_id)
        text = self._new()
        if text.endswith("\ufffd") and len(self._ids) - self._sent < _LIMIT:
            return ""
        return self._take(text)

    def finish(self) -> str:
        return self._take(self._new())

    def _new(self) -> str:
        before = self._vocabulary.decode(self._ids[: self._sent], skip_special_tokens=False)
        return self._vocabulary.decode(self._ids, skip_special_tokens=False)[len(before) :]

    def _take(self, text: str) -> str:
        self._ids = self._ids[-_TAIL:]
        self._sent = len(self._ids)
        return text
