"""How long an answer will get, guessed from those that have ended, and a key by what it takes. Knows lengths, but no texts."""

from collections import OrderedDict

from chairlift.core.types import Request, Sequence
from chairlift.schedule.policy import Past

MAX_MEANS = 4096
"""So many means are kept; the one that was not brought up to date for the longest is dropped."""

LEAST_ANSWERS = 4
"""A mean of fewer answers is not trusted."""

MEMORY = 64
"""Answers that a mean looks back on, about: it follows what changes."""

LENGTH_WEIGHT = 2.0
"""Somebody whose answer is expected to take longer goes first if he came earlier by so many times the difference."""

FIRST_STEP_S = 0.02
"""What a step is held to take before any was measured."""

STEP_MEMORY = 0.99
"""What is left of the weight of a measured step one step later."""


class Lengths:
    """Running means of answers' lengths in tokens: by tenant and prompt length, by prompt length, and of all."""

    def __init__(self) -> None:
        self._means: OrderedDict[tuple[str, int] | int | None, tuple[float, int]] = OrderedDict()

    def expected(self, request: Request) -> float:
        """Tokens of the answer: the mean of the most alike requests of which enough are known, but never above the limit."""
        for key in _keys(request):
            mean, count = self._means.get(key, (0.0, 0))
            if count >= LEAST_ANSWERS:
                return min(mean, request.stopping.max_tokens)
        return request.stopping.max_tokens

    def observe(self, past: Past) -> None:
        """Answers that were broken off tell nothing about their length."""
        for sequence in past.finished:
            if sequence.finish in ("stop", "length"):
                for key in _keys(sequence.request):
                    self._learn(key, sequence.generated)

    def _learn(self, key: tuple[str, int] | int | None, length: int) -> None:
        mean, count = self._means.pop(key, (0.0, 0))
        count = min(count + 1, MEMORY)
        self._means[key] = (mean + (length - mean) / count, count)
        if len(self._means) > MAX_MEANS:
            self._means.popitem(last=False)


class StepTime:
    """What a step takes on average, which is the time between two tokens of an answer."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._steps = 0.0

    @property
    def seconds(self) -> float:
        return self._seconds / self._steps if self._steps else FIRST_STEP_S

    def observe(self, past: Past) -> None:
        if past.plan is not None and past.elapsed_s > 0:
            self._seconds = STEP_MEMORY * self._seconds + past.elapsed_s
            self._steps = STEP_MEMORY * self._steps + 1


class ShortestFirst:
    """A key: arrival, and later by `weight` times what the answer is expected to take.

    So a short answer overtakes a long one, but only one that came at most a bounded time before it: the time that an answer
    takes is the scale by which it can be asked to wait.
    """

    def __init__(self, lengths: Lengths, step: StepTime, *, weight: float = LENGTH_WEIGHT) -> None:
        self._lengths = lengths
        self._step = step
        self._weight = weight

    def __call__(self, sequence: Sequence) -> float:
        return sequence.request.arrival + self._weight * self._step.seconds * self._lengths.expected(sequence.request)


def _keys(request: Request) -> tuple[tuple[str, int], int, None]:
    """Prompts between two powers of 2 are alike."""
    size = len(request.prompt).bit_length()
    return (request.tenant, size), size, None
