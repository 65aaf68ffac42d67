"""Prompts that made the model fail, and are not taken again for a while. Knows tokens and moments."""

import hashlib
from array import array
from collections.abc import Sequence

from chairlift.core.errors import Refused

REFUSED_S = 600.0
MAX_REFUSED = 1024
"""Prompts that are remembered; beyond them the oldest is taken again."""


class Refusals:
    """Keeps digests, not the prompts. `now` is in seconds and never goes back."""

    def __init__(self) -> None:
        self._until: dict[bytes, float] = {}

    def add(self, prompt: Sequence[int], now: float) -> None:
        digest = _digest(prompt)
        self._until.pop(digest, None)  # to stand last again
        self._until[digest] = now + REFUSED_S
        if len(self._until) > MAX_REFUSED:
            del self._until[next(iter(self._until))]

    def check(self, prompt: Sequence[int], now: float) -> None:
        """Raises Refused for a prompt that is not to be taken."""
        if not self._until:
            return
        left_s = self._until.get(_digest(prompt), now) - now
        if left_s > 0:
            raise Refused(f"this prompt has made the model fail; it is not taken again for {left_s:.0f} s")


def _digest(prompt: Sequence[int]) -> bytes:
    return hashlib.blake2b(array("q", prompt).tobytes(), digest_size=16).digest()
