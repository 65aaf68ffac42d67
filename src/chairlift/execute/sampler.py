"""From logits to one token. The rules stand here in full, because every executor must draw the very same tokens.

1. Banned ids get minus infinity. At temperature 0 the largest logit wins, the lowest id among equals.
2. Scores are `(logit - largest logit) / temperature` in float64. The largest is 0, so no temperature overflows: a tiny one
   sends all others to minus infinity, where they are no candidates any more, and the draw is greedy.
3. top-k keeps the k best scores.
4. top-p keeps the smallest number of best scores whose probabilities sum to at least top-p, of what top-k left; at least one.
5. min-p keeps what is at least min-p times as probable as the best.
6. Of the rest, the largest `score + Gumbel noise` wins; the noise is keyed by seed, choice, position and id (`noise`).

Wherever scores are equal, the lower id is the better one. Knows nothing of rows, blocks or other draws.
"""

import numpy as np
from numpy.typing import NDArray

from chairlift.core.types import Draw
from chairlift.execute import noise

_FIRST_GUESS = 256
"""How many candidates top-p sorts at first; it takes eight times as many whenever they do not suffice."""


def draw(logits: NDArray[np.float32], wanted: Draw) -> int:
    """The token for one draw from finite `logits` [vocab]. At least one id must not be banned."""
    sampling = wanted.sampling
    logits = _without(logits, wanted.banned)
    if sampling.temperature == 0:
        return int(np.argmax(logits))
    ids, scores = _candidates(logits, sampling.temperature)
    if 0 < sampling.top_k < len(ids):
        ids, scores = _best(ids, scores, sampling.top_k)
    if sampling.top_p < 1:
        ids, scores = _nucleus(ids, scores, sampling.top_p)
    if sampling.min_p > 0:
        likely = np.exp(scores) >= sampling.min_p
        ids, scores = ids[likely], scores[likely]
    noisy = scores + noise.gumbel(noise.key(sampling.seed, wanted.choice, wanted.position), ids)
    return int(ids[np.argmax(noisy)])


def _without(logits: NDArray[np.float32], banned: frozenset[int]) -> NDArray[np.float32]:
    known = [token for token in banned if 0 <= token < len(logits)]
    if not known:
        return logits
    assert len(known) < len(logits), "a draw with every token banned"
    allowed = logits.copy()
    allowed[known] = -np.inf
    return allowed


def _candidates(logits: NDArray[np.float32], temperature: float) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Ids in ascending order and their scores, without those that have no chance at all."""
    exact = logits.astype(np.float64)
    with np.errstate(over="ignore"):
        scores = (exact - exact.max()) / temperature
    ids = np.flatnonzero(scores > -np.inf)
    return ids, scores[ids]


def _best(ids: NDArray[np.int64], scores: NDArray[np.float64], count: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The `count` best candidates, still by ascending id."""
    threshold = np.partition(scores, len(scores) - count)[len(scores) - count]
    better = scores > threshold
    tied = np.flatnonzero(scores == threshold)[: count - int(better.sum())]
    better[tied] = True
    return ids[better], scores[better]


def _nucleus(ids: NDArray[np.int64], scores: NDArray[np.float64], mass: float) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The fewest best candidates whose probabilities reach `mass`, still by ascending id."""
    wanted = mass * np.exp(scores).sum()
    guess = _FIRST_GUESS
    while guess < len(ids) and np.exp(_best(ids, scores, guess)[1]).sum() < wanted:
        guess *= 8
    if guess < len(ids):
        ids, scores = _best(ids, scores, guess)
    order = np.argsort(-scores, kind="stable")
    reached = np.cumsum(np.exp(scores[order])) >= wanted
    count = int(np.argmax(reached)) + 1 if reached.any() else len(ids)
    kept = np.sort(order[:count])
    return ids[kept], scores[kept]
