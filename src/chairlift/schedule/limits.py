"""When a request has taken too long: in the queue, in all, or since its last token. Knows moments; does not end anybody.

A heap holds every limited sequence once, by the earliest moment at which it may have to end. That moment is only a promise
not to look before: a sequence that has got on or written a token meanwhile is looked at again later. So neither a step nor a
token costs anything for those whose time has not come.
"""

import heapq
import math
from collections.abc import Iterable

from chairlift.core.types import Limits, Sequence

SPARE = 64
"""So many endings at least go by between two clearings of the heap, so that a small one is not cleared at every turn."""


UNLIMITED = Limits()


class TimeLimits:
    """The limits of all sequences in flight."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Sequence]] = []
        self._ended = 0
        """Endings since the heap was last cleared."""
        self._fresh: list[Sequence] = []
        """They have got a token since the last step began."""

    def watch(self, sequence: Sequence) -> None:
        """A new one. `stall_s` must be above 0."""
        assert sequence.request.limits.stall_s is None or sequence.request.limits.stall_s > 0, "no time is no limit"
        self._push(sequence, sequence.request.arrival)

    def progress(self, sequences: Iterable[Sequence]) -> None:
        """They have got a token."""
        self._fresh += sequences

    def forget(self, sequence: Sequence) -> None:
        """It has ended. What a finished request holds must not outlive it for as long as it might have taken."""
        self._ended += sequence.request.limits != UNLIMITED
        if self._ended > SPARE + len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if entry[2].finish is None]
            heapq.heapify(self._heap)
            self._ended = 0

    def expired(self, now: float) -> list[Sequence]:
        """Those whose time is over, each once. A token of the step before has come now: before, nobody could have read it."""
        for sequence in self._fresh:
            sequence.last_token_at = now
        self._fresh.clear()
        late: list[Sequence] = []
        while self._heap and self._heap[0][0] <= now:
            sequence = heapq.heappop(self._heap)[2]
            if sequence.finish is not None:
                continue
            if _due(sequence, now) <= now:
                late.append(sequence)
            else:
                self._push(sequence, now)
        return late

    def wake_at(self) -> float | None:
        """When to look again, or None."""
        while self._heap and self._heap[0][2].finish is not None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _push(self, sequence: Sequence, now: float) -> None:
        due = _due(sequence, now)
        if due < math.inf:
            heapq.heappush(self._heap, (due, sequence.number, sequence))


def _due(sequence: Sequence, now: float) -> float:
    """The earliest moment at which the sequence may have to end, as far as is known now.

    The time between tokens counts from the first one on: until then there is the queue, and a prompt that takes its time.
    """
    limits, due = sequence.request.limits, math.inf
    if limits.finish_until is not None:
        due = limits.finish_until
    if limits.queue_until is not None and not sequence.started:
        due = min(due, limits.queue_until)
    if limits.stall_s is not None:
        due = min(due, (now if sequence.last_token_at is None else sequence.last_token_at) + limits.stall_s)
    return due
