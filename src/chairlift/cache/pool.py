"""Who holds which block of KV memory. Knows block numbers and reference counts; knows neither tokens nor tensors.

A block is held while its count is above zero, and free otherwise. A free block keeps its contents until it is taken again, so
the free list is also the eviction order: blocks worth nothing first, then the least recently released.
"""

from collections import OrderedDict
from collections.abc import Container, Iterable, Sequence


class BlockPool:
    """`total` blocks, numbered from 0."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._references = [0] * total
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(total))

    @property
    def free(self) -> int:
        """Blocks that nobody holds, those with reusable contents included."""
        return len(self._free)

    def references(self, block: int) -> int:
        return self._references[block]

    def idle(self, blocks: Iterable[int]) -> int:
        """How many of these are free."""
        return [self._references[block] for block in blocks].count(0)

    def take(self, count: int) -> list[int]:
        """Hands out `count` free blocks, each now held once. Their contents are void: what was indexed must be forgotten."""
        assert count <= len(self._free), "the scheduler takes only what is free"
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self._references[block] = 1
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """Holds each block once more; a free one is free no longer."""
        references = self._references
        for block in blocks:
            if not references[block]:
                del self._free[block]
            references[block] += 1

    def release(self, blocks: Sequence[int], *, worth: Container[int]) -> None:
        """Lets go of the blocks of one sequence, given head first.

        The tail becomes free before the head, so that it is also evicted before it: a prefix is of use without its end, but
        not the other way round. Blocks that are not in `worth` can serve nobody and are the next to be taken.
        """
        references, free = self._references, self._free
        for block in reversed(blocks):
            assert references[block] > 0, "a block is released once for each time it was taken or shared"
            references[block] -= 1
            if not references[block]:
                free[block] = None
                if block not in worth:
                    free.move_to_end(block, last=False)
