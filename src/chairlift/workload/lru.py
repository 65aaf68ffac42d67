"""Counts prefix hits without an engine: which full blocks of a prompt a cache of so many blocks still has, by definition.

It knows hash ids and counts; it shares no code with the cache that it checks. A block is told by all ids up to it, and blocks
that are not held leave in the order in which they were last let go of, the end of a prompt before its beginning. It is told
what an engine did, in order, and says what must have been found.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush

Path = tuple[int, ...]
"""A block's id after those of all blocks before it."""


@dataclass(slots=True, eq=False)
class _Block:
    """A full block. `parent` is the very block that it was computed after: once that is gone, nobody finds this one."""

    path: Path
    parent: "_Block | None"
    holders: int = 0
    let_go: int = 0
    gone: bool = False


@dataclass(slots=True)
class _Holder:
    """A request that has got on. Of the blocks that it holds, `kept` are those that others can find; `full` are full."""

    ids: Path
    kept: list[_Block] = field(default_factory=list[_Block])
    last: _Block | None = None
    """Where its next full block belongs."""
    full: int = 0
    held: int = 0


class Lru:
    """A cache of `blocks` blocks of `block_size` tokens; None: of as many as are asked for."""

    def __init__(self, blocks: int | None, block_size: int) -> None:
        self._blocks = blocks
        self._size = block_size
        self._known: dict[Path, list[_Block]] = {}
        """Those of a path differ in their parents: at most one of these can be found."""
        self._queue: list[tuple[int, int, _Block]] = []
        """When blocks were let go of. An entry whose block was held since, or is gone, counts no more."""
        self._holders: dict[str, _Holder] = {}
        self._taken = 0
        """Blocks that are held, or that somebody could find."""
        self._time = 0

    def get_on(self, name: str, ids: Iterable[int], tokens: int) -> int:
        """A request with a prompt of `tokens` tokens gets blocks for them. Returns the tokens that need not be computed.

        There is an id for each block that will ever be full; the last token of a prompt is always computed.
        """
        holder = self._holders[name] = _Holder(tuple(ids))
        while (holder.full + 1) * self._size < tokens:
            block = self._find(holder)
            if block is None:
                break
            block.holders += 1
            holder.kept.append(block)
            holder.last = block
            holder.full += 1
        found = holder.held = holder.full
        self.grow(name, tokens)
        return found * self._size

    def grow(self, name: str, tokens: int) -> None:
        """It gets blocks for so many tokens in all."""
        holder = self._holders[name]
        while holder.held * self._size < tokens:
            if self._taken == self._blocks:
                self._evict()
            self._taken += 1
            holder.held += 1

    def compute(self, name: str, tokens: int) -> None:
        """So many tokens of it are computed: full blocks can be found from now on, unless others like them can."""
        holder = self._holders[name]
        while (holder.full + 1) * self._size <= tokens:
            known = self._find(holder)
            if known is None:
                known = _Block(holder.ids[: holder.full + 1], holder.last, holders=1)
                self._known.setdefault(known.path, []).append(known)
                holder.kept.append(known)
            holder.last = known
            holder.full += 1

    def leave(self, name: str) -> None:
        """It lets go of everything. Blocks that nobody could find are as good as never used."""
        holder = self._holders.pop(name)
        self._taken -= holder.held - len(holder.kept)
        for block in reversed(holder.kept):
            block.holders -= 1
            if not block.holders:
                self._time += 1
                block.let_go = self._time
                heappush(self._queue, (self._time, len(block.path), block))

    def _evict(self) -> None:
        while True:
            assert self._queue, "whoever asks for a block knows that there is one"
            time, _, block = heappop(self._queue)
            if not block.holders and not block.gone and block.let_go == time:
                break
        block.gone = True
        self._taken -= 1
        alike = self._known[block.path]
        alike.remove(block)
        if not alike:
            del self._known[block.path]

    def _find(self, holder: _Holder) -> _Block | None:
        """The next full block of a request, if it is there and can be reached from the last one."""
        alike = self._known.get(holder.ids[: holder.full + 1], ())
        return next((block for block in alike if block.parent is holder.last), None)
