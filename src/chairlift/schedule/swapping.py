"""A store in host memory behind the memory of a layout: whoever yields may be put away there, and gets it back later.

Knows which of its blocks hold whose keys and values, and what must be moved for that; who yields, and when he comes back, is
the scheduler's business. What is moved where, and how, is the executors'.
"""

from typing import NamedTuple

from chairlift.cache.pool import BlockPool
from chairlift.cache.prefix import Match
from chairlift.core.types import Move, Sequence
from chairlift.schedule.layouts import Memory

TOKENS_A_BLOCK = 2
"""To move a block there and back takes about as long as to compute so many tokens, by arithmetic: of 8 billion weights a token
takes 16 GFLOP, and 16 tokens have keys and values of 2 MiB, which at 500 TFLOP/s and 50 GB/s are 32 and twice 42 us."""


class Stored(NamedTuple):
    """The keys and values of the first `computed` tokens of a sequence, in `blocks` of the host."""

    blocks: list[int]
    computed: int


class Swapping:
    """`device`, and behind it `host`. Without blocks of the host it is that memory and nothing else.

    All blocks of a sequence are stored, those too that others hold or that the prefix index knows: nobody can say how long
    they will be there. Those that the index still finds when it comes back are shared as ever, and only the others are loaded.
    If the host has no room for all of them, nothing is stored, and the sequence will be computed again.

    The moves of a step are handed out in an order in which each may be done before the next: stores, copies, loads. So a block
    is stored before another sequence gets it, and a load may follow upon the store of the same host block.
    """

    def __init__(self, device: Memory, host: BlockPool, *, block_size: int) -> None:
        self.device = device
        self.host = host
        self._size = block_size
        self._stored: dict[Sequence, Stored] = {}
        self._stores: dict[int, int] = {}
        """By host blocks, as the same may be wanted for another sequence before anything is moved."""
        self._loads: list[Move] = []
        # All that the host changes nothing about is asked of the layout itself, without a call in between.
        self.pool = device.pool
        self.match, self.need, self.lacks = device.match, device.need, device.lacks
        self.grow, self.fork, self.release = device.grow, device.fork, device.release
        self.enter, self.distrust = device.enter, device.distrust

    def missing(self, sequence: Sequence, match: Match) -> int:
        """Tokens that it will miss when it has got on."""
        missing = self.device.missing(sequence, match)
        stored = self._stored.get(sequence)
        return missing if stored is None else min(missing, len(sequence.tokens) - stored.computed)

    def recomputation(self, sequence: Sequence) -> int:
        """What a preemption would cost, in tokens to compute again, or in those that moving its blocks is worth."""
        if self._has_room(sequence):
            return TOKENS_A_BLOCK * self._blocks(sequence)
        return self.device.recomputation(sequence)

    def seat(self, sequence: Sequence, match: Match) -> None:
        """Gives it blocks for all tokens that it has, and what was stored of it back."""
        self.device.seat(sequence, match)
        stored = self._stored.pop(sequence, None)
        if stored is None:
            return
        if stored.computed > sequence.computed:
            first = len(match.blocks)
            places = zip(stored.blocks[first:], sequence.blocks[first:], strict=False)  # the rest are for tokens to come
            self._loads += [Move("load", source, target) for source, target in places]
            sequence.computed = stored.computed
        self.host.release(stored.blocks, worth=())

    def store(self, sequence: Sequence) -> None:
        """Puts away what a sequence has that is about to lose its blocks, if there is room for it."""
        assert not self._loads, "nobody yields after another has got on in the same step"
        self.device.keep(sequence)
        if self._has_room(sequence):
            blocks = self.host.take(self._blocks(sequence))
            self._stores.update(zip(blocks, sequence.blocks, strict=False))
            self._stored[sequence] = Stored(blocks, sequence.computed)

    def stored(self, sequence: Sequence) -> Stored | None:
        """What the host has of a sequence that waits."""
        return self._stored.get(sequence)

    @property
    def away(self) -> int:
        """How many wait of whom the host has something."""
        return len(self._stored)

    def drop(self, sequence: Sequence) -> None:
        """It does not come back."""
        stored = self._stored.pop(sequence, None)
        if stored is not None:
            self.host.release(stored.blocks, worth=())

    def lose(self) -> None:
        """The executor has failed: nothing that it was to move, or has moved, is trusted any more. Nobody runs."""
        for sequence in list(self._stored):
            self.drop(sequence)
        self._stores.clear()
        self._loads.clear()
        self.device.moves()
        self.device.lose()

    def moves(self) -> tuple[Move, ...]:
        """What has to be moved since this was last asked, before anything else is computed."""
        moves = self.device.moves()
        if self._stores or self._loads:
            stores = [Move("store", source, target) for target, source in self._stores.items()]
            moves = (*stores, *moves, *self._loads)
            self._stores.clear()
            self._loads.clear()
        return moves

    def _has_room(self, sequence: Sequence) -> bool:
        return 0 < self._blocks(sequence) <= self.host.free

    def _blocks(self, sequence: Sequence) -> int:
        """Blocks that hold what is computed of it."""
        return -(-sequence.computed // self._size)
