"""A queue in which prompts go first whose beginning is in the cache. Asks the prefix index; knows neither steps nor blocks."""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice

from chairlift.cache.prefix import PrefixIndex, Trail
from chairlift.core.types import Sequence
from chairlift.schedule.orders import arrival
from chairlift.schedule.queues import Sorted

S_PER_CACHED_TOKEN = 0.05
"""A prompt that has a token less in the cache goes first if it came so many seconds earlier."""

REFRESHED = 4
"""So many waiting prompts are looked up in the cache again in each step, besides the first one."""


class CachedFirst:
    """A queue by arrival, and so many seconds earlier for each token of the prompt that is in the cache.

    The cache changes all the time. The first one's share of it is looked up whenever it is asked for, and that of a few others
    in each step, in turn, so the cost does not grow with the queue.
    """

    def __init__(self, index: PrefixIndex, *, s_per_token: float = S_PER_CACHED_TOKEN) -> None:
        self._index = index
        self._s_per_token = s_per_token
        self._sorted = Sorted(self._key)
        self._trails: dict[str, Trail] = {}
        """What of each was in the cache when it was last looked up."""
        self._turns: OrderedDict[str, Sequence] = OrderedDict()
        """All who wait; the one that was looked up the longest ago is the first."""
        self._refreshed_at: float | None = None
        self._seen: tuple[Sequence | None, int] = (None, 0)
        """Who was first when he was last looked up, and how often the cache had changed by then."""

    def push(self, sequence: Sequence) -> None:
        self._sorted.push(sequence)
        self._turns[sequence.id] = sequence

    def remove(self, sequence: Sequence) -> None:
        self._sorted.remove(sequence)
        del self._turns[sequence.id], self._trails[sequence.id]

    def peek(self, now: float) -> Sequence | None:
        if now != self._refreshed_at:
            self._refreshed_at = now
            self._refresh()
        for _ in range(REFRESHED):
            first = self._sorted.peek(now)
            now_seen = (first, self._index.changes)
            if first is None or now_seen == self._seen:
                break
            if not self._look_up(first):
                self._seen = now_seen
                break
        return self._sorted.peek(now)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sorted)

    def __len__(self) -> int:
        return len(self._sorted)

    def badness(self, sequence: Sequence) -> tuple[float, ...]:
        return (arrival(sequence), sequence.number)

    def _refresh(self) -> None:
        for sequence in list(islice(self._turns.values(), REFRESHED)):
            self._look_up(sequence)
            self._turns.move_to_end(sequence.id)

    def _look_up(self, sequence: Sequence) -> bool:
        """Sorts it by what of it is in the cache now. True if that has changed."""
        key = self._key(sequence)
        if key == self._sorted.key_of(sequence):
            return False
        self._sorted.put(sequence, key)
        return True

    def _key(self, sequence: Sequence) -> float:
        known = self._trails.get(sequence.id)
        trail = self._index.retrace(sequence.tokens, sequence.request.cache_salt, known)
        self._trails[sequence.id] = trail
        return arrival(sequence) - self._s_per_token * len(trail.match.blocks) * self._index.block_size
