"""How long an answer will get, guessed from those that have ended. Knows lengths and tenants, but no texts."""

from collections import OrderedDict

from chairlift.core.types import Request
from chairlift.schedule.policy import Past

MAX_MEANS = 4096
"""So many means are kept; the one that was not brought up to date for the longest is dropped."""

LEAST_ANSWERS = 4
"""A mean of fewer answers is not trusted."""

MEMORY = 64
"""Answers that a mean looks back on, about: it follows what changes."""


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


def _keys(request: Request) -> tuple[tuple[str, int], int, None]:
    """Prompts between two powers of 2 are alike."""
    size = len(request.prompt).bit_length()
    return (request.tenant, size), size, None
