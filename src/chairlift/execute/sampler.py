"""From logits to one token. The rules stand here in full, because every executor must draw the very same tokens.

1. Biases are added to the logits of their ids. Every sum and every result of rule 2 is worked out in float64, cut to the
   finite range of float32 and rounded to it.
2. Ids that occur in prompt or output: a logit above 0 is divided by the repetition penalty, another is multiplied by it. Then
   those that occur in the output lose frequency penalty times count, and then the presence penalty; one rounding in all.
3. Ids that are banned, or that the mask does not allow, have minus infinity, whatever their bias. If nothing is left,
   NothingAllowed is raised.
4. At temperature 0 the largest logit wins, the lowest id among equals.
5. Scores are `(logit - largest logit) / temperature` in float64. The largest is 0, so no temperature overflows: a tiny one
   sends all others to minus infinity, where they are no candidates any more, and the draw is greedy.
6. top-k keeps the k largest logits.
7. top-p keeps the fewest largest logits whose probabilities sum to at least top-p, of what top-k left; at least one.
8. min-p keeps what is at least min-p times as probable as the best.
9. Of the rest, the largest `score + Gumbel noise` wins; the noise is keyed by seed, choice, position and id (`noise`).

Wherever logits or sums are equal, the lower id is the better one. Ids outside the vocabulary bias, penalise and ban nothing.
The mask and rules 1 to 3 come in the order of vLLM's sampler; that exclusion comes last of them here gives the same logits.

Log probabilities are those of the raw logits: `(logit - largest) - log(sum of exp(logit - largest))` in float64. The order of
the sum is the executor's own, so two executors agree within 1e-9; on ranks and ids, which are compared as logits, they agree
exactly. Knows nothing of rows, blocks or other draws.
"""

import numpy as np
from numpy.typing import NDArray

from chairlift.core.errors import NothingAllowed
from chairlift.core.types import Draw, Logprobs
from chairlift.execute import noise

NOTHING_ALLOWED = "every token is excluded: by a mask, by bans, or by both together"

_LARGEST = float(np.finfo(np.float32).max)
_FIRST_GUESS = 256
"""How many candidates top-p sorts at first; it takes eight times as many whenever they do not suffice."""


def draw(logits: NDArray[np.float32], wanted: Draw, place: int) -> int:
    """The token for one draw from finite `logits` [vocab], which are left as they are. Raises NothingAllowed.

    `place` is where the token goes, counted from the beginning of the prompt.
    """
    sampling = wanted.sampling
    logits = _excluding(_penalised(_biased(logits, wanted), wanted, place), wanted)
    if sampling.temperature == 0:
        return int(np.argmax(logits))
    scores = _scores(logits, sampling.temperature)
    ids = np.flatnonzero(scores > -np.inf)
    if 0 < sampling.top_k < len(ids):
        ids = _best(logits, ids, sampling.top_k)
    if sampling.top_p < 1:
        ids = _nucleus(logits, scores, ids, sampling.top_p)
    if sampling.min_p > 0:
        ids = ids[np.exp(scores[ids]) >= sampling.min_p]
    noisy = scores[ids] + noise.gumbel(noise.key(sampling.seed, wanted.choice, place - wanted.prompt_len), ids)
    return int(ids[np.argmax(noisy)])


def logprobs(logits: NDArray[np.float32], token: int, count: int) -> Logprobs:
    """What finite raw `logits` [vocab] say of a token that was drawn, and of the `count` best (all, if there are fewer)."""
    exact = logits.astype(np.float64)
    below = exact - exact.max()
    logs = below - np.log(np.exp(below).sum())
    better = int((logits > logits[token]).sum()) + int((logits[:token] == logits[token]).sum())
    best = np.argsort(-exact, kind="stable")[:count]
    return Logprobs(float(logs[token]), better + 1, tuple(zip(best.tolist(), logs[best].tolist(), strict=True)))


