"""Which blocks a sequence holds: it takes, shares, fills and gives back. Knows pool and prefix index; decides nothing.

Everything that changes `Sequence.blocks` is here, so that whoever asks for memory need not know where it comes from.
"""

from collections.abc import Iterable

from chairlift.cache.pool import BlockPool
from chairlift.cache.prefix import Match, PrefixIndex
from chairlift.core.types import Sequence


class Memory:
    """The blocks of all sequences of one engine. Counts are of blocks unless they say tokens."""

    def __init__(self, pool: BlockPool, index: PrefixIndex) -> None:
        self.pool = pool
        self.index = index
        self._size = index.block_size

    # ── what it would take ────────────────────────────────────────────────────────────────────────────────────────────────

    def match(self, sequence: Sequence) -> Match:
        """What is there already of the sequence's tokens."""
        return self.index.match(sequence.tokens, sequence.request.cache_salt)

    def missing(self, sequence: Sequence, match: Match) -> int:
        """Tokens that it will miss when it has got on."""
        return len(sequence.tokens) - len(match.blocks) * self._size

    def need(self, sequence: Sequence, match: Match) -> int:
        """Free blocks that its admission would take. Shared ones cost nothing, unless they are free now."""
        fresh = self._blocks(len(sequence.tokens)) - len(match.blocks)
        return fresh + sum(self.pool.references(block) == 0 for block in match.blocks)

    def lacks(self, sequence: Sequence, tokens: int) -> int:
        """Blocks that it needs beyond those it holds, for so many tokens."""
        return max(0, self._blocks(tokens) - len(sequence.blocks))

    def freed(self, leaving: Iterable[Sequence], match: Match) -> int:
        """Blocks that become free if these leave, but for those that a match would hold on to."""
        return len({block for sequence in leaving for block in self._own(sequence)} - set(match.blocks))

    def recomputation(self, sequence: Sequence) -> int:
        """Tokens that would have to be computed again after a preemption, if none of them survives in the cache."""
        return min(sequence.computed, len(self._own(sequence)) * self._size)

    # ── taking and giving back ────────────────────────────────────────────────────────────────────────────────────────────

    def seat(self, sequence: Sequence, match: Match) -> None:
        """Gives it blocks for all tokens that it has, those of the match first."""
        self.pool.share(match.blocks)
        sequence.blocks.extend(match.blocks)
        sequence.computed = len(match.blocks) * self._size
        sequence.indexed, sequence.place = len(match.blocks), match.place
        self.grow(sequence, self.lacks(sequence, len(sequence.tokens)))

    def grow(self, sequence: Sequence, count: int) -> None:
        """Gives it so many more blocks; they must be free."""
        for block in self.pool.take(count):
            self.index.forget(block)
            sequence.blocks.append(block)

    def release(self, sequence: Sequence) -> None:
        """Takes everything back. What the index knows of it may still be found there, until the blocks are taken again."""
        self.pool.release(sequence.blocks, worth=self.index)
        del sequence.blocks[:]
        sequence.computed = 0
        sequence.indexed, sequence.place = 0, sequence.request.cache_salt

    # ── contents ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def enter(self, sequence: Sequence, computed: int) -> None:
        """Its first `computed` tokens have keys and values: blocks that are full now enter the index."""
        size = self._size
        while (sequence.indexed + 1) * size <= computed:
            start = sequence.indexed * size
            block = sequence.blocks[sequence.indexed]
            sequence.place = self.index.add(sequence.place, sequence.tokens[start : start + size], block)
            sequence.indexed += 1

    def distrust(self, sequence: Sequence) -> None:
        """Takes the blocks of a failed sequence out of the index: its earlier chunks may be as broken as its last."""
        for block in sequence.blocks[: sequence.indexed]:
            self.index.forget(block)

    def _blocks(self, tokens: int) -> int:
        """Blocks that this many tokens fill."""
        return -(-tokens // self._size)

    def _own(self, sequence: Sequence) -> list[int]:
        """Blocks that nobody else holds: what its leaving would free, and what it would have to compute again."""
        return [block for block in sequence.blocks if self.pool.references(block) == 1]
