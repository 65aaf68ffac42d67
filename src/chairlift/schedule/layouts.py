"""How the blocks of sequences lie in the pool, and who hands them out: paged, or each sequence in one piece.

Knows what a scheduler asks of either; what is read through a table and what is not is the executors' business.
"""

from array import array
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from chairlift.cache.pool import BlockPool
from chairlift.cache.prefix import Match, PrefixIndex
from chairlift.cache.runs import FreeRuns
from chairlift.core.config import EngineConfig
from chairlift.core.types import Move, Sequence
from chairlift.schedule.memory import Paged


class Memory(Protocol):
    """The blocks of all sequences of one engine. Counts are of blocks unless they say tokens."""

    @property
    def pool(self) -> BlockPool: ...

    def match(self, sequence: Sequence) -> Match:
        """What is there already of the sequence's tokens."""
        ...

    def missing(self, sequence: Sequence, match: Match) -> int:
        """Tokens that it will miss when it has got on."""
        ...

    def need(self, sequence: Sequence, match: Match, leaving: Collection[Sequence] = ()) -> int:
        """Free blocks that its admission would take, beyond those that `leaving` would free if they left before.

        It is admitted only if so many are free. What cannot be served although enough are free needs more than there are.
        """
        ...

    def lacks(self, sequence: Sequence, tokens: int) -> int:
        """Blocks that it needs beyond those it holds, for so many tokens."""
        ...

    def recomputation(self, sequence: Sequence) -> int:
        """Tokens that would have to be computed again after a preemption, if none of them survives in the cache."""
        ...

    def seat(self, sequence: Sequence, match: Match) -> None:
        """Gives it blocks for all tokens that it has, at least."""
        ...

    def grow(self, sequence: Sequence, tokens: int) -> None:
        """Gives it the blocks for so many tokens, as many as it `lacks`; they must be free. It may write into them at once."""
        ...

    def keep(self, sequence: Sequence) -> None:
        """It is about to lose its blocks, and comes back for what may still be in them then."""
        ...

    def lose(self) -> None:
        """Nothing that was ever computed may be found any more."""
        ...

    def fork(self, sequence: Sequence, follower: Sequence) -> None:
        """Gives the follower what its leader has computed, or nothing: then it has to wait for memory as anybody else."""
        ...

    def moves(self) -> tuple[Move, ...]:
        """What has to be copied since this was last asked, before anything else is computed."""
        ...

    def release(self, sequence: Sequence) -> None:
        """Takes everything back."""
        ...

    def enter(self, sequence: Sequence, computed: int) -> None:
        """Its first `computed` tokens have keys and values, which others may find from now on."""
        ...

    def distrust(self, sequence: Sequence) -> None:
        """Nobody must find anything that the sequence has computed: it has failed."""
        ...


class Contiguous:
    """One run of neighbours for each sequence, for the longest that it may become, from its admission until it leaves.

    So nobody grows, and nobody is ever preempted for want of memory; but most of a run is reserved and never used, and of
    what is free only the longest run counts (external fragmentation). A run has one owner: nothing is found or shared, and
    every choice of a request computes the prompt for itself.
    """

    def __init__(self, pool: BlockPool, *, block_size: int) -> None:
        self.pool = pool
        self.runs = FreeRuns(pool.total)
        self._size = block_size

    def match(self, sequence: Sequence) -> Match:
        return Match([], sequence.request.cache_salt)

    def missing(self, sequence: Sequence, match: Match) -> int:  # noqa: ARG002
        return len(sequence.tokens)

    def need(self, sequence: Sequence, match: Match, leaving: Collection[Sequence] = ()) -> int:  # noqa: ARG002
        """More than the pool has while no run is long enough: that many will never be free."""
        count = self._run(sequence)
        returned = [_held(other) for other in leaving]
        if self.runs.longest(returned) < count:
            return self.pool.total + 1
        return count - sum(map(len, returned))

    def lacks(self, sequence: Sequence, tokens: int) -> int:  # noqa: ARG002
        return 0

    def recomputation(self, sequence: Sequence) -> int:
        return sequence.computed

    def seat(self, sequence: Sequence, match: Match) -> None:  # noqa: ARG002
        run = self.runs.take(self._run(sequence))
        self.pool.share(run)
        sequence.blocks, sequence.room = array("i", run), len(run) * self._size
        sequence.full_at = sequence.room + 1  # it never is: nothing enters an index

    def grow(self, sequence: Sequence, tokens: int) -> None:
        assert tokens <= len(sequence.blocks) * self._size, f"{sequence} has all that it may need"

    def fork(self, sequence: Sequence, follower: Sequence) -> None:
        """Nothing: to copy a prompt into another run would take memory and time at a moment at which nobody has planned it."""

    def keep(self, sequence: Sequence) -> None: ...

    def lose(self) -> None: ...

    def moves(self) -> tuple[Move, ...]:
        return ()

    def release(self, sequence: Sequence) -> None:
        if sequence.blocks:
            self.runs.release(_held(sequence))
        self.pool.release(sequence.blocks, worth=())
        sequence.blocks, sequence.room = array("i"), 0
        sequence.computed = 0

    def enter(self, sequence: Sequence, computed: int) -> None: ...

    def distrust(self, sequence: Sequence) -> None: ...

    def _run(self, sequence: Sequence) -> int:
        """Blocks of all tokens that it may have. The last one of an answer needs no place: nothing is computed from it."""
        return -(-(sequence.prompt_len + sequence.request.stopping.max_tokens - 1) // self._size)


def _held(sequence: Sequence) -> range:
    return range(sequence.blocks[0], sequence.blocks[-1] + 1)


LAYOUTS: Mapping[str, Callable[[EngineConfig, PrefixIndex], Memory]] = {
    "paged": lambda config, index: Paged(BlockPool(config.num_blocks), index),
    "contiguous": lambda config, index: Contiguous(BlockPool(config.num_blocks), block_size=config.block_size),  # noqa: ARG005
}
"""By the names of `core.config.KV_LAYOUTS`."""
