"""The largest logit and the largest noisy score in Triton: a row is split over programs, and their bests are compared."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from chairlift.execute.torch.draws import Noisy
from chairlift.execute.torch.kernels.launching import launch
from chairlift.execute.torch.kernels.numbers import gumbel, scored
from chairlift.execute.torch.kernels.variants import Variant
from chairlift.execute.torch.sampler import BROKEN, EXCLUDED, FINE

_BROKEN = tl.constexpr(BROKEN)
_EXCLUDED = tl.constexpr(EXCLUDED)
_FINE = tl.constexpr(FINE)


@triton.jit
def _survey(logits, values, ids, broken, vocab, CHECKING: tl.constexpr, BLOCK: tl.constexpr):
    draw, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = draw * tl.num_programs(1) + split
    columns = split * BLOCK + tl.arange(0, BLOCK)
    logit = tl.load(logits + draw * vocab + columns, mask=columns < vocab, other=float("-inf"))
    if CHECKING:
        # NaN is below nothing.
        bad = ((tl.abs(logit) < float("inf")) == 0) & (columns < vocab)
        tl.store(broken + place, tl.max(bad.to(tl.int32), 0))
    logit = tl.where(logit == logit, logit, float("-inf"))
    best, at = tl.max(logit, 0, return_indices=True)
    tl.store(values + place, best)
    tl.store(ids + place, split * BLOCK + at)


@triton.jit
def _settle(values, ids, broken, tokens, failed, best, splits, SPLITS: tl.constexpr):
    draw = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, SPLITS)
    inside = columns < splits
    value, at = tl.max(tl.load(values + draw * splits + columns, mask=inside, other=float("-inf")), 0, return_indices=True)
    bad = tl.max(tl.load(broken + draw * splits + columns, mask=inside, other=0), 0)
    code = tl.where(bad != 0, _BROKEN, tl.where(value == float("-inf"), _EXCLUDED, _FINE))
    token = tl.load(ids + draw * splits + at).to(tl.int64)
    tl.store(tokens + draw, tl.where(code == _FINE, token, 0))
    tl.store(failed + draw, code.to(tl.uint8))
    tl.store(best + draw, value)


@triton.jit
def _race(logits, draws, best, temperatures, keys, min_p, values, ids, vocab, CUTTING: tl.constexpr, BLOCK: tl.constexpr):
    one, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = one * tl.num_programs(1) + split
    draw = tl.load(draws + one)
    columns = split * BLOCK + tl.arange(0, BLOCK)
    logit = tl.load(logits + draw * vocab + columns, mask=columns < vocab, other=float("-inf"))
    # After a cut most programs have nothing to draw from. NaN, of a row that is broken, is nothing either.
    if tl.max((logit > float("-inf")).to(tl.int32), 0) == 0:
        tl.store(values + place, float("-inf"))
        tl.store(ids + place, 0)
    else:
        score = scored(logit, tl.load(best + draw), tl.load(temperatures + one))
        chance = score + gumbel(tl.load(keys + one), columns)
        if CUTTING:
            chance = tl.where(tl.exp(score) >= tl.load(min_p + one), chance, float("-inf"))
        chance = tl.where((chance == chance) & (columns < vocab), chance, float("-inf"))
        largest, at = tl.max(chance, 0, return_indices=True)
        tl.store(values + place, largest)
        tl.store(ids + place, split * BLOCK + at)


@triton.jit
def _finish(values, ids, draws, failed, tokens, splits, SPLITS: tl.constexpr):
    one = tl.program_id(0).to(tl.int64)
    draw = tl.load(draws + one)
    columns = tl.arange(0, SPLITS)
    chances = tl.load(values + one * splits + columns, mask=columns < splits, other=float("-inf"))
    _, at = tl.max(chances, 0, return_indices=True)
    token = tl.load(ids + one * splits + at).to(tl.int64)
    tl.store(tokens + draw, tl.where(tl.load(failed + draw) == _FINE, token, 0))


class Survey:
    """The largest logits of every part of every row, and whether all were finite numbers when the rows were raw."""

    def __init__(self, logits: Tensor, *, block: int) -> None:
        rows, self._vocab = logits.shape
        self._block, self._splits = block, triton.cdiv(self._vocab, block)
        shape = (rows, self._splits)
        self._values = torch.empty(shape, dtype=torch.float32, device=logits.device)
        self._ids, self._broken = torch.empty((2, *shape), dtype=torch.int32, device=logits.device)

    def take(self, logits: Tensor, *, raw: bool) -> None:
        """Looks at `logits` [rows, vocab]; at raw ones first."""
        launch(
            _survey,
            self._values.shape,
            logits,
            self._values,
            self._ids,
            self._broken,
            self._vocab,
            CHECKING=raw,
            BLOCK=self._block,
            warps=8,
        )

    def settled(self) -> tuple[Tensor, Tensor, Tensor]:
        """The best ids int64 [rows], how each row went, uint8, and its largest logit, float32."""
        rows, device = len(self._values), self._values.device
        tokens = torch.empty(rows, dtype=torch.int64, device=device)
        failed = torch.empty(rows, dtype=torch.uint8, device=device)
        best = torch.empty(rows, dtype=torch.float32, device=device)
        launch(
            _settle,
            (rows,),
            self._values,
            self._ids,
            self._broken,
            tokens,
            failed,
            best,
            self._splits,
            SPLITS=triton.next_power_of_2(self._splits),
            warps=1,
        )
        return tokens, failed, best


def race(logits: Tensor, noisy: Noisy, best: Tensor, failed: Tensor, tokens: Tensor, *, block: int) -> None:
    """Rules 8 and 9 of `execute.sampler`: overwrites `tokens` [draws] of draws with noise that have not failed."""
    racing, vocab = len(noisy.draws), logits.shape[1]
    splits = triton.cdiv(vocab, block)
    values = torch.empty((racing, splits), dtype=torch.float64, device=logits.device)
    ids = torch.empty((racing, splits), dtype=torch.int32, device=logits.device)
    launch(
        _race,
        (racing, splits),
        logits,
        noisy.draws,
        best,
        noisy.temperatures,
        noisy.keys,
        noisy.temperatures if noisy.min_p is None else noisy.min_p,
        values,
        ids,
        vocab,
        CUTTING=noisy.min_p is not None,
        BLOCK=block,
        warps=8,
    )
    launch(
        _finish,
        (racing,),
        values,
        ids,
        noisy.draws,
        failed,
        tokens,
        splits,
        SPLITS=triton.next_power_of_2(splits),
        warps=1,
    )


_PARTS = {"values": "*fp32", "ids": "*i32"}
_RACE = {"logits": "*fp32", "draws": "*i64", "best": "*fp32", "temperatures": "*fp64", "keys": "*i64", "min_p": "*fp64"}
_RACE |= {"values": "*fp64", "ids": "*i32", "vocab": "i32"}
_SETTLED = {"broken": "*i32", "tokens": "*i64", "failed": "*u8", "best": "*fp32", "splits": "i32"}
_FINISHED = {"values": "*fp64", "ids": "*i32", "draws": "*i64", "failed": "*u8", "tokens": "*i64", "splits": "i32"}

VARIANTS = (
    Variant(
        "survey",
        _survey,
        {**_PARTS, "logits": "*fp32", "broken": "*i32", "vocab": "i32"},
        {"CHECKING": True, "BLOCK": 2048},
        num_warps=8,
        fusion=False,
    ),
    Variant("settle", _settle, {**_PARTS, **_SETTLED}, {"SPLITS": 128}, num_warps=1, fusion=False),
    Variant("race", _race, _RACE, {"CUTTING": False, "BLOCK": 2048}, num_warps=8, fusion=False),
    Variant("race min-p", _race, _RACE, {"CUTTING": True, "BLOCK": 2048}, num_warps=8, fusion=False),
    Variant("finish", _finish, _FINISHED, {"SPLITS": 128}, num_warps=1, fusion=False),
)
