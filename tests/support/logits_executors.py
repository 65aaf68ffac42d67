"""Executors that hand out logits without a model: right ones, and ones that are wrong in a stated way."""

from array import array
from collections.abc import Callable, Sequence

import numpy as np
from executors import ShadowExecutor
from numpy.typing import NDArray

from chairlift.core.types import Plan, Work

HASHED_VOCAB = 8

Fault = Callable[[Work, Sequence[Work]], bool]
"""Whether a row, among all rows of its step, comes out wrong in its last bit."""


def never(work: Work, step: Sequence[Work]) -> bool:
    return False


class HashedLogits:
    """Logits that depend on all tokens of the prefix, read back through the block table, and on nothing else but `fault`."""

    def __init__(self, num_blocks: int, block_size: int, fault: Fault = never) -> None:
        self._shadow = ShadowExecutor(num_blocks, block_size, lambda prefix: 0)
        self._shadow.next_token = self._take
        self._fault = fault
        self._prefixes: list[tuple[int, ...]] = []

    def logits(self, work: Sequence[Work]) -> NDArray[np.float32]:
        self._prefixes = []
        self._shadow.launch(Plan(0, tuple(work)))
        self._shadow.collect()
        drawing = [row for row in work if row.draws and not row.pad]
        return np.array(
            [_of(prefix, row, work, self._fault) for prefix, row in zip(self._prefixes, drawing, strict=True)], np.float32
        ).reshape(-1, HASHED_VOCAB)

    def close(self) -> None: ...

    def _take(self, prefix: tuple[int, ...]) -> int:
        self._prefixes.append(prefix)
        return 0


class Uniform:
    """Knows nothing: all tokens are equally likely."""

    def __init__(self, vocab: int) -> None:
        self._vocab = vocab

    def logits(self, work: Sequence[Work]) -> NDArray[np.float32]:
        return np.full((sum(bool(row.draws) for row in work), self._vocab), 3.25, dtype=np.float32)

    def close(self) -> None: ...


def _of(prefix: tuple[int, ...], row: Work, step: Sequence[Work], fault: Fault) -> NDArray[np.float32]:
    seed = np.frombuffer(array("i", prefix), dtype=np.uint32)
    logits = np.random.default_rng(seed).standard_normal(HASHED_VOCAB, dtype=np.float32)
    if fault(row, step):
        logits[-1] = np.nextafter(logits[-1], np.float32(np.inf))
    return logits
