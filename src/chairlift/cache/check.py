"""What must always hold between pool, index, runs and sequences. For tests: it costs a walk over everything."""

from collections import Counter
from collections.abc import Iterable
from itertools import groupby

from chairlift.cache.pool import BlockPool
from chairlift.cache.prefix import PrefixIndex
from chairlift.cache.runs import FreeRuns
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
        assert sequence.room <= len(sequence.blocks) * block_size, f"{sequence} has more room than its blocks"
        assert sequence.computed <= len(sequence.blocks) * block_size, f"{sequence} computed more than its blocks hold"
        assert sequence.indexed * block_size <= sequence.computed, f"{sequence} indexed what is not computed"
    assert all(0 <= block < pool.total for block in index), "the index names a block that does not exist"


def check_host(host: BlockPool, stored: Iterable[list[int]]) -> None:
    """Beside `check`, of the store in host memory: AssertionError with the first thing that is wrong."""
    owners = Counter(block for blocks in stored for block in blocks)
    counts = {block: host.references(block) for block in range(host.total)}
    assert {block: count for block, count in counts.items() if count} == dict(owners), "the host counts other owners"
    assert all(count == 1 for count in owners.values()), "a block of the host has two owners"
    assert host.free == host.total - len(owners), "the host's free list differs from the counts"


def check_runs(runs: FreeRuns, pool: BlockPool, sequences: Iterable[Sequence]) -> None:
    """Beside `check`, where every sequence has one run: AssertionError with the first thing that is wrong."""
    for sequence in sequences:
        blocks = sequence.blocks
        assert list(blocks) == list(range(blocks[0], blocks[0] + len(blocks)) if blocks else ()), f"{sequence} has no run"
        assert all(pool.references(block) == 1 for block in blocks), f"{sequence} shares its run"
    free = (block for block in range(pool.total) if pool.references(block) == 0)
    expected = [[block for _, block in run] for _, run in groupby(enumerate(free), key=lambda pair: pair[1] - pair[0])]
    assert [list(run) for run in runs] == expected, "the free runs are not what nobody holds, or are in pieces"
