"""Finds blocks whose keys and values are already there, by the tokens that led to them. Knows tokens and block numbers only.

The index is a tree of full blocks, kept in one dictionary. A node's key is its parent and its own tokens, so a hit has
compared every token from position 0 on: there is no digest that could collide. Node numbers are never used twice, so a child
whose parent was evicted cannot be reached through a newcomer in the parent's place.

        salt ── [t0 … t15] ── [t16 … t31] ── [t32 … t47]
                     └─────── [u16 … u31]                     (two prompts that share their first block)
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, KeysView, Sequence
from struct import Struct
from typing import NamedTuple

Place = int | str
"""A point in the tree: a node's number, or a cache salt, which is where all prompts of that salt begin."""


class Match(NamedTuple):
    """Blocks that hold the longest known prefix, and the place in the tree where it ends.

    The last `own` of them are not in the tree: whoever asks has computed them himself, and only he finds them.
    """

    blocks: list[int]
    place: Place
    own: int = 0


class PrefixIndex:
    """Full blocks of `block_size` tokens by their contents and all that came before them."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._contents = Struct(f"{block_size * array('i').itemsize}s").iter_unpack
        """The bytes of tokens, block by block."""
        self._nodes: dict[tuple[Place, bytes], tuple[int, int]] = {}
        self._keys: dict[int, tuple[Place, bytes]] = {}
        self._next_node = 1
        self.changes = 0
        """Grows whenever a match may have another result than before."""

    def __contains__(self, block: object) -> bool:
        return block in self._keys

    def __iter__(self) -> Iterator[int]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def blocks(self) -> KeysView[int]:
        """All that stand in it, now and later."""
        return self._keys.keys()

    def match(self, tokens: array[int], salt: str) -> Match:
        """The longest indexed prefix. It never covers the last token, which has to be computed to give logits."""
        place: Place = salt
        blocks: list[int] = []
        full = (len(tokens) - 1) // self.block_size
        for (contents,) in self._contents(tokens[: full * self.block_size]):
            found = self._nodes.get((place, contents))
            if found is None:
                break
            place, block = found
            blocks.append(block)
        return Match(blocks, place)

    def add(self, place: Place, tokens: array[int], blocks: Sequence[int]) -> Place:
        """Enters computed blocks with their tokens, each below the one before it, the first below `place`.

        Returns the place of the last one. Contents that are known already stay where they are.
        """
        assert len(tokens) == len(blocks) * self.block_size, "only full blocks are entered"
        for (contents,), block in zip(self._contents(tokens), blocks, strict=True):
            key = (place, contents)
            known = self._nodes.get(key)
            if known is None:
                place = self._next_node
                self._next_node += 1
                self.changes += 1
                self._nodes[key] = (place, block)
                self._keys[block] = key
            else:
                place = known[0]
        return place

    def forget(self, blocks: Iterable[int]) -> None:
        """The contents of these blocks are void. One that was never entered is fine."""
        for block in blocks:
            key = self._keys.pop(block, None)
            if key is not None:
                self.changes += 1
                del self._nodes[key]

    def clear(self) -> None:
        self.changes += 1
        self._nodes.clear()
        self._keys.clear()


class NoPrefixIndex(PrefixIndex):
    """The index of an engine without prefix caching: it learns nothing, so it never finds anything."""

    def add(self, place: Place, tokens: array[int], blocks: Sequence[int]) -> Place:  # noqa: ARG002
        return place


def prefix_index(block_size: int, *, enabled: bool) -> PrefixIndex:
    """The index of an engine that shares prefixes, or of one that does not."""
    return PrefixIndex(block_size) if enabled else NoPrefixIndex(block_size)
