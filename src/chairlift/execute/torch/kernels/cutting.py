"""top-k and top-p in Triton without sorting: the last logit to be kept is found digit by digit, from the highest on.

Logits have keys of 32 bits in their order (`numbers.ordered`), and the keys have eight digits of four bits. A launch for each
digit counts, over all programs of a row, what the keys that begin with the digits found so far weigh by their next digit: each
1 for top-k, its mass for top-p. Weights are integers, so the order in which programs add does not matter. From the largest
digit down, the first one at which the sum reaches what is wanted is the next digit of the last key. Of equal keys the lower
ids are kept, as many as are needed.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from chairlift.execute.torch.draws import Best, Nuclei
from chairlift.execute.torch.kernels.launching import launch
from chairlift.execute.torch.kernels.numbers import mass, ordered, scored
from chairlift.execute.torch.kernels.variants import Variant

_LEVELS = tl.constexpr(8)
_DIGITS = tl.constexpr(16)
_PART = 256
"""Logits that a program counts at a time: one a thread."""


@triton.jit
def _descended(prefixes, wanted, weights, limits, cut, level, MASSES: tl.constexpr):
    """The digits found before `level`, as one number, and how much of what begins with them is to be kept."""
    prefix = tl.load(prefixes + cut * (_LEVELS + 1) + level - 1, mask=level > 0, other=0)
    need = tl.load(wanted + cut * (_LEVELS + 1) + level - 1, mask=level > 0, other=0)
    if level == 0:
        if not MASSES:
            need = tl.load(limits + cut)
    else:
        # The largest digit first.
        places = tl.arange(0, _DIGITS)
        found = tl.load(weights + (cut * _LEVELS + level - 1) * _DIGITS + (_DIGITS - 1) - places)
        sums = tl.cumsum(found, 0)
        if MASSES:  # noqa: SIM102 (the inner one must not be compiled for counts)
            if level == 1:
                total = tl.sum(found, 0)
                share = tl.ceil(tl.load(limits + cut) * total.to(tl.float64)).to(tl.int64)
                # A product of 64 bits may be rounded to more than there is.
                need = tl.maximum(tl.minimum(share, total), 1)
        short = tl.sum((sums < need).to(tl.int32), 0)
        # If there is less than wanted, all of it is kept.
        place = tl.minimum(short, _DIGITS - 1)
        need -= tl.sum(tl.where(places == place, sums - found, 0), 0)
        prefix = prefix * _DIGITS + (_DIGITS - 1) - place
    return prefix, need


@triton.jit(do_not_specialize=["level"])
def _weigh(
    logits,
    draws,
    best,
    temperatures,
    limits,
    prefixes,
    wanted,
    weights,
    equals,
    vocab,
    level,
    MASSES: tl.constexpr,
    BLOCK: tl.constexpr,
    PART: tl.constexpr,
):
    cut, split, splits = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    prefix, need = _descended(prefixes, wanted, weights, limits, cut, level, MASSES)
    if split == 0:
        tl.store(prefixes + cut * (_LEVELS + 1) + level, prefix)
        tl.store(wanted + cut * (_LEVELS + 1) + level, need)
    draw = tl.load(draws + cut)
    places = tl.arange(0, _DIGITS)
    totals, counts = tl.full([PART, _DIGITS], 0, tl.int64), tl.full([PART, _DIGITS], 0, tl.int32)
    for start in range(0, BLOCK, PART):
        ids = split * BLOCK + start + tl.arange(0, PART)
        logit = tl.load(logits + draw * vocab + ids, mask=ids < vocab, other=float("-inf"))
        # In two shifts, as the first level would have to shift by all 32 bits at once.
        rest = ordered(logit) >> tl.cast(28 - 4 * level, tl.uint32)
        begins = ((rest >> 4).to(tl.int64) == prefix) & (ids < vocab)
        # No place at all is one that none of the digits stands for.
        digit = tl.where(begins, (rest & 15).to(tl.int32), _DIGITS)
        has = digit[:, None] == places[None, :]
        counts += has.to(tl.int32)
        if MASSES:
            weight = mass(scored(logit, tl.load(best + draw), tl.load(temperatures + cut)))
            totals += tl.where(has, weight[:, None], 0)
    found = tl.sum(counts, 0)
    total = found.to(tl.int64)
    if MASSES:
        total = tl.sum(totals, 0)
    tl.atomic_add(weights + (cut * _LEVELS + level) * _DIGITS + places, total, mask=total != 0, sem="relaxed")
    if level == _LEVELS - 1:
        tl.store(equals + (cut * splits + split) * _DIGITS + places, found)


@triton.jit
def _cut(
    logits,
    draws,
    limits,
    prefixes,
    wanted,
    weights,
    equals,
    vocab,
    MASSES: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
):
    cut, split, splits = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    last, need = _descended(prefixes, wanted, weights, limits, cut, _LEVELS, MASSES)
    digit = last % _DIGITS
    others = tl.arange(0, SPLITS)
    equal = tl.load(equals + (cut * splits + others) * _DIGITS + digit, mask=others < splits, other=0)
    if MASSES:
        # All that are equal weigh the same. Those that weigh nothing are kept or not, all together.
        total = tl.load(weights + (cut * _LEVELS + _LEVELS - 1) * _DIGITS + digit)
        each = tl.maximum(total // tl.maximum(tl.sum(equal, 0), 1), 1)
        need = (need + each - 1) // each
    before = tl.sum(tl.where(others < split, equal, 0), 0)
    row = logits + tl.load(draws + cut) * vocab
    ids = split * BLOCK + tl.arange(0, BLOCK)
    key = ordered(tl.load(row + ids, mask=ids < vocab, other=float("-inf"))).to(tl.int64)
    same = (key == last).to(tl.int32)
    rank = before + tl.cumsum(same, 0) - same
    kept = (key > last) | ((same != 0) & (rank < need))
    tl.store(row + ids, tl.full([BLOCK], float("-inf"), tl.float32), mask=(ids < vocab) & (kept == 0))


def keep_best(logits: Tensor, cut: Best, *, block: int) -> None:
    """Rule 6 of `execute.sampler` in `logits` [draws, vocab]: all others become minus infinity."""
    _keep(logits, cut.draws, logits, logits, cut.counts, masses=False, block=block)


def keep_nucleus(logits: Tensor, cut: Nuclei, best: Tensor, *, block: int) -> None:
    """Rule 7 of `execute.sampler` in `logits` [draws, vocab], the largest of which are `best` [draws]."""
    _keep(logits, cut.draws, best, cut.temperatures, cut.masses, masses=True, block=block)


def _keep(
    logits: Tensor, draws: Tensor, best: Tensor, temperatures: Tensor, limits: Tensor, *, masses: bool, block: int
) -> None:
    cuts, vocab = len(draws), logits.shape[1]
    splits = triton.cdiv(vocab, block)
    levels, digits = int(_LEVELS.value), int(_DIGITS.value)
    prefixes, wanted = torch.empty((2, cuts, levels + 1), dtype=torch.int64, device=logits.device)
    weights = torch.zeros((cuts, levels, digits), dtype=torch.int64, device=logits.device)
    equals = torch.empty((cuts, splits, digits), dtype=torch.int32, device=logits.device)
    for level in range(levels):
        launch(
            _weigh,
            (cuts, splits),
            logits,
            draws,
            best,
            temperatures,
            limits,
            prefixes,
            wanted,
            weights,
            equals,
            vocab,
            level,
            MASSES=masses,
            BLOCK=block,
            PART=min(block, _PART),
            warps=8,
        )
    launch(
        _cut,
        (cuts, splits),
        logits,
        draws,
        limits,
        prefixes,
        wanted,
        weights,
        equals,
        vocab,
        MASSES=masses,
        BLOCK=block,
        SPLITS=triton.next_power_of_2(splits),
        warps=8,
    )


def _variants(*, masses: bool) -> tuple[Variant, Variant]:
    name = "top-p" if masses else "top-k"
    shared = {"logits": "*fp32", "draws": "*i64", "prefixes": "*i64", "wanted": "*i64", "weights": "*i64", "equals": "*i32"}
    shared |= {"limits": "*fp64" if masses else "*i64", "vocab": "i32"}
    scoring = {"best": "*fp32", "temperatures": "*fp64" if masses else "*fp32", "level": "i32"}
    constants = {"MASSES": masses, "BLOCK": 2048}
    return (
        Variant(f"{name} digit", _weigh, {**shared, **scoring}, {**constants, "PART": _PART}, num_warps=8, fusion=False),
        Variant(f"{name} cut", _cut, shared, {**constants, "SPLITS": 128}, num_warps=8, fusion=False),
    )


VARIANTS = (*_variants(masses=False), *_variants(masses=True))
