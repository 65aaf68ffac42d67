"""Who holds which block of KV memory. Knows block numbers and reference counts; knows neither tokens nor tensors.

A block is held while its count is above zero, and free otherwise. A free block keeps its contents until it is taken again, so
the free list is also the eviction order: blocks worth nothing first, then the least recently released.
"""

from collections import deque
from collections.abc import Container, Iterable, Sequence


class BlockPool:
    """`total` blocks, numbered from 0."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.free = total
        """Blocks that nobody holds, those with reusable contents included."""
        self._references = [0] * total
        self._worthless: dict[int, None] = {}
        """Free ones whose contents serve nobody. The last one is taken first."""
        self._queue = deque(range(total))
        """The other free ones, in the order in which they are taken after those."""
        self._void: dict[int, int] = {}
        """Blocks that have lost places in the queue, and how many, the first ones: to search for them would take too long."""

    def references(self, block: int) -> int:
        return self._references[block]

    def idle(self, blocks: Iterable[int]) -> int:
        """How many of these are free."""
        return [self._references[block] for block in blocks].count(0)

    def take(self, count: int) -> list[int]:
        """Hands out `count` free blocks, each now held once. Their contents are void: what was indexed must be forgotten."""
        assert count <= self.free, "the scheduler takes only what is free"
        self.free -= count
        references, worthless, queue, void = self._references, self._worthless, self._queue, self._void
        taken: list[int] = []
        while len(taken) < count:
            block = worthless.popitem()[0] if worthless else queue.popleft()
            if void and block in void:
                self._pass(block)
            else:
                references[block] = 1
                taken.append(block)
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """Holds each block once more; a free one is free no longer."""
        references = self._references
        for block in blocks:
            if not references[block]:
                self._revive(block)
            references[block] += 1

    def release(self, blocks: Sequence[int], *, worth: Container[int]) -> None:
        """Lets go of the blocks of one sequence, given head first.

        The tail becomes free before the head, so that it is also evicted before it: a prefix is of use without its end, but
        not the other way round. Blocks that are not in `worth` can serve nobody and are the next to be taken.
        """
        references = self._references
        idle: list[int] = []
        for block in reversed(blocks):
            left = references[block] - 1
            assert left >= 0, "a block is released once for each time it was taken or shared"
            references[block] = left
            if not left:
                idle.append(block)
        self.free += len(idle)
        worthless = [block for block in idle if block not in worth]
        if worthless:
            self._worthless.update(dict.fromkeys(worthless))
            idle = [block for block in idle if block not in self._worthless]
        self._queue.extend(idle)

    def _revive(self, block: int) -> None:
        self.free -= 1
        if block in self._worthless:
            del self._worthless[block]
            return
        self._void[block] = self._void.get(block, 0) + 1
        if len(self._queue) > 2 * self.total:
            self._tidy()

    def _pass(self, block: int) -> None:
        """One of the places that it has lost is gone."""
        self._void[block] -= 1
        if not self._void[block]:
            del self._void[block]

    def _tidy(self) -> None:
        """Leaves nothing but free blocks in the queue. That is seldom, so it costs little for each block that was revived."""
        queue, self._queue = self._queue, deque[int]()
        for block in queue:
            if block in self._void:
                self._pass(block)
            else:
                self._queue.append(block)
