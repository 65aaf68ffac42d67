"""Who is first, and who yields. Knows ranks; knows neither memory nor the step's budget."""

from bisect import insort
from collections.abc import Callable, Iterator

from chairlift.core.types import Sequence

Rank = Callable[[Sequence], tuple[float, ...]]


def arrival(sequence: Sequence) -> tuple[float, ...]:
    """First come, first served. Whoever was preempted came before all who never started, so it also resumes before them."""
    return (sequence.request.arrival,)


class Ranked:
    """A queue sorted by rank; equal ranks keep the order in which they came.

    A sorted list: queues are hundreds long, and there a binary search and a move of pointers beat any cleverer structure.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._waiting: list[Sequence] = []

    def rank(self, sequence: Sequence) -> tuple[float, ...]:
        return (*self._rank(sequence), sequence.number)

    def push(self, sequence: Sequence) -> None:
        insort(self._waiting, sequence, key=self.rank)

    def remove(self, sequence: Sequence) -> None:
        self._waiting.remove(sequence)

    def peek(self) -> Sequence | None:
        return self._waiting[0] if self._waiting else None

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._waiting)

    def __len__(self) -> int:
        return len(self._waiting)

    def victim(self, candidates: list[Sequence]) -> Sequence:
        """The worst by the same rank that sorts the queue."""
        return max(candidates, key=self.rank)
