"""Draws tokens from logits inside the step, by the rules of `execute.sampler`, without sorting the vocabulary.

Knows one row of logits at a time; knows nothing of requests. Top-k and top-p both look for a threshold: the logits are read as
ordered integers, and a histogram of their upper, middle and lower bits in turn finds the one where the count, or the mass, is
reached. Of the candidates that have the very threshold the lowest ids are kept.
"""

import math

from chairlift.execute.cpu.kernels import numbers
from chairlift.execute.cpu.kernels.emit import F32, F64, I1, I32, I64, Function, Module, Value, Variable, vector
from chairlift.execute.cpu.kernels.work import Operands, claimed
from chairlift.execute.cpu.words import DRAW

LANES = 16
_W = vector(I32, LANES)
_WIDE = 8
BROKEN = -1
"""The answer of a row whose logits are not finite numbers."""

LEVELS = ((21, 11), (10, 11), (0, 10))
"""Where the bits of each histogram begin, and how many they are."""
BUCKETS = 1 << 11

# Scratch of a thread, in bytes; scores and weights follow, a float64 for every id each.
HISTOGRAM_AT = 0
FOUND_AT = HISTOGRAM_AT + BUCKETS * 8
SCORES_AT = FOUND_AT + 64

_GAMMA, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_NOISE_BITS = 52
_MOST_NOISE = 36.8
"""No Gumbel noise out of 52 bits is larger."""


class _Draw:
    """The words of one draw."""

    def __init__(self, f: Function, at: Value) -> None:
        self._f, self._at = f, at

    def word(self, name: str) -> Value:
        return self._f.load(I64, self._at + 8 * DRAW.index(name))

    def real(self, name: str) -> Value:
        return self._f.load(F64, self._at + 8 * DRAW.index(name))


def add_sample(module: Module) -> str:
    greedy, scored = _greedy(module), _scored(module, _find(module))
    f = module.function("sample", [I64, I64, I64], public=True)
    op = Operands(f, "sample")
    with claimed(f, op, f.load(I64, op.count)) as row:
        logits = op.logits + row * (op.stride * 4)
        bounds = op.state("row_draws") + row * 16
        broken = _broken(f, logits, op.vocab)
        with f.loop(f.load(I64, bounds), f.load(I64, bounds + 8)) as number:
            at = op.state("draws") + number * (8 * len(DRAW))
            draw = _Draw(f, at)
            answer = f.var(f.whole(BROKEN))
            with f.when(broken.equals(0)):
                _hide(f, draw, logits)
                best = f.call(greedy.ir, logits, op.vocab)
                with f.either(draw.real("temperature").equals(0.0)) as (cold, warm):
                    with cold:
                        answer.value = best
                    with warm:
                        answer.value = f.call(scored.ir, at, logits, op.vocab, op.scratch, best)
                _show(f, draw, logits)
            f.store(answer.value, op.state("answers") + number * 8)
    f.ret()
    return "sample"


def scratch_bytes(vocab: int) -> int:
    """What a thread needs to draw from so many ids."""
    return SCORES_AT + 2 * 8 * (vocab + _WIDE)


def _broken(f: Function, logits: Value, vocab: Value) -> Value:
    """1 if any logit is not a finite number. The padding of a row is finite."""
    largest = f.var(f.number(_W, 0))
    with f.loop(0, vocab, LANES) as i:
        largest.value = f.unsigned_max(largest.value, f.load(_W, logits + i * 4) & 0x7FFFFFFF)
    return (f.fold(largest.value, f.unsigned_max) >= 0x7F800000).unsigned_to(I64)


def _hide(f: Function, draw: _Draw, logits: Value) -> None:
    """Banned ids get minus infinity; what stood there is kept behind the list of them."""
    banned, count = draw.word("banned"), draw.word("banned_count")
    with f.loop(0, count) as i:
        at = logits + f.load(I64, banned + i * 8) * 4
        f.store(f.load(I32, at).to(I64), banned + (count + i) * 8)
        f.store(f.number(F32, -math.inf), at)


def _show(f: Function, draw: _Draw, logits: Value) -> None:
    banned, count = draw.word("banned"), draw.word("banned_count")
    with f.loop(0, count) as i:
        f.store(f.load(I64, banned + (count + i) * 8).to(I32), logits + f.load(I64, banned + i * 8) * 4)


