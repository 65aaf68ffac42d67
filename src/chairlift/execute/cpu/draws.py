"""Writes the draws of a step as words for the machine code, together with the lists of ids that must not be drawn.

Knows sampling settings; the rules themselves are those of `execute.sampler`.
"""

from array import array
from collections.abc import Sequence

from chairlift.core.types import Draw
from chairlift.execute import noise
from chairlift.execute.cpu.memory import double_word


class Draws:
    """The draws of all rows of logits, row by row, as `words`; `answers` has one place for each.

    `bounds` says for every row where its draws begin and end.
    """

    def __init__(self, rows: Sequence[Sequence[Draw]], *, vocab: int) -> None:
        self._vocab = vocab
        self._lists: list[array[int]] = []
        self.words, self.bounds = array("q"), array("q")
        count = 0
        for number, row in enumerate(rows):
            self.bounds.append(count)
            for draw in row:
                self.words.extend(self._encode(number, draw))
                count += 1
            self.bounds.append(count)
        self.answers = array("q", bytes(8 * count))

    def _encode(self, number: int, draw: Draw) -> tuple[int, ...]:
        """In the order of `words.DRAW`."""
        sampling = draw.sampling
        banned, count = self._banned(draw) if draw.banned else (0, 0)
        if sampling.temperature == 0:
            return (number, 0, 0, 0, 0, 0, banned, count)
        key = noise.key(sampling.seed, draw.choice, draw.position)
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
        room = array("q", known + [0] * len(known))
        self._lists.append(room)
        return room.buffer_info()[0], len(known)
