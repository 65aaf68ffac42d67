"""Masks over the ids of a vocabulary, as draws have them."""

from array import array
from collections.abc import Iterable


def mask_of(allowed: Iterable[int], vocab: int) -> "array[int]":
    """The bits of a mask."""
    words = [0] * -(-vocab // 32)
    for token in allowed:
        words[token // 32] |= 1 << token % 32
    return array("I", words)