def _greedy(module: Module) -> Function:
    """(logits, vocab): the id of the largest logit, the lowest among equals: the largest first, in vectors, then its place."""
    f = module.function("greedy", [I64, I64], I64)
    logits, vocab = f.arguments
    largest = f.var(f.number(vector(F32, LANES), -math.inf))
    even = vocab - vocab % LANES
    with f.loop(0, even, LANES) as i:
        largest.value = f.larger(f.load(vector(F32, LANES), logits + i * 4), largest.value)
    best = f.var(f.fold(largest.value, f.larger))
    with f.loop(even, vocab) as i:
        best.value = f.larger(f.load(F32, logits + i * 4), best.value)
    place = f.var(f.whole(0))
    with f.repeat(lambda: f.load(F32, logits + place.value * 4).differs(best.value)):
        place.value = place.value + 1
    f.ret(place.value)
    return f


def _key(f: Function, logits: Value, i: Value) -> Value:
    """The logit as an integer of the same order, from 0 up; both zeros are the same."""
    word = (f.load(F32, logits + i * 4) + 0.0).bits(I32)
    flipped = f.select(word < 0, word ^ -1, word ^ -(1 << 31))
    return flipped.unsigned_to(I64)


class _Kept:
    """Which candidates a threshold keeps: all above it, and the first `ties` that have it. Ids must be asked in order."""

    def __init__(self, f: Function, threshold: Value, ties: Value) -> None:
        self._threshold, self._ties = threshold, ties
        self._met = f.var(f.whole(0))

    def holds(self, key: Value) -> Value:
        tied = key.equals(self._threshold)
        self._met.value = self._met.value + tied.unsigned_to(I64)
        return (key > self._threshold) | (tied & (self._met.value <= self._ties))


def _find(module: Module) -> Function:
    """(logits, vocab, scratch, weights or 0, wanted, threshold so far, ties so far): the new threshold, ties in FOUND_AT.

    The fewest best candidates whose weights sum to at least `wanted`. Without weights each counts one; with them `wanted` is a
    part of all.
    """
    f = module.function("find", [I64, I64, I64, I64, F64, I64, I64], I64)
    logits, vocab, scratch, weights, asked, threshold, ties = f.arguments
    scores, histogram = scratch + SCORES_AT, scratch + HISTOGRAM_AT
    one, nothing = f.number(F64, 1.0), f.number(F64, 0.0)
    counts = weights.equals(0)
    reached, prefix = f.var(nothing), f.var(f.whole(0))
    wanted = f.var(asked)

    def weight(i: Value) -> Value:
        return f.select(counts, one, f.load(F64, f.select(counts, scores, weights) + i * 8))

    def candidates(kept: _Kept, i: Value, key: Value) -> Value:
        alive = f.load(F64, scores + i * 8) > -math.inf
        return alive & kept.holds(key)

    for level, (shift, bits) in enumerate(LEVELS):
        buckets = 1 << bits
        with f.loop(0, buckets) as bucket:
            f.store(nothing, histogram + bucket * 8)
        kept = _Kept(f, threshold, ties)
        with f.loop(0, vocab) as i:
            key = _key(f, logits, i)
            here = key.unsigned_shift(shift + bits).equals(prefix.value) if level else f.number(I1, 1)
            with f.when(candidates(kept, i, key) & here):
                at = histogram + (key.unsigned_shift(shift) & (buckets - 1)) * 8
                f.store(f.load(F64, at) + weight(i), at)
        if level == 0:
            wanted.value = f.select(counts, asked, asked * _total(f, histogram, buckets))
        bucket = f.var(f.whole(buckets - 1))

        def short(bucket: Variable = bucket) -> Value:
            enough = reached.value + f.load(F64, histogram + bucket.value * 8) >= wanted.value
            return (bucket.value > 0) & (enough ^ True)

        with f.repeat(short):
            reached.value = reached.value + f.load(F64, histogram + bucket.value * 8)
            bucket.value = bucket.value - 1
        prefix.value = (prefix.value << bits) | bucket.value
    found = f.var(f.whole(0))
    kept = _Kept(f, threshold, ties)
    with f.loop(0, vocab) as i:
        key = _key(f, logits, i)
        with f.when(candidates(kept, i, key) & key.equals(prefix.value) & (reached.value < wanted.value)):
            reached.value = reached.value + weight(i)
            found.value = found.value + 1
    f.store(found.value, scratch + FOUND_AT)
    f.ret(prefix.value)
    return f


def _total(f: Function, histogram: Value, buckets: int) -> Value:
    total = f.var(f.number(F64, 0.0))
    with f.loop(0, buckets) as bucket:
        total.value = total.value + f.load(F64, histogram + bucket * 8)
    return total.value


