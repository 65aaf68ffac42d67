"""When waiting requests may join: at every step (continuous batching), or in groups that run to their end.

Knows who waits, who runs and the time; knows nothing of memory and budgets.
"""

from array import array
from bisect import bisect_right
from itertools import accumulate

from chairlift.core.types import Sequence, Work
from chairlift.schedule.policy import Order, Past


class Continuous:
    """Whoever is first may join at any step. This is what makes batching continuous."""

    evicts = True

    def next(self, queue: Order, running: list[Sequence], now: float) -> Sequence | None:  # noqa: ARG002
        return queue.peek(now)

    def wake_at(self, queue: Order, running: list[Sequence]) -> float | None:  # noqa: ARG002
        return None

    def padding(self, budget: int) -> list[Work]:  # noqa: ARG002
        return []

    def observe(self, past: Past) -> None: ...


class Group:
    """Requests are taken in groups of at most `size` choices, and a group runs to its end before the next one is taken.

    With `wait_s` 0 this is static batching: when all places are empty it takes what waits. With more it is dynamic batching:
    it takes a group when `size` requests wait or the oldest has waited for that long. Three forms make comparisons fair:

    - padded: like a tensor with fixed rows, every prompt is computed as long as the longest, and a finished row goes on being
      computed until the last one ends. Padding attends to nothing and takes what the
      step's budget has left, so its cost is understated rather than overstated.
    - compacted (`padded=False`): finished rows are dropped from the computation, but their places stay closed.
    - `by_length`: the group is the first request of the queue and those whose expected length is nearest to its own, so that
      there is less to pad. The first is always in it, so nobody starves whom the order does not starve.

    A finished text is delivered at once in all of them.
    """

    evicts = False

    def __init__(self, *, size: int, wait_s: float = 0.0, padded: bool = False, by_length: bool = False) -> None:
        self.size = size
        self.wait_s = wait_s
        self.padded = padded
        self.by_length = by_length
        self._members: dict[str, Sequence] = {}
        self._owed: dict[str, int] = {}
        """Padding of a member's prompt that is still to be computed."""

    def next(self, queue: Order, running: list[Sequence], now: float) -> Sequence | None:
        for member in self._members.values():
            if not member.running and not member.finish and member.leader is None:  # it has not joined yet, or was preempted
                return member
        if running or not len(queue) or not (_places(queue) >= self.size or now >= _oldest(queue) + self.wait_s):
            return None
        self._form(list(queue))
        return next(iter(self._members.values()))

    def wake_at(self, queue: Order, running: list[Sequence]) -> float | None:
        return None if running or not len(queue) else _oldest(queue) + self.wait_s

    def padding(self, budget: int) -> list[Work]:
        if not self.padded or all(member.finish for member in self._members.values()):
            return []
        rows: list[Work] = []
        for member in self._members.values():
            count = min(1 if member.finish else self._owed[member.id], budget)
            if count == 0 or member.leader is not None:
                continue
            rows.append(Work(member.id, len(member.tokens), array("i", bytes(4 * count)), array("i"), pad=True))
            budget -= count
            if not member.finish:
                self._owed[member.id] -= count
        return rows

    def observe(self, past: Past) -> None:
        """A member that ended before it ever ran has no row to be padded."""
        for sequence in past.finished:
            if sequence.id in self._members and not sequence.started:
                del self._members[sequence.id]

    def _form(self, waiting: list[Sequence]) -> None:
        if self.by_length:
            first = waiting[0]
            waiting.sort(key=lambda sequence: abs(_expected(sequence) - _expected(first)))
        places = accumulate(member.places for member in waiting)
        group = [one for member in waiting[: bisect_right(list(places), self.size)] for one in (member, *member.followers)]
        longest = max(len(member.tokens) for member in group)
        self._members = {member.id: member for member in group}
        self._owed = {member.id: longest - len(member.tokens) for member in group}


def _places(queue: Order) -> int:
    """Places that all who wait would take."""
    return sum(sequence.places for sequence in queue)


def _oldest(queue: Order) -> float:
    """The earliest arrival of all that wait, whoever is first among them."""
    return min(sequence.request.arrival for sequence in queue)


def _expected(sequence: Sequence) -> int:
    """The length that the request may grow to: all that is known of it before it runs."""
    return sequence.prompt_len + sequence.request.stopping.max_tokens