def _biased(logits: NDArray[np.float32], wanted: Draw) -> NDArray[np.float32]:
    known = [(token, bias) for token, bias in wanted.sampling.logit_bias if 0 <= token < len(logits)]
    if not known:
        return logits
    ids = np.array([token for token, _ in known])
    biased = logits.copy()
    biased[ids] = _rounded(logits[ids].astype(np.float64) + np.array([bias for _, bias in known]))
    return biased


def _penalised(logits: NDArray[np.float32], wanted: Draw, place: int) -> NDArray[np.float32]:
    sampling = wanted.sampling
    if not sampling.penalised or wanted.history is None:
        return logits
    # A copy: an array that NumPy looks into cannot grow, and this one must.
    tokens = np.array(wanted.history[:place], dtype=np.int64)
    known = (tokens >= 0) & (tokens < len(logits))
    counts = np.bincount(tokens[wanted.prompt_len :][known[wanted.prompt_len :]], minlength=len(logits))
    ids = np.unique(tokens[known])
    values, times = logits[ids].astype(np.float64), counts[ids].astype(np.float64)
    with np.errstate(over="ignore"):
        values = np.where(values > 0, values / sampling.repetition_penalty, values * sampling.repetition_penalty)
    values -= sampling.frequency_penalty * times
    values[times > 0] -= sampling.presence_penalty
    penalised = logits.copy()
    penalised[ids] = _rounded(values)
    return penalised


def _rounded(values: NDArray[np.float64]) -> NDArray[np.float32]:
    return np.clip(values, -_LARGEST, _LARGEST).astype(np.float32)


def _excluding(logits: NDArray[np.float32], wanted: Draw) -> NDArray[np.float32]:
    known = [token for token in wanted.banned if 0 <= token < len(logits)]
    if not known and wanted.mask is None:
        return logits
    allowed = logits.copy()
    allowed[known] = -np.inf
    if wanted.mask is not None:
        allowed[~_allowed(np.array(wanted.mask, dtype=np.uint32), len(logits))] = -np.inf
    if allowed.max() == -np.inf:
        raise NothingAllowed(NOTHING_ALLOWED)
    return allowed


def _allowed(words: NDArray[np.uint32], vocab: int) -> NDArray[np.bool_]:
    assert len(words) * 32 >= vocab, "a mask that is too short"
    # The lowest byte first, whatever the machine's own order.
    return np.unpackbits(words.astype("<u4").view(np.uint8), count=vocab, bitorder="little").astype(np.bool_)


def _scores(logits: NDArray[np.float32], temperature: float) -> NDArray[np.float64]:
    """Of all ids; minus infinity for those that have no chance at all."""
    exact = logits.astype(np.float64)
    with np.errstate(over="ignore"):
        return (exact - exact.max()) / temperature


def _best(logits: NDArray[np.float32], ids: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """The `count` best of the candidates `ids`, which are in ascending order, and stay so."""
    values = logits[ids]
    threshold = np.partition(values, len(values) - count)[len(values) - count]
    better = values > threshold
    tied = np.flatnonzero(values == threshold)[: count - int(better.sum())]
    better[tied] = True
    return ids[better]


def _nucleus(
    logits: NDArray[np.float32], scores: NDArray[np.float64], ids: NDArray[np.int64], mass: float
) -> NDArray[np.int64]:
    """The fewest best candidates whose probabilities reach `mass`, still by ascending id."""
    wanted = mass * np.exp(scores[ids]).sum()
    guess = _FIRST_GUESS
    while guess < len(ids) and np.exp(scores[_best(logits, ids, guess)]).sum() < wanted:
        guess *= 8
    if guess < len(ids):
        ids = _best(logits, ids, guess)
    order = np.argsort(-logits[ids], kind="stable")
    reached = np.cumsum(np.exp(scores[ids[order]])) >= wanted
    count = int(np.argmax(reached)) + 1 if reached.any() else len(ids)
    return np.sort(ids[order[:count]])
