"""Which neighbouring blocks are free, for who needs them in one piece. Knows block numbers; who holds the others is unknown."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator


class FreeRuns:
    """The free ones of `total` blocks, as runs that begin as far left and reach as far right as they can."""

    def __init__(self, total: int) -> None:
        self._runs = [(0, total)]
        """Where each begins and ends, in ascending order, with somebody's blocks between any two."""

    def __iter__(self) -> Iterator[range]:
        return (range(begin, end) for begin, end in self._runs)

    def longest(self, returned: Iterable[range] = ()) -> int:
        """Blocks of the longest run there would be if these came back as well."""
        best = begin = end = 0
        for first, behind in sorted([*self._runs, *((run.start, run.stop) for run in returned)]):
            if first != end:
                begin = first
            end = behind
            best = max(best, end - begin)
        return best

    def take(self, count: int) -> range:
        """So many neighbours, out of the first run that has them (first fit: Knuth, TAOCP 2.5)."""
        for place, (begin, end) in enumerate(self._runs):
            if end - begin >= count:
                rest = [(begin + count, end)] if end - begin > count else []
                self._runs[place : place + 1] = rest
                return range(begin, begin + count)
        raise AssertionError("only a run that is there is taken")

    def release(self, run: range) -> None:
        """Gives a run back, and joins it to the free ones on both sides."""
        begin, end = run.start, run.stop
        place = bisect_left(self._runs, (begin, end))
        before, behind = self._runs[max(0, place - 1) : place], self._runs[place : place + 1]
        assert all(other[1] <= begin for other in before), "a run is given back once"
        assert all(end <= other[0] for other in behind), "a run is given back once"
        first, last = place, place
        if before and before[0][1] == begin:
            begin, first = before[0][0], place - 1
        if behind and behind[0][0] == end:
            end, last = behind[0][1], place + 1
        self._runs[first:last] = [(begin, end)]
