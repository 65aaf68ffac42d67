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


Key = tuple[Place, bytes]
"""The parent of a node, and its own tokens."""

Node = tuple[int, int, Key]
"""Its number, its block, and its key."""


class Match(NamedTuple):
    """Blocks that hold the longest known prefix, and the place in the tree where it ends.

    The last `own` of them are not in the tree: whoever asks has computed them himself, and only he finds them.
    """

    blocks: list[int]
    place: Place
    own: int = 0


class Trail(NamedTuple):
    """A match, and the nodes of its blocks, by which it can be found again."""

    match: Match
    nodes: list[Node | None]


class PrefixIndex:
    """Full blocks of `block_size` tokens by their contents and all that came before them."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._contents = Struct(f"{block_size * array('i').itemsize}s").iter_unpack
        """The bytes of tokens, block by block."""
        self._nodes: dict[Key, Node] = {}
        self._of_block: dict[int, Node] = {}
        self._next_node = 1
        self.changes = 0
        """Grows whenever a match may have another result than before."""
        self._latest = Trail(Match([], ""), [])
        """The trail that was last given, and how often the index had changed by then."""
        self._latest_at = 0

    def __contains__(self, block: object) -> bool:
        return block in self._of_block

    def __iter__(self) -> Iterator[int]:
        return iter(self._of_block)

    def __len__(self) -> int:
        return len(self._of_block)

    @property
    def blocks(self) -> KeysView[int]:
        """All that stand in it, now and later."""
        return self._of_block.keys()

    def match(self, tokens: array[int], salt: str) -> Match:
        """The longest indexed prefix. It never covers the last token, which has to be computed to give logits."""
        return self._further(tokens, Match([], salt))

    def retrace(self, tokens: array[int], salt: str, trail: Trail | None) -> Trail:
        """The match, by way of an earlier one of the same tokens. As long as that is there, it costs little to find it again.

        More or fewer tokens may have come behind those that were matched.
        """
        if trail is None or len(trail.match.blocks) * self.block_size >= len(tokens) or not self._is_there(trail):
            trail = Trail(Match([], salt), [])
        match = self._further(tokens, trail.match)
        if match.place != self._latest.match.place:  # otherwise it is the same, as a place is never used twice
            self._latest = trail if match is trail.match else Trail(match, self._nodes_of(match.blocks))
        self._latest_at = self.changes
        return self._latest

    def _is_there(self, trail: Trail) -> bool:
        """All of it still stands where it did."""
        if trail.match.place == self._latest.match.place and self._latest_at == self.changes:
            return True  # prompts that begin alike are often asked for together
        # One that was evicted and comes back has another number. So all that are equal are the same, down from the first.
        return self._nodes_of(trail.match.blocks) == trail.nodes

    def _nodes_of(self, blocks: list[int]) -> list[Node | None]:
        return list(map(self._of_block.get, blocks))

    def _further(self, tokens: array[int], start: Match) -> Match:
        """Goes on from a match as far as the tree does."""
        place = start.place
        blocks: list[int] = []
        known = self._nodes.get
        first, full = len(start.blocks), (len(tokens) - 1) // self.block_size
        for (contents,) in self._contents(tokens[first * self.block_size : full * self.block_size]):
            found = known((place, contents))
            if found is None:
                break
            place, block, _ = found
            blocks.append(block)
        return Match(start.blocks + blocks, place) if blocks else start

    def add(self, place: Place, tokens: array[int], blocks: Sequence[int]) -> Place:
        """Enters computed blocks with their tokens, each below the one before it, the first below `place`.

        Returns the place of the last one. Contents that are known already stay where they are.
        """
        assert len(tokens) == len(blocks) * self.block_size, "only full blocks are entered"
        first = node = self._next_node
        for (contents,), block in zip(self._contents(tokens), blocks, strict=True):
            key = (place, contents)
            fresh = (node, block, key)
            found = self._nodes.setdefault(key, fresh)
            if found is fresh:
                self._of_block[block] = fresh
                node += 1
            place = found[0]
        self._next_node = node
        self.changes += node - first
        return place

    def forget(self, blocks: Iterable[int]) -> None:
        """The contents of these blocks are void. One that was never entered is fine."""
        before = len(self._nodes)
        for block in blocks:
            node = self._of_block.pop(block, None)
            if node is not None:
                del self._nodes[node[2]]
        self.changes += before - len(self._nodes)

    def clear(self) -> None:
        self.changes += 1
        self._nodes.clear()
        self._of_block.clear()


class NoPrefixIndex(PrefixIndex):
    """The index of an engine without prefix caching: it learns nothing, so it never finds anything."""

    def add(self, place: Place, tokens: array[int], blocks: Sequence[int]) -> Place:  # noqa: ARG002
        return place


def prefix_index(block_size: int, *, enabled: bool) -> PrefixIndex:
    """The index of an engine that shares prefixes, or of one that does not."""
    return PrefixIndex(block_size) if enabled else NoPrefixIndex(block_size)
