"""Blocks at random: seated, grown, filled, forked and released, with lengths at and around the edges of blocks.

A shadow remembers which tokens each block holds. Whatever the index names must hold what it was entered for, whoever runs
must find his own tokens in his blocks, and what is held and what is free must be all there is.
"""

from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from virtual import request

from chairlift.cache.check import check
from chairlift.cache.pool import BlockPool
from chairlift.cache.prefix import Match, PrefixIndex
from chairlift.core.types import Sequence
from chairlift.schedule.memory import Paged

BLOCKS = 20
WHICH = st.integers(0, 11)
NOTHING = Match([], "")


class MemoryMachine(RuleBasedStateMachine):
    @initialize(size=st.sampled_from([1, 2, 3, 4, 4]))
    def start(self, size: int) -> None:
        self.size = size
        self.pool, self.index = BlockPool(BLOCKS), PrefixIndex(size)
        self.memory = Paged(self.pool, self.index)
        self.running: list[Sequence] = []
        self.contents: dict[int, list[int | None]] = {block: [None] * size for block in range(BLOCKS)}
        self.count = self.copied = 0

    @rule(blocks=st.integers(0, 4), beyond=st.integers(0, 2), kind=st.integers(0, 1), salt=st.sampled_from("st"))
    def seat(self, blocks: int, beyond: int, kind: int, salt: str) -> None:
        """A prompt that ends at the edge of a block or near it, out of two texts."""
        length = max(1, blocks * self.size + beyond - 1)
        sequence = Sequence(request(str(self.count), [kind + place % 3 for place in range(length)], cache_salt=salt))
        self.count += 1
        match = self.memory.match(sequence)
        need = self.memory.need(sequence, match)
        if need > self.pool.free:
            return
        free = self.pool.free
        self.memory.seat(sequence, match)
        assert self.pool.free == free - need
        self.running.append(sequence)
        self._compute(sequence)

    @rule(which=WHICH, count=st.integers(1, 5), token=st.integers(0, 1))
    def grow(self, which: int, count: int, token: int) -> None:
        """New tokens, one after the other, each computed when it has a place."""
        for sequence in self._chosen(which) * count:
            need = self.memory.lacks(sequence, len(sequence.tokens) + 1)
            if need > self.pool.free:
                return
            sequence.tokens.append(token)
            free = self.pool.free
            self.memory.grow(sequence, len(sequence.tokens))
            assert (self.pool.free, self.memory.lacks(sequence, len(sequence.tokens))) == (free - need, 0)
            self._compute(sequence)

    @rule(which=WHICH, count=st.integers(1, 3))
    def fork(self, which: int, count: int) -> None:
        for sequence in self._chosen(which) * count:
            follower = Sequence(sequence.request, choice=1)
            follower.tokens = sequence.tokens[:]
            free = self.pool.free
            self.memory.fork(sequence, follower)
            assert self.pool.free == free
            self.running.append(follower)

    @rule(first=WHICH, count=st.sampled_from([1, 1, 1, 2, 3, 12]))
    def release(self, first: int, count: int) -> None:
        """Those who leave together free what they share with nobody else."""
        leaving = self.running[first : first + count]
        free, freed = self.pool.free, self.memory.freed(leaving, NOTHING)
        for sequence in leaving:
            self.running.remove(sequence)
            self.memory.release(sequence)
        assert self.pool.free == free + freed

    @invariant()
    def everything_is_accounted_for(self) -> None:
        if not hasattr(self, "memory"):
            return
        check(self.pool, self.index, self.running, self.size)
        for sequence in self.running:
            held = [token for block in sequence.blocks for token in self.contents[block]]
            assert held[: sequence.computed] == list(sequence.tokens[: sequence.computed])

    @invariant()
    def the_index_names_only_what_is_there(self) -> None:
        for block in getattr(self, "index", ()):
            _, _, (_, tokens) = self.index._of_block[block]
            assert tokens == sequence_of(self.contents[block])

    def teardown(self) -> None:
        event(f"copied: {getattr(self, 'copied', 0) > 0}")

    def _chosen(self, which: int) -> list[Sequence]:
        """One of those who run, or nobody if nobody does."""
        return [self.running[which % len(self.running)]] if self.running else []

    def _compute(self, sequence: Sequence) -> None:
        """What an executor does: first the copies, then the tokens that are missing."""
        for move in self.memory.moves():
            self.copied += 1
            self.contents[move.target] = self.contents[move.source][:]
        for place in range(sequence.computed, len(sequence.tokens)):
            block = sequence.blocks[place // self.size]
            assert self.pool.references(block) == 1, "a block that others hold too is not written"
            assert block not in self.index, "what is indexed is not written"
            self.contents[block][place % self.size] = sequence.tokens[place]
        sequence.computed = len(sequence.tokens)
        self.memory.enter(sequence, sequence.computed)


def sequence_of(tokens: list[int | None]) -> bytes:
    """As the index spells them."""
    assert None not in tokens
    return Sequence(request("none", [token for token in tokens if token is not None])).tokens.tobytes()


MemoryMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestMemory = MemoryMachine.TestCase
