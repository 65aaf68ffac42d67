"""Writes the draws of a step as words for the machine code, and reads what it says of the tokens that it drew.

Knows sampling settings; the rules themselves are those of `execute.sampler`.
"""

from array import array
from collections.abc import Sequence

from chairlift.core.types import MAX_LOGPROBS, Draw, Logprobs, Sampling
from chairlift.execute import noise
from chairlift.execute.cpu.memory import double_word
from chairlift.execute.cpu.words import DRAW

_UNCHANGED = (0,) * (DRAW.index("told") - DRAW.index("changed"))
_UNTOLD = (0,) * (len(DRAW) - DRAW.index("told"))
_NOWHERE = (0, 0, 0)
TOLD = 2
"""Numbers about a drawn token before those about the best ones."""


class Draws:
    """The draws of all rows of logits, row by row, as `words`; `answers` has one place for each.

    A row is told by where its tokens end, which is the place of what is drawn from it, and by its draws. `bounds` says for
    every row where its draws begin and end. The histories of draws must not grow before the step is through: nothing of them is
    copied.
    """

    def __init__(self, rows: Sequence[tuple[int, Sequence[Draw]]], *, vocab: int) -> None:
        self._vocab = vocab
        self._kept: list[array[int] | array[float]] = []
        self._told: dict[int, array[float]] = {}
        self.words, self.bounds = array("q"), array("q")
        count = 0
        for row, (end, draws) in enumerate(rows):
            self.bounds.append(count)
            for draw in draws:
                self.words.extend((row, *_drawing(draw, end), *self._changing(draw, end), *self._telling(draw, count)))
                count += 1
            self.bounds.append(count)
        self.answers = array("q", bytes(8 * count))

    def logprobs(self, first: int, count: int) -> tuple[Logprobs, ...]:
        """What is said of so many draws from the first on, or nothing if they did not ask. To be read after the step."""
        if not self._told:
            return ()
        return tuple(_logprobs(self._told[number]) for number in range(first, first + count) if number in self._told)

    def _changing(self, draw: Draw, end: int) -> tuple[int, ...]:
        """From `changed` to `presence`."""
        sampling = draw.sampling
        if not (draw.banned or draw.mask is not None or sampling.logit_bias or sampling.penalised):
            return _UNCHANGED
        return (1, self._mask(draw), *self._banned(draw), *self._biased(sampling), *_looking_back(draw, end))

    def _mask(self, draw: Draw) -> int:
        if draw.mask is None:
            return 0
        assert draw.mask.itemsize == 4, "a mask consists of 32-bit words"
        assert len(draw.mask) * 32 >= self._vocab, "a mask that is too short"
        return draw.mask.buffer_info()[0]

    def _banned(self, draw: Draw) -> tuple[int, int]:
        if not draw.banned:
            return (0, 0)
        return self._list(array("q", draw.banned)), len(draw.banned)

    def _biased(self, sampling: Sampling) -> tuple[int, int, int]:
        if not sampling.logit_bias:
            return _NOWHERE
        ids, biases = zip(*sampling.logit_bias, strict=True)
        return self._list(array("q", ids)), self._list(array("d", biases)), len(ids)

    def _telling(self, draw: Draw, number: int) -> tuple[int, ...]:
        """`told` and `top`."""
        wanted = draw.sampling.logprobs
        if wanted is None:
            return _UNTOLD
        assert 0 <= wanted <= MAX_LOGPROBS, "more log probabilities than there may be"
        count = min(wanted, self._vocab)
        self._told[number] = array("d", bytes(8 * (TOLD + 2 * count)))
        return self._told[number].buffer_info()[0], count

    def _list(self, content: "array[int] | array[float]") -> int:
        """The address of an array that stays as long as the draws do."""
        self._kept.append(content)
        return content.buffer_info()[0]


def _drawing(draw: Draw, end: int) -> tuple[int, ...]:
    """From `temperature` to `key`."""
    sampling = draw.sampling
    if sampling.temperature == 0:
        return (0, 0, 0, 0, 0)
    key = noise.key(sampling.seed, draw.choice, end - draw.prompt_len)
    return (
        double_word(sampling.temperature),
        max(sampling.top_k, 0),
        double_word(sampling.top_p),
        double_word(sampling.min_p),
        key - (1 << 64) if key >> 63 else key,
    )


def _looking_back(draw: Draw, end: int) -> tuple[int, ...]:
    """From `history` to `presence`. Only the repetition penalty looks at the prompt."""
    sampling, history = draw.sampling, draw.history
    if history is None or not sampling.penalised:
        return (0, 0, 0, 0, 0, 0)
    assert history.itemsize == 4, "a history consists of 32-bit ids"
    assert draw.prompt_len <= end <= len(history), "a history that is too short"
    skipped = draw.prompt_len if sampling.repetition_penalty == 1 else 0
    return (
        history.buffer_info()[0] + 4 * skipped,
        end - skipped,
        draw.prompt_len - skipped,
        double_word(sampling.repetition_penalty),
        double_word(sampling.frequency_penalty),
        double_word(sampling.presence_penalty),
    )


def _logprobs(told: "array[float]") -> Logprobs:
    chosen, rank, *top = told
    half = len(top) // 2
    return Logprobs(chosen, int(rank), tuple(zip(map(int, top[:half]), top[half:], strict=True)))
