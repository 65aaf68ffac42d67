"""The block pool: counts, eviction order, and a state machine against a plain model."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from chairlift.cache.pool import BlockPool


def test_all_blocks_are_free_at_first():
    assert BlockPool(3).free == 3


def test_taking_more_than_is_free_is_our_mistake():
    with pytest.raises(AssertionError):
        BlockPool(3).take(4)


def test_releasing_twice_is_our_mistake():
    pool = BlockPool(1)
    blocks = pool.take(1)
    pool.release(blocks, worth=())
    with pytest.raises(AssertionError):
        pool.release(blocks, worth=())


def test_the_tail_of_a_sequence_is_evicted_before_its_head():
    pool = BlockPool(3)
    head, middle, tail = pool.take(3)
    pool.release([head, middle, tail], worth={head, middle, tail})
    assert pool.take(3) == [tail, middle, head]


def test_worthless_blocks_are_taken_before_cached_ones():
    pool = BlockPool(3)
    first, second, third = pool.take(3)
    pool.release([first], worth={first})
    pool.release([second, third], worth={second})
    assert pool.take(3) == [third, first, second]


def test_the_least_recently_released_is_evicted_first():
    pool = BlockPool(2)
    first, second = pool.take(2)
    pool.release([second], worth={first, second})
    pool.release([first], worth={first, second})
    assert pool.take(2) == [second, first]


def test_sharing_revives_a_free_block():
    pool = BlockPool(2)
    (block,) = pool.take(1)
    pool.release([block], worth={block})
    pool.share([block])
    assert (pool.free, pool.references(block)) == (1, 1)


@settings(max_examples=60, stateful_step_count=40)
class PoolMachine(RuleBasedStateMachine):
    """Random holders take, share and release; the model is a list of what each holds."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(8)
        self.holders: list[list[int]] = []

    @precondition(lambda self: self.pool.free)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, self.pool.free))
        blocks = self.pool.take(count)
        assert not set(blocks) & {block for held in self.holders for block in held}
        self.holders.append(blocks)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.holders))
        prefix = held[: data.draw(st.integers(1, len(held)))]
        self.pool.share(prefix)
        self.holders.append(list(prefix))

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), worth=st.sets(st.integers(0, 7)))
    def release(self, data: st.DataObject, worth: set[int]) -> None:
        position = data.draw(st.integers(0, len(self.holders) - 1))
        self.pool.release(self.holders.pop(position), worth=worth)

    @invariant()
    def counts_equal_holders(self) -> None:
        owners = Counter(block for held in self.holders for block in held)
        assert all(self.pool.references(block) == owners[block] for block in range(8))
        assert self.pool.free == 8 - len(owners)


TestPool = PoolMachine.TestCase
