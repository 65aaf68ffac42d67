"""How well a text is predicted, and how much of that an executor loses by its rounding.

Knows tokens in windows and their log-probabilities; knows neither models nor words, and prints nothing.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chairlift.core.errors import ModelError
from chairlift.evaluate.logits import LogitsExecutor, blocks_for, row

ROWS = 128
"""Positions of a window that are computed at a time: the tokens, and the drawing rows, of the largest step of a reading."""
LEAST_WINDOW = 2
"""One token to be predicted, and one to predict it from."""

Window = Sequence[int]


@dataclass(frozen=True, slots=True)
class Reading:
    """What an executor made of a text. Both arrays are [predicted positions], in the order of the text.

    `log_probabilities` (natural, float64) are those of the tokens that really came, `best` is the likeliest token by its id.
    """

    log_probabilities: NDArray[np.float64]
    best: NDArray[np.int64]

    @property
    def tokens(self) -> int:
        return len(self.best)

    @property
    def perplexity(self) -> float:
        """The exponential of the mean surprise. A model that knows nothing has as much as its vocabulary has tokens."""
        return _exp(-float(self.log_probabilities.mean()))


@dataclass(frozen=True, slots=True)
class Change:
    """One reading beside another of the same text.

    `ratio` of the perplexities, less 1; `error` is its standard error, as both read the same tokens and the differences are
    what varies. `agreement` is the share of positions with the same likeliest token.
    """

    ratio: float
    error: float
    agreement: float


def windows(tokens: Sequence[int], *, size: int, bos_id: int | None = None) -> list[Window]:
    """Cuts a text into windows of at most `size` tokens, each with `bos_id` in front if there is one.

    A rest in which nothing would be predicted is left out.
    """
    assert size >= LEAST_WINDOW
    before = [] if bos_id is None else [bos_id]
    step = size - len(before)
    cut = [[*before, *tokens[first : first + step]] for first in range(0, len(tokens), step)]
    return [window for window in cut if len(window) >= LEAST_WINDOW]


def predicted(cut: Sequence[Window]) -> int:
    """Tokens of these windows that are predicted: all but the first of each."""
    return sum(len(window) - 1 for window in cut)


def read(
    executor: LogitsExecutor,
    cut: Sequence[Window],
    *,
    block_size: int,
    on_tokens: Callable[[int], None] | None = None,
) -> Reading:
    """Predicts every token of every window but the first. `on_tokens(count)` is told of each step's tokens.

    The executor needs the blocks of one window, numbered from 0, and room for steps of `ROWS` rows of one token. ModelError
    if a logit is not a finite number.
    """
    log_probabilities = np.empty(predicted(cut), dtype=np.float64)
    best = np.empty(len(log_probabilities), dtype=np.int64)
    done = 0
    for window in cut:
        blocks = range(blocks_for(len(window), block_size))
        for first in range(0, len(window) - 1, ROWS):
            positions = range(first, min(first + ROWS, len(window) - 1))
            logits = executor.logits([row([window[position]], blocks, start=position) for position in positions])
            for position, scores in zip(positions, logits, strict=True):
                log_probabilities[done] = log_probability(scores, window[position + 1])
                best[done] = scores.argmax()
                done += 1
            if on_tokens is not None:
                on_tokens(len(positions))
    return Reading(log_probabilities, best)


def log_probability(scores: NDArray[np.float32], token: int) -> float:
    """Of one token, from the logits [vocab] of all; natural logarithm, computed in float64."""
    if not np.isfinite(scores).all():
        raise ModelError("the model's logits are not finite numbers")
    shifted = scores.astype(np.float64) - np.float64(scores.max())
    return float(shifted[token] - math.log(np.exp(shifted).sum()))


def compare(reading: Reading, reference: Reading) -> Change:
    """How a reading differs from the reference's. Both must be of the same windows."""
    assert reading.tokens == reference.tokens
    lost = reference.log_probabilities - reading.log_probabilities
    ratio = _exp(float(lost.mean()))
    # Of the logarithm of the ratio; for a small error that is also the error of the ratio itself, relative to it.
    error = ratio * float(lost.std()) / math.sqrt(len(lost))
    return Change(ratio - 1.0, error, float(np.mean(reading.best == reference.best)))


def _exp(x: float) -> float:
    """Infinity where that is the nearest number."""
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf
