"""Tables of turns: for every position the cosines and sines of all pairs, grown as longer texts come.

Knows the frequencies that `execute.rotary` works out; knows nothing of heads.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from chairlift.execute import rotary
from chairlift.models.description import Rope

FIRST_POSITIONS = 1024


class TurnTable:
    """The table of one rotary variant, [positions, head_dim]: cosines, then sines."""

    def __init__(self, rope: Rope, head_dim: int) -> None:
        self._rope, self._head_dim = rope, head_dim
        self._table: NDArray[Any] = np.empty((0, head_dim), dtype=np.float32)

    @property
    def address(self) -> int:
        return self._table.ctypes.data

    def reach(self, position: int) -> bool:
        """Makes sure that the position is there. True if the table has moved."""
        have = len(self._table)
        if position < have:
            return False
        wanted = max(FIRST_POSITIONS, have)
        while wanted <= position:
            wanted *= 2
        more = rotary.turn(self._rope, self._head_dim, np.arange(have, wanted, dtype=np.int64))
        self._table = np.concatenate([self._table, np.concatenate([more.cos[:, 0], more.sin[:, 0]], axis=1)])
        return True
