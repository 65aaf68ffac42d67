"""Draws tokens from logits inside the step, by the rules of `execute.sampler`, without sorting the vocabulary.

Knows one row of logits at a time; knows nothing of requests. A draw that changes logits does so in a copy of the row. Top-k and
top-p both look for a threshold: the logits are read as ordered integers, and a histogram of their upper, middle and lower bits
in turn finds the one where the count, or the mass, is reached. Of the candidates that have the very threshold the lowest ids
are kept.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

from chairlift.execute.cpu.kernels import numbers
from chairlift.execute.cpu.kernels.emit import F32, F64, I1, I16, I32, I64, Function, Module, Value, Variable, vector
from chairlift.execute.cpu.kernels.work import Operands, claimed
from chairlift.execute.cpu.words import BROKEN, DRAW, EXCLUDED

LANES = 16
_W = vector(I32, LANES)
_F = vector(F32, LANES)
_WIDE = 8
_LARGEST = 3.4028234663852886e38
"""The largest float32."""

LEVELS = ((21, 11), (10, 11), (0, 10))
"""Where the bits of each histogram begin, and how many they are."""
BUCKETS = 1 << 11

# Scratch of a thread, in bytes. Behind it come scores and weights, a float64 for every id each, and the copy of a row. What is
# counted before there are scores lies in their place, and what is listed after the draw in that of the histogram.
HISTOGRAM_AT = 0
FOUND_AT = HISTOGRAM_AT + BUCKETS * 8
SCORES_AT = FOUND_AT + 64
TOP_AT = HISTOGRAM_AT + 64
TOP_IDS_AT = TOP_AT + 256
_PENALISED = -1
"""A count of a token that has got its penalty."""
_MASK_BITS = 32
_COPY_PAD = _MASK_BITS
"""Places of the copy behind its end that whole vectors reach."""

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
    changed, tell = _changed(module), _tell(module, greedy)
    f = module.function("sample", [I64, I64, I64], public=True)
    op = Operands(f, "sample")
    with claimed(f, op, f.load(I64, op.count)) as row:
        raw = op.logits + row * (op.stride * 4)
        bounds = op.state("row_draws") + row * 16
        broken = _broken(f, raw, op.vocab)
        with f.loop(f.load(I64, bounds), f.load(I64, bounds + 8)) as number:
            at = op.state("draws") + number * (8 * len(DRAW))
            draw = _Draw(f, at)
            answer, logits = f.var(f.whole(BROKEN)), f.var(raw)
            with f.when(broken.equals(0)):
                with f.when(draw.word("changed").differs(0)):
                    logits.value = f.call(changed.ir, at, raw, op.vocab, op.scratch)
                best = f.call(greedy.ir, logits.value, op.vocab)
                answer.value = best
                with f.when((best >= 0) & draw.real("temperature").differs(0.0)):
                    answer.value = f.call(scored.ir, at, logits.value, op.vocab, op.scratch, best)
            with f.when((answer.value >= 0) & draw.word("told").differs(0)):
                f.call(tell.ir, at, raw, op.vocab, op.scratch, answer.value)
            f.store(answer.value, op.state("answers") + number * 8)
    f.ret()
    return "sample"


def scratch_bytes(vocab: int) -> int:
    """What a thread needs to draw from so many ids."""
    return SCORES_AT + 2 * 8 * (vocab + _WIDE) + 4 * (vocab + _COPY_PAD)


def _broken(f: Function, logits: Value, vocab: Value) -> Value:
    """1 if any logit is not a finite number. The padding of a row is finite."""
    largest = f.var(f.number(_W, 0))
    with f.loop(0, vocab, LANES) as i:
        largest.value = f.unsigned_max(largest.value, f.load(_W, logits + i * 4) & 0x7FFFFFFF)
    return (f.fold(largest.value, f.unsigned_max) >= 0x7F800000).unsigned_to(I64)


# ── logits that a draw changes ────────────────────────────────────────────────────────────────────────────────────────────


def _changed(module: Module) -> Function:
    """(draw, logits, vocab, scratch): where a copy of the logits stands with biases, penalties and exclusions."""
    f = module.function("changed", [I64] * 4, I64)
    at, logits, vocab, scratch = f.arguments
    draw = _Draw(f, at)
    copy = scratch + SCORES_AT + (vocab + _WIDE) * 16
    with f.loop(0, vocab, LANES) as i:
        f.store(f.load(_F, logits + i * 4), copy + i * 4)
    _bias(f, draw, copy, vocab)
    _penalise(f, draw, copy, vocab, scratch + SCORES_AT)
    _exclude(f, draw, copy, vocab)
    f.ret(copy)
    return f


def _rounded(f: Function, x: Value) -> Value:
    """A float64 as a finite float32."""
    largest, smallest = f.number(F64, _LARGEST), f.number(F64, -_LARGEST)
    return f.lesser(f.larger(x, smallest), largest).to(F32)


def _bias(f: Function, draw: _Draw, logits: Value, vocab: Value) -> None:
    ids, biases = draw.word("biased"), draw.word("biases")
    with f.loop(0, draw.word("bias_count")) as i:
        token = f.load(I64, ids + i * 8)
        with f.when(token.below(vocab)):
            at = logits + token * 4
            f.store(_rounded(f, f.load(F32, at).to(F64) + f.load(F64, biases + i * 8)), at)


def _penalise(f: Function, draw: _Draw, logits: Value, vocab: Value, counts: Value) -> None:
    """Walks the history three times: places of counts are made 0, the output is counted, every id is penalised once."""
    history, total = draw.word("history"), draw.word("history_count")

    @contextmanager
    def walk(start: Value | int) -> Iterator[tuple[Value, Value]]:
        with f.loop(start, total) as i:
            token = f.load(I32, history + i * 4).to(I64)
            with f.when(token.below(vocab)):
                yield token, counts + token * 4

    with walk(0) as (_, count):
        f.store(f.number(I32, 0), count)
    with walk(draw.word("prompt_count")) as (_, count):
        f.store(f.load(I32, count) + 1, count)
    with walk(0) as (token, count):
        times = f.load(I32, count)
        with f.when(times >= 0):
            f.store(f.number(I32, _PENALISED), count)
            at = logits + token * 4
            f.store(_rounded(f, _penalised(f, draw, f.load(F32, at).to(F64), times)), at)


def _penalised(f: Function, draw: _Draw, logit: Value, times: Value) -> Value:
    repetition = draw.real("repetition")
    value = f.select(logit > 0.0, logit / repetition, logit * repetition)
    value = value - draw.real("frequency") * times.to(F64)
    return value - f.select(times > 0, draw.real("presence"), f.number(F64, 0.0))


def _exclude(f: Function, draw: _Draw, logits: Value, vocab: Value) -> None:
    banned, mask = draw.word("banned"), draw.word("mask")
    with f.loop(0, draw.word("banned_count")) as i:
        token = f.load(I64, banned + i * 8)
        with f.when(token.below(vocab)):
            f.store(f.number(F32, -math.inf), logits + token * 4)
    lanes = f.numbers(_W, range(LANES))
    with f.when(mask.differs(0)), f.loop(0, vocab, _MASK_BITS) as i:
        word = f.load(I32, mask + i // 8)
        with f.when(word.differs(-1)):
            for half in range(_MASK_BITS // LANES):
                allowed = (word.splat(LANES).unsigned_shift(lanes + LANES * half) & 1).differs(0)
                at = logits + (i + LANES * half) * 4
                f.store(f.select(allowed, f.load(_F, at), f.number(_F, -math.inf)), at)


# ── the rules of drawing ──────────────────────────────────────────────────────────────────────────────────────────────────


def _greedy(module: Module) -> Function:
    """(logits, vocab): the id of the largest logit, the lowest among equals: the largest first, in vectors, then its place.

    EXCLUDED if there is nothing but minus infinity.
    """
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
    with f.when(best.value.equals(-math.inf)):
        f.ret(f.whole(EXCLUDED))
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


# ── what is told of a token ───────────────────────────────────────────────────────────────────────────────────────────────


def _tell(module: Module, greedy: Function) -> Function:
    """(draw, raw logits, vocab, scratch, token): writes what is to be told of the token and of the best ones (`words.DRAW`)."""
    f = module.function("tell", [I64] * 5)
    at, logits, vocab, scratch, token = f.arguments
    draw = _Draw(f, at)
    out, top = draw.word("told"), draw.word("top")
    largest = f.load(F32, logits + f.call(greedy.ir, logits, vocab) * 4).to(F64)
    total = f.intrinsic("log", F64, _mass(f, logits, vocab, largest))

    def tell(logit: Value, place: Value) -> None:
        f.store((logit.to(F64) - largest) - total, out + place * 8)

    chosen = f.load(F32, logits + token * 4)
    tell(chosen, f.whole(0))
    f.store((_better(f, logits, token, vocab, chosen) + 1).to(F64), out + 8)
    with f.when(top > 0):
        _list_top(f, logits, vocab, scratch, top)
        with f.loop(0, top) as i:
            f.store(f.load(I64, scratch + TOP_IDS_AT + i * 8).to(F64), out + (i + 2) * 8)
            tell(f.load(F32, scratch + TOP_AT + i * 4), top + i + 2)
    f.ret()
    return f


def _mass(f: Function, logits: Value, vocab: Value, largest: Value) -> Value:
    """The sum of exp(logit - largest), in 8 partial sums that are folded by halves, and what is left over one by one."""
    sums = f.var(f.number(vector(F64, _WIDE), 0.0))
    even = vocab - vocab % _WIDE
    with f.loop(0, even, _WIDE) as i:
        exact = f.load(vector(F32, _WIDE), logits + i * 4).to(F64)
        sums.value = sums.value + numbers.exp64(f, exact - largest.splat(_WIDE))
    total = f.var(f.fold(sums.value, lambda a, b: a + b))
    with f.loop(even, vocab) as i:
        total.value = total.value + numbers.exp64(f, f.load(F32, logits + i * 4).to(F64) - largest)
    return total.value


def _better(f: Function, logits: Value, token: Value, vocab: Value, chosen: Value) -> Value:
    """How many ids have a larger logit than this one, or the same and are lower."""
    count = f.var(f.whole(0))
    for start, stop, ties in ((f.whole(0), token, True), (token + 1, vocab, False)):
        even = stop - (stop - start) % LANES
        counts = f.var(f.number(_W, 0))
        with f.loop(start, even, LANES) as i:
            x = f.load(_F, logits + i * 4)
            bar = chosen.splat(LANES)
            counts.value = counts.value + (x >= bar if ties else x > bar).unsigned_to(I32)
        with f.loop(even, stop) as i:
            x = f.load(F32, logits + i * 4)
            count.value = count.value + (x >= chosen if ties else x > chosen).unsigned_to(I64)
        count.value = count.value + f.fold(counts.value, lambda a, b: a + b).to(I64)
    return count.value


def _list_top(f: Function, logits: Value, vocab: Value, scratch: Value, top: Value) -> None:
    """The `top` largest logits in TOP_AT and their ids in TOP_IDS_AT, in one pass: most vectors have none to be sorted in."""
    size, bar = f.var(f.whole(0)), f.var(f.number(F32, -math.inf))
    even = vocab - vocab % LANES

    def sort_in(start: Value, stop: Value) -> None:
        with f.loop(start, stop) as i:
            logit = f.load(F32, logits + i * 4)
            with f.when(logit > bar.value):
                _insert(f, scratch, f.signed_min(size.value, top - 1), logit, i)
                size.value = f.signed_min(size.value + 1, top)
                last = f.load(F32, scratch + TOP_AT + (top - 1) * 4)
                bar.value = f.select(size.value.equals(top), last, bar.value)

    with f.loop(0, even, LANES) as i:
        some = (f.load(_F, logits + i * 4) > bar.value.splat(LANES)).bits(I16)
        with f.when(some.differs(0)):
            sort_in(i, i + LANES)
    sort_in(even, vocab)


def _insert(f: Function, scratch: Value, free: Value, logit: Value, token: Value) -> None:
    """Puts an id where it belongs in a sorted list whose place `free` may be overwritten: behind those that are as large."""
    values, ids = scratch + TOP_AT, scratch + TOP_IDS_AT
    place = f.var(free)

    def smaller_before() -> Value:
        # The word before the first place is scratch as well, so it may be read in vain.
        return (place.value > 0) & (f.load(F32, values + (place.value - 1) * 4) < logit)

    with f.repeat(smaller_before):
        before = place.value - 1
        f.store(f.load(F32, values + before * 4), values + place.value * 4)
        f.store(f.load(I64, ids + before * 8), ids + place.value * 8)
        place.value = before
    f.store(logit, values + place.value * 4)
    f.store(token, ids + place.value * 8)
