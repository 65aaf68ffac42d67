"""A vocabulary that a test writes down: token i stands for the i-th piece. Enough for detokenising, without a tokenizer."""

from collections.abc import Sequence


class ScriptedVocabulary:
    """Pieces are text or raw bytes; `special` ids are control tokens. With `exact` off, only `decode` tells the text."""

    def __init__(self, *pieces: str | bytes, special: frozenset[int] = frozenset(), exact: bool = True) -> None:
        self.pieces = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
        self.special_ids = special
        self.exact = exact

    @property
    def ids(self) -> list[int]:
        """Every token once, in order: the script."""
        return list(range(len(self.pieces)))

    def token_bytes(self, index: int) -> bytes:
        return self.pieces[index]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        kept = [index for index in ids if not (skip_special_tokens and index in self.special_ids)]
        return b"".join(self.pieces[index] for index in kept).decode("utf-8", "replace")
