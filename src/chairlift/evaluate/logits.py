"""What is asked of an executor that is examined: the logits of rows, and nothing of drawing tokens."""

from array import array
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from chairlift.core.types import Draw, Sampling, Work


class LogitsExecutor(Protocol):
    """An executor that hands out what tokens are drawn from. It keeps keys and values as any executor does."""

    def logits(self, work: Sequence[Work]) -> NDArray[np.float32]:
        """Computes rows and stores their keys and values. Logits [rows that draw, vocab] of the last positions.

        A row may count on the keys and values of all rows before it: they are stored before any of them is read.
        """
        ...

    def close(self) -> None: ...


def row(tokens: Sequence[int], blocks: Sequence[int], *, start: int = 0) -> Work:
    """A row whose last position is asked for its logits."""
    return Work("", start, array("i", tokens), array("i", blocks), (Draw(0, Sampling(temperature=0.0)),))


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that this many tokens fill."""
    return -(-tokens // block_size)
