"""Which blocks a sequence holds: it takes, shares, fills and gives back. Knows pool and prefix index; decides nothing.

Everything that changes `Sequence.blocks` is here, so that whoever asks for memory need not know where it comes from. This is
the paged layout, one of two (`layouts`).
"""

from array import array
from collections import Counter
from collections.abc import Collection, Container, Iterable

from chairlift.cache.pool import BlockPool
from chairlift.cache.prefix import Match, Place, PrefixIndex, Trail
from chairlift.core.types import Move, Sequence


class Paged:
    """Blocks from anywhere, one after another as a sequence grows, and shared by those that begin alike."""

    def __init__(self, pool: BlockPool, index: PrefixIndex) -> None:
        self.pool = pool
        self.index = index
        self._size = index.block_size
        self._moves: list[Move] = []
        self._forked: set[Sequence] = set()
        """They may still share the block that they write next; nobody else does."""
        self._left = PrefixIndex(self._size)
        """What those who lost their blocks have left in them that the index does not find, each below a salt of his own."""
        self._looked_up: tuple[Sequence | None, int, int] = (None, 0, 0)
        """Whose match was last asked for, of how many tokens, and how often what is found had changed by then."""
        self._trail = Trail(Match([], ""), [])
        self._found = Match([], "")

    # ── what it would take ────────────────────────────────────────────────────────────────────────────────────────────────

    def match(self, sequence: Sequence) -> Match:
        """What is there already of the sequence's tokens. A step asks several times for whoever is first in the queue."""
        looked_up = (sequence, len(sequence.tokens), self.index.changes + self._left.changes)
        if looked_up != self._looked_up:
            trail = self._trail if sequence is self._looked_up[0] else None
            self._trail = self.index.retrace(sequence.tokens, sequence.request.cache_salt, trail)
            found = self._trail.match
            self._found = self._with_own(sequence, found) if self._left else found
            self._looked_up = looked_up
        return self._found

    def missing(self, sequence: Sequence, match: Match) -> int:
        """Tokens that it will miss when it has got on."""
        return len(sequence.tokens) - len(match.blocks) * self._size

    def need(self, sequence: Sequence, match: Match, leaving: Collection[Sequence] = ()) -> int:
        """Free blocks that its admission would take. Shared ones cost nothing, unless they are free now."""
        fresh = self._blocks(len(sequence.tokens)) - len(match.blocks)
        revived = self.pool.idle(match.blocks)
        return fresh + revived - (self.freed(leaving, match) if leaving else 0)

    def lacks(self, sequence: Sequence, tokens: int) -> int:
        """Blocks that it needs beyond those it holds to get to so many tokens. One that it must copy counts as well."""
        held = len(sequence.blocks)
        lacks = 0 if tokens <= held * self._size else self._blocks(tokens) - held
        return lacks + (sequence in self._forked and self._to_copy(sequence) is not None)

    def freed(self, leaving: Iterable[Sequence], match: Match) -> int:
        """Blocks that become free if these leave, but for those that a match would hold on to."""
        held = Counter(block for sequence in leaving for block in sequence.blocks)
        return len({block for block, count in held.items() if count == self.pool.references(block)} - set(match.blocks))

    def recomputation(self, sequence: Sequence) -> int:
        """Tokens that would have to be computed again after a preemption, if none of them survives in the cache."""
        return min(sequence.computed, len(self._own(sequence)) * self._size)

    # ── taking and giving back ────────────────────────────────────────────────────────────────────────────────────────────

    def seat(self, sequence: Sequence, match: Match) -> None:
        """Gives it blocks for all tokens that it has, those of the match first."""
        self.pool.share(match.blocks)
        sequence.blocks = array("i", match.blocks)
        sequence.computed = len(match.blocks) * self._size
        self._indexed(sequence, len(match.blocks) - match.own, match.place)
        if self._left:
            self._left.forget(match.blocks)
        self.grow(sequence, len(sequence.tokens))

    def grow(self, sequence: Sequence, tokens: int) -> None:
        """Gives it the blocks for so many tokens, as many as it `lacks`; they must be free. They are written to next.

        What is written next goes into blocks that nobody else holds: one that a fork shares is copied first.
        """
        blocks = sequence.blocks[:]
        if sequence in self._forked:
            self._forked.remove(sequence)
            shared = self._to_copy(sequence)
            if shared is not None:
                [blocks[shared]] = self._take(1)
                self._moves.append(Move("copy", sequence.blocks[shared], blocks[shared]))
                self.pool.release(sequence.blocks[shared : shared + 1], worth=self._worth)
        count = self._blocks(tokens) - len(blocks)
        if count > 0:
            blocks.extend(self._take(count))
        sequence.blocks, sequence.room = blocks, len(blocks) * self._size

    def fork(self, sequence: Sequence, follower: Sequence) -> None:
        """Gives the follower all that its leader has computed, which is all it has.

        It takes no memory until one of the two goes on writing.
        """
        assert not sequence.missing, "blocks that are still to be written are not shared"
        self._forked |= {sequence, follower}
        self.pool.share(sequence.blocks)
        follower.blocks = sequence.blocks
        sequence.room = follower.room = 0
        follower.computed = sequence.computed
        self._indexed(follower, sequence.indexed, sequence.place)

    def moves(self) -> tuple[Move, ...]:
        """What has to be copied since this was last asked, before anything else is computed."""
        moves = tuple(self._moves)
        self._moves.clear()
        return moves

    def release(self, sequence: Sequence) -> None:
        """Takes everything back. What the index knows of it may still be found there, until the blocks are taken again."""
        self._forked.discard(sequence)
        self.pool.release(sequence.blocks, worth=self._worth)
        sequence.blocks, sequence.room = array("i"), 0
        sequence.computed = 0
        self._indexed(sequence, 0, sequence.request.cache_salt)

    def keep(self, sequence: Sequence) -> None:
        """It is about to lose its blocks, and comes back: until they are taken it finds what is in them.

        Others do not, even what the index would know of the step in flight: nobody can say yet whether that succeeds.
        """
        found = len(self.index.match(sequence.tokens, sequence.request.cache_salt).blocks)
        full = min(sequence.computed, len(sequence.tokens) - 1) // self._size
        left = sequence.blocks[found:full]
        self.index.forget(left)  # what stands there behind something that was evicted is not found any more
        self._left.forget(left)  # a block that several hold is the last one's who leaves it
        self._left.add(_salt(sequence, found), sequence.tokens[found * self._size : full * self._size], left)

    # ── contents ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def enter(self, sequence: Sequence, computed: int) -> None:
        """Its first `computed` tokens have keys and values: blocks that are full now enter the index."""
        if computed < sequence.full_at:
            return
        size, first, full = self._size, sequence.indexed, computed // self._size
        place = self.index.add(sequence.place, sequence.tokens[first * size : full * size], sequence.blocks[first:full])
        self._indexed(sequence, full, place)

    def distrust(self, sequence: Sequence) -> None:
        """Takes the blocks of a failed sequence out of the index: its earlier chunks may be as broken as its last.

        Nobody knows which these were if it has given them back while it was computed.
        """
        if not sequence.blocks:
            self.lose()
        self.index.forget(sequence.blocks[: sequence.indexed])

    def lose(self) -> None:
        """Nothing that was ever computed is found any more."""
        self.index.clear()
        self._left.clear()

    def __contains__(self, block: object) -> bool:
        """Somebody may find what is in the block."""
        return block in self.index or block in self._left

    @property
    def _worth(self) -> Container[int]:
        """Blocks in which somebody may find something. Mostly the index has them all, and is asked without any call."""
        return self if self._left else self.index.blocks

    def _with_own(self, sequence: Sequence, found: Match) -> Match:
        count = len(found.blocks)
        own = self._left.match(sequence.tokens[count * self._size :], _salt(sequence, count)).blocks
        return Match([*found.blocks, *own], found.place, len(own))

    def _indexed(self, sequence: Sequence, blocks: int, place: Place) -> None:
        """So many of its blocks stand in the index, the last of them there."""
        sequence.indexed, sequence.place = blocks, place
        sequence.full_at = (blocks + 1) * self._size

    def _blocks(self, tokens: int) -> int:
        """Blocks that this many tokens fill."""
        return -(-tokens // self._size)

    def _to_copy(self, sequence: Sequence) -> int | None:
        """Which of its blocks it must copy before it goes on: the one that its next token goes into, if others hold it too."""
        last = sequence.computed // self._size
        return last if last < len(sequence.blocks) and self.pool.references(sequence.blocks[last]) > 1 else None

    def _take(self, count: int) -> list[int]:
        taken = self.pool.take(count)
        self.index.forget(taken)
        if self._left:
            self._left.forget(taken)
        return taken

    def _own(self, sequence: Sequence) -> list[int]:
        """Blocks that nobody else holds: what its leaving would free, and what it would have to compute again."""
        return [block for block in sequence.blocks if self.pool.references(block) == 1]


def _salt(sequence: Sequence, found: int) -> str:
    """Below which stands what it has left behind so many blocks that others may find as well."""
    return f"{sequence.number} {found}"
