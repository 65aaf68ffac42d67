"""Writes the draws of a step as words for the machine code, together with the lists of ids that must not be drawn.

Knows sampling settings; the rules themselves are those of `execute.sampler`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chairlift.core.types import Draw
from chairlift.execute import noise
from chairlift.execute.cpu import words
from chairlift.execute.cpu.memory import double_word


class Draws:
    """The draws of all rows of logits, row by row, as `words`; `answers` has one place for each.

    `bounds` [rows, 2] says where the draws of a row begin and end.
    """

    def __init__(self, rows: Sequence[Sequence[Draw]], *, vocab: int) -> None:
        self._vocab = vocab
        self._lists: list[NDArray[Any]] = []
        ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
        self.bounds = np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1) if len(rows) else np.zeros((0, 2), np.int64)
        encoded = [self._encode(number, draw) for number, row in enumerate(rows) for draw in row]
        self.words = np.array(encoded, dtype=np.int64).reshape(-1, len(words.DRAW))
        self.answers = np.zeros(len(encoded), dtype=np.int64)

    def _encode(self, number: int, draw: Draw) -> tuple[int, ...]:
        sampling = draw.sampling
        banned, count = self._banned(draw) if draw.banned else (0, 0)
        key = noise.key(sampling.seed, draw.choice, draw.position) if sampling.temperature else 0
        return (
            number,
            double_word(sampling.temperature),
            max(sampling.top_k, 0),
            double_word(sampling.top_p),
            double_word(sampling.min_p),
            key - (1 << 64) if key >> 63 else key,
            banned,
            count,
        )

    def _banned(self, draw: Draw) -> tuple[int, int]:
        """The address and length of a list, with as much room behind it, where the logits are kept meanwhile."""
        known = [token for token in draw.banned if 0 <= token < self._vocab]
        assert len(known) < self._vocab, "a draw with every token banned"
        room = np.zeros(2 * len(known), dtype=np.int64)
        room[: len(known)] = known
        self._lists.append(room)
        return room.ctypes.data, len(known)
