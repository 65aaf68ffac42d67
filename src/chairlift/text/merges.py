"""Rebuilds the merges of a SentencePiece BPE vocabulary, which keeps only pieces and scores. Knows no text and no ids."""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet


def merges_of(pieces: Iterable[tuple[str, float]], parts: AbstractSet[str]) -> list[tuple[str, str]]:
    """All pairs of `parts` that make one of `pieces`, best score first, so that the rank of a merge is its index.

    SentencePiece joins the neighbours whose joint piece scores highest. Of the ways to cut one piece the longest left part
    comes first, and equal scores keep the order given, which is how Hugging Face's converters rank them.
    """
    ranked = sorted(pieces, key=lambda piece: -piece[1])
    return [
        (piece[:cut], piece[cut:])
        for piece, _ in ranked
        for cut in range(len(piece) - 1, 0, -1)
        if piece[:cut] in parts and piece[cut:] in parts
    ]