def _scored(module: Module, find: Function) -> Function:
    """(draw, logits, vocab, scratch, id of the largest logit): the token drawn at a temperature above 0."""
    f = module.function("scored", [I64] * 5, I64)
    at, logits, vocab, scratch, best = f.arguments
    draw = _Draw(f, at)
    scores = scratch + SCORES_AT
    weights = scores + (vocab + _WIDE) * 8
    _score(f, logits, vocab, scores, f.load(F32, logits + best * 4).to(F64), draw.real("temperature"))
    threshold, ties = f.var(f.whole(0)), f.var(vocab)
    with f.when(draw.word("top_k") > 0):
        wanted = draw.word("top_k").to(F64)
        threshold.value = f.call(find.ir, logits, vocab, scratch, f.whole(0), wanted, threshold.value, ties.value)
        ties.value = f.load(I64, scratch + FOUND_AT)
    with f.when((draw.real("top_p") < 1.0) | (draw.real("min_p") > 0.0)):
        _weights(f, vocab, scores, weights)
    with f.when(draw.real("top_p") < 1.0):
        wanted = draw.real("top_p")
        threshold.value = f.call(find.ir, logits, vocab, scratch, weights, wanted, threshold.value, ties.value)
        ties.value = f.load(I64, scratch + FOUND_AT)
    f.ret(_noisiest(f, draw, logits, vocab, scores, weights, threshold.value, ties.value, best))
    return f


def _score(f: Function, logits: Value, vocab: Value, scores: Value, largest: Value, temperature: Value) -> None:
    """(logit - largest) / temperature in float64, for every id and a few of the padding."""
    with f.loop(0, vocab, _WIDE) as i:
        exact = f.load(vector(F32, _WIDE), logits + i * 4).to(F64)
        f.store((exact - largest.splat(_WIDE)) / temperature.splat(_WIDE), scores + i * 8)


def _weights(f: Function, vocab: Value, scores: Value, weights: Value) -> None:
    with f.loop(0, vocab, _WIDE) as i:
        score = f.load(vector(F64, _WIDE), scores + i * 8)
        f.store(numbers.exp64(f, score), weights + i * 8)


def _noisiest(
    f: Function,
    draw: _Draw,
    logits: Value,
    vocab: Value,
    scores: Value,
    weights: Value,
    threshold: Value,
    ties: Value,
    best: Value,
) -> Value:
    """The candidate with the largest sum of score and noise. Noise is worked out only where it could matter."""
    winner, height = f.var(best), f.var(f.number(F64, -math.inf))
    kept = _Kept(f, threshold, ties)
    key, least = draw.word("key"), draw.real("min_p")
    picky = least > 0.0
    with f.loop(0, vocab) as i:
        score = f.load(F64, scores + i * 8)
        hopeful = (score + _MOST_NOISE > height.value) & (score > -math.inf)
        with f.when(kept.holds(_key(f, logits, i)) & hopeful):
            likely = f.load(F64, f.select(picky, weights, scores) + i * 8) >= least
            noise = _noise_bits(f, key, i)
            with f.when((likely | (picky ^ True)) & (score + _at_most(f, noise) > height.value)):
                height_here = score + _gumbel(f, noise)
                with f.when(height_here > height.value):
                    height.value = height_here
                    winner.value = i
    return winner.value


def _noise_bits(f: Function, key: Value, i: Value) -> Value:
    """The upper 52 bits of a SplitMix64 output (`execute.noise`)."""
    z = key + (i + 1) * f.number(I64, _GAMMA - (1 << 64))
    z = (z ^ z.unsigned_shift(30)) * f.number(I64, _MIX_1 - (1 << 64))
    z = (z ^ z.unsigned_shift(27)) * f.number(I64, _MIX_2 - (1 << 64))
    return (z ^ z.unsigned_shift(31)).unsigned_shift(64 - _NOISE_BITS)


def _at_most(f: Function, noise: Value) -> Value:
    """A bound of the Gumbel noise without a logarithm: -log(-log u) is at most -log(1 - u), here up to the next power of 2."""
    rest = ((1 << _NOISE_BITS) - 1 - noise) * 2 + 1
    zeros = f.intrinsic("llvm.ctlz.i64", I64, rest, f.number(I1, 1))
    return (zeros - (63 - _NOISE_BITS - 1)).to(F64) * (math.log(2) + 1e-9)


def _gumbel(f: Function, noise: Value) -> Value:
    uniform = (noise.to(F64) + 0.5) * 2.0**-_NOISE_BITS
    inner = f.intrinsic("log", F64, uniform)
    return -f.intrinsic("log", F64, -inner)
