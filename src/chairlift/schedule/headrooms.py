"""When memory is enough for one more. Knows the pool; knows nothing of queues and budgets."""

from bisect import insort
from collections import deque
from collections.abc import Iterable
from math import ceil

from chairlift.cache.pool import BlockPool
from chairlift.core.types import Sequence
from chairlift.schedule.policy import Past


class Optimistic:
    """Admits whoever fits now, trusting that most answers stay short; when the trust was wrong, somebody is preempted.

    It leaves free a share `watermark` of the pool, and at least a block for each running sequence, which may need one soon.
    If nothing runs, no spare is asked for: whatever passed the door can run alone.
    """

    def __init__(self, *, watermark: float = 0.01) -> None:
        self.watermark = watermark

    def admits(self, sequence: Sequence, need: int, pool: BlockPool, running: list[Sequence]) -> bool:
        spare = max(self.watermark * pool.total, len(running)) + len(sequence.followers) if running else 0
        return pool.free - need >= spare

    def observe(self, past: Past) -> None: ...


class Reserve:
    """Admits only who can grow to his limit beside all others who grow to theirs. Nobody ever yields for want of memory.

    Most of what it keeps free is never used, as most answers stay short.
    """

    def __init__(self, *, block_size: int) -> None:
        self._block_size = block_size

    def admits(self, sequence: Sequence, need: int, pool: BlockPool, running: list[Sequence]) -> bool:
        """Beside nobody only one choice of a request must be able to grow: the others wait if there is no room for them."""
        if not running:
            return pool.free - need >= _growth(sequence, 1.0, self._block_size)
        growth = sum(_family_growth(other, 1.0, self._block_size) for other in (sequence, *running))
        return pool.free - need >= growth + _copies((sequence, *running), pool, self._block_size)

    def observe(self, past: Past) -> None: ...


class Granted:
    """Admits whoever fits. For memory in which one gets at once all that he may ever need, so that nobody grows."""

    def admits(self, sequence: Sequence, need: int, pool: BlockPool, running: list[Sequence]) -> bool:  # noqa: ARG002
        return pool.free >= need

    def observe(self, past: Past) -> None: ...


MOST_ANSWERS = 256
"""So many of the latest answers are looked back on."""

RAISE = 0.1
"""Of its limit, that every answer is expected to get longer after a preemption."""

RELAX = 0.01
"""The same, taken back with every answer that ends."""


class Expected:
    """As `Reserve`, but answers are expected to use only that part of their limits which a share `quantile` of them stayed in.

    The parts are those of the latest answers; before there are any, answers are expected to use everything. Every preemption
    for want of memory shows that it expected too little, and raises what it expects for a while.
    """

    def __init__(self, *, block_size: int, quantile: float = 0.9) -> None:
        self._block_size = block_size
        self._quantile = quantile
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []
        self._raised = 0.0

    @property
    def part(self) -> float:
        """Of its limit, that an answer is expected to use: from 0 to 1."""
        if not self._sorted:
            return 1.0
        place = min(int(self._quantile * len(self._sorted)), len(self._sorted) - 1)
        return min(1.0, self._sorted[place] + self._raised)

    def admits(self, sequence: Sequence, need: int, pool: BlockPool, running: list[Sequence]) -> bool:
        """Alone anybody is admitted; beside others a block is left for each of them, whatever is expected."""
        if not running:
            return pool.free >= need
        part = self.part
        growth = sum(max(1, _family_growth(other, part, self._block_size)) for other in running)
        growth += _family_growth(sequence, part, self._block_size) + _copies((sequence, *running), pool, self._block_size)
        return pool.free - need >= growth

    def observe(self, past: Past) -> None:
        self._raised = min(1.0, self._raised + RAISE * past.starved)
        for sequence in past.finished:
            if sequence.finish in ("stop", "length"):
                self._learn(sequence.generated / sequence.request.stopping.max_tokens)
                self._raised = max(0.0, self._raised - RELAX)

    def _learn(self, part: float) -> None:
        self._latest.append(part)
        insort(self._sorted, part)
        if len(self._latest) > MOST_ANSWERS:
            self._sorted.remove(self._latest.popleft())


def _family_growth(sequence: Sequence, part: float, block_size: int) -> int:
    """The same with its followers, who share the full blocks of the prompt and nothing else."""
    own = _growth(sequence, part, block_size)
    if not sequence.followers:
        return own
    return own + len(sequence.followers) * (-(-_final(sequence, part) // block_size) - sequence.prompt_len // block_size)


def _copies(sequences: Iterable[Sequence], pool: BlockPool, block_size: int) -> int:
    """Blocks into which forks will copy what they share and are about to write into: all but the last that does so."""
    last = {one.blocks[one.computed // block_size] for one in sequences if one.blocks and one.computed % block_size}
    return sum(pool.references(block) - 1 for block in last)


def _growth(sequence: Sequence, part: float, block_size: int) -> int:
    """Blocks that it takes beyond those it has, or will have as it gets on, if its answer uses this part of its limit.

    The last token of an answer needs no place: nothing is computed from it. Whoever runs but was not served in this step may
    still have to take the block of his last token.
    """
    held = len(sequence.blocks) or -(-len(sequence.tokens) // block_size)
    return max(0, -(-_final(sequence, part) // block_size) - held)


def _final(sequence: Sequence, part: float) -> int:
    """Tokens that will be stored."""
    return sequence.prompt_len + ceil(part * sequence.request.stopping.max_tokens) - 1
