"""The spellings of vocabularies: how a token that a file writes as text stands for bytes. Knows no ids and no merging."""

import re
from collections.abc import Mapping

SPACE_MARK = "\u2581"
"""What SentencePiece writes for a space."""

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_level_alphabet() -> dict[str, int]:
    """The character that stands for each byte in byte-level BPE (GPT-2): printable Latin-1 for itself, the rest from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    return alphabet | {chr(0x100 + offset): byte for offset, byte in enumerate(others)}


def byte_level_bytes(token: str, alphabet: Mapping[str, int]) -> bytes:
    """The bytes of a byte-level token; one that uses other characters stands for itself."""
    if all(character in alphabet for character in token):
        return bytes(alphabet[character] for character in token)
    return token.encode("utf-8", "replace")


def piece_bytes(piece: str, *, is_byte: bool) -> bytes:
    """The bytes of a SentencePiece piece: marks become spaces, and `<0x0A>` the byte it names if it `is_byte`."""
    if is_byte and (named := byte_of(piece)) is not None:
        return bytes([named])
    return piece.replace(SPACE_MARK, " ").encode("utf-8", "replace")


def byte_of(piece: str) -> int | None:
    """The byte that a piece like `<0x0A>` names, or None."""
    match = _BYTE_PIECE.fullmatch(piece)
    return int(match[1], 16) if match else None
