"""What must always hold between pool, index and sequences. For tests: it costs a walk over everything."""

from collections import Counter
from collections.abc import Iterable

from chairlift.cache.pool import BlockPool
from chairlift.cache.prefix import PrefixIndex
from chairlift.core.types import Sequence


def check(pool: BlockPool, index: PrefixIndex, sequences: Iterable[Sequence], block_size: int) -> None:
    """Raises AssertionError with the first thing that is wrong."""
    alive = list(sequences)
    owners = Counter(block for sequence in alive for block in sequence.blocks)
    counts = {block: pool.references(block) for block in range(pool.total)}
    assert all(count >= 0 for count in counts.values()), "a reference count is negative"
    assert {block: count for block, count in counts.items() if count} == dict(owners), "references differ from owners"
    assert pool.free == sum(count == 0 for count in counts.values()), "the free list differs from the counts"
    for sequence in alive:
        assert len(set(sequence.blocks)) == len(sequence.blocks), f"{sequence} holds a block twice"
        assert sequence.computed <= len(sequence.blocks) * block_size, f"{sequence} computed more than its blocks hold"
        assert sequence.indexed * block_size <= sequence.computed, f"{sequence} indexed what is not computed"
    assert all(0 <= block < pool.total for block in index), "the index names a block that does not exist"
