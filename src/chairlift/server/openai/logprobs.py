"""The shapes of log probabilities: one for chats, an older one for completions. Knows tokens and their bytes; knows no engine.

Every token that counts has an entry, that which ended the answer included. JSON has no infinity, so nothing is below `LEAST`.
"""

from typing import Any

from chairlift.server.generate import Told
from chairlift.text.detokenize import Detokenizer
from chairlift.text.tokenizer import Tokenizer

LEAST = -9999.0
"""As vLLM writes what has no chance at all."""


class ChatLogprobs:
    """`bytes` are those that a token adds to the text: those of all entries are its UTF-8, and special tokens have none.

    The `token` of a part of a character shows U+FFFD in its place.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._silent = tokenizer.special_ids if skip_special_tokens else frozenset[int]()

    def take(self, told: Told) -> dict[str, Any] | None:
        """The `logprobs` of a choice, or None if there is nothing to tell."""
        if not told:
            return None
        content = [
            self._entry(token, logprobs.chosen) | {"top_logprobs": [self._entry(*best) for best in logprobs.top]}
            for token, logprobs in told
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        raw = _bytes(self._tokenizer, token)
        added = [] if token in self._silent else list(raw)
        return {"token": raw.decode("utf-8", "replace"), "logprob": max(logprob, LEAST), "bytes": added}


class CompletionLogprobs:
    """Of one choice, piece by piece. A token that is a part of a character is spelt `bytes:\\xf0`, as OpenAI does.

    `text_offset` counts the characters that were complete before a token, so the parts of one share an offset.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._text = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
        self._offset = 0

    def take(self, told: Told) -> dict[str, Any] | None:
        """The `logprobs` of a choice, or None if there is nothing to tell. The drawn token is always among the top ones."""
        if not told:
            return None
        names = [self._name(token) for token, _ in told]
        return {
            "text_offset": [self._advance(token) for token, _ in told],
            "token_logprobs": [max(logprobs.chosen, LEAST) for _, logprobs in told],
            "tokens": names,
            "top_logprobs": [
                {self._name(best): max(logprob, LEAST) for best, logprob in logprobs.top} | {name: max(logprobs.chosen, LEAST)}
                for name, (_, logprobs) in zip(names, told, strict=True)
            ],
        }

    def _advance(self, token: int) -> int:
        offset = self._offset
        self._offset += len(self._text.feed(token))
        return offset

    def _name(self, token: int) -> str:
        raw = _bytes(self._tokenizer, token)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _bytes(tokenizer: Tokenizer, token: int) -> bytes:
    """Nothing for ids that only the model's head has, as padding."""
    return tokenizer.token_bytes(token) if token < tokenizer.vocab_size else b""
