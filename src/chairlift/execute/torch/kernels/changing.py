"""Biases, penalties, bans and masks in Triton: they change logits in place, and touch no others than they must.

Everything but a mask goes through lists of ids, one program a list. A count of ids needs a place for each id of the
vocabulary; it is left as clean as it was found, so it is zeroed once for ever.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from chairlift.execute.torch.draws import Bans, Biases, Masks, Penalties
from chairlift.execute.torch.kernels.launching import launch
from chairlift.execute.torch.kernels.variants import Variant

_LISTED = 256
_LOOKED_BACK = 1024
_COUNTED_AT_ONCE = 32
"""Histories that are counted at the same time. With 151,936 ids their counts take 19 MB."""

# Lengths of lists vary from step to step, and no step shall wait for a kernel that is compiled for one of them.

_LARGEST = tl.constexpr(3.4028234663852886e38)
_IN_PROMPT = tl.constexpr(1 << 30)
"""A count of the output stays below it."""


@triton.jit
def _rounded(values):
    return tl.maximum(tl.minimum(values, _LARGEST), -_LARGEST).to(tl.float32)


@triton.jit(do_not_specialize=["most"])
def _bias(logits, draws, ids, values, vocab, most, BLOCK: tl.constexpr):
    listed = tl.program_id(0).to(tl.int64)
    row = logits + tl.load(draws + listed) * vocab
    for start in range(0, most, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        found = tl.load(ids + listed * most + columns, mask=columns < most, other=-1)
        bias = tl.load(values + listed * most + columns, mask=columns < most, other=0.0)
        logit = tl.load(row + found, mask=found >= 0, other=0.0).to(tl.float64)
        tl.store(row + found, _rounded(logit + bias), mask=found >= 0)


@triton.jit(do_not_specialize=["most"])
def _ban(logits, draws, ids, vocab, most, BLOCK: tl.constexpr):
    listed = tl.program_id(0).to(tl.int64)
    row = logits + tl.load(draws + listed) * vocab
    for start in range(0, most, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        found = tl.load(ids + listed * most + columns, mask=columns < most, other=-1)
        tl.store(row + found, tl.full([BLOCK], float("-inf"), tl.float32), mask=found >= 0)


@triton.jit
def _history(histories, listed, columns, longest, last, awaited, AWAITING: tl.constexpr):
    found = tl.load(histories + listed * longest + columns, mask=columns < longest, other=-1)
    if AWAITING:
        found = tl.where(columns == awaited, last.to(tl.int32), found)
    return found


@triton.jit(do_not_specialize=["longest", "first"])
def _penalise(
    logits,
    draws,
    histories,
    prompts,
    awaited,
    lasts,
    repetitions,
    frequencies,
    presences,
    counts,
    vocab,
    longest,
    first,
    AWAITING: tl.constexpr,
    BLOCK: tl.constexpr,
):
    of_counts = tl.program_id(0).to(tl.int64)
    listed = of_counts + first
    row = logits + tl.load(draws + listed) * vocab
    count = counts + of_counts * vocab
    prompt = tl.load(prompts + listed)
    place = tl.load(awaited + listed)
    last = place
    if AWAITING:
        last = tl.load(lasts + listed)
    for start in range(0, longest, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        found = _history(histories, listed, columns, longest, last, place, AWAITING)
        tl.atomic_or(count + found, _IN_PROMPT, mask=(found >= 0) & (columns < prompt), sem="relaxed")
        tl.atomic_add(count + found, 1, mask=(found >= 0) & (columns >= prompt), sem="relaxed")
    # All of this program's counts are there before any is read.
    tl.debug_barrier()
    repetition, frequency = tl.load(repetitions + listed), tl.load(frequencies + listed)
    presence = tl.load(presences + listed)
    for start in range(0, longest, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        found = _history(histories, listed, columns, longest, last, place, AWAITING)
        # Whoever takes the count of an id penalises it; the others find nothing. So each id is penalised once.
        taken = tl.atomic_xchg(count + found, 0, mask=found >= 0, sem="relaxed")
        taken = tl.where(found >= 0, taken, 0)
        times = taken & (_IN_PROMPT - 1)
        value = tl.load(row + found, mask=taken != 0, other=0.0).to(tl.float64)
        value = tl.where(value > 0.0, value / repetition, value * repetition)
        value = value - frequency * times.to(tl.float64)
        value = tl.where(times > 0, value - presence, value)
        tl.store(row + found, _rounded(value), mask=taken != 0)


@triton.jit
def _mask(logits, draws, words, vocab, size, BLOCK: tl.constexpr):
    listed = tl.program_id(0).to(tl.int64)
    row = logits + tl.load(draws + listed) * vocab
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(words + listed * size + ids // 32, mask=ids < vocab, other=0)
    denied = ((word >> (ids % 32)) & 1) == 0
    tl.store(row + ids, tl.full([BLOCK], float("-inf"), tl.float32), mask=(ids < vocab) & denied)


def bias(logits: Tensor, biases: Biases) -> None:
    """Adds to `logits` [draws, vocab]."""
    lists, most = biases.ids.shape
    launch(_bias, (lists,), logits, biases.draws, biases.ids, biases.values, logits.shape[1], most, BLOCK=_LISTED)


def ban(logits: Tensor, bans: Bans) -> None:
    """Excludes ids of `logits` [draws, vocab]."""
    lists, most = bans.ids.shape
    launch(_ban, (lists,), logits, bans.draws, bans.ids, logits.shape[1], most, BLOCK=_LISTED)


def mask(logits: Tensor, masks: Masks, *, block: int) -> None:
    """Excludes what masks do not allow of `logits` [draws, vocab]."""
    lists, size = masks.words.shape
    vocab = logits.shape[1]
    grid = (lists, triton.cdiv(vocab, block))
    launch(_mask, grid, logits, masks.draws, masks.words, vocab, size, BLOCK=block)


class Penaliser:
    """Keeps counts for some histories at a time; more take turns."""

    def __init__(self) -> None:
        self._counts: Tensor | None = None

    def penalise(self, logits: Tensor, penalties: Penalties, last: Tensor | None) -> None:
        """Changes `logits` [draws, vocab]. `last` as of `sampler.awaited`."""
        lists, longest = penalties.histories.shape
        vocab = logits.shape[1]
        counts = self._counted(min(lists, _COUNTED_AT_ONCE), vocab, logits.device)
        for first in range(0, lists, _COUNTED_AT_ONCE):
            # A product before a difference must be rounded, as it is on the host: no fusion.
            launch(
                _penalise,
                (min(lists - first, _COUNTED_AT_ONCE),),
                logits,
                penalties.draws,
                penalties.histories,
                penalties.prompts,
                penalties.awaited,
                penalties.awaited if last is None else last,
                penalties.repetition,
                penalties.frequency,
                penalties.presence,
                counts,
                vocab,
                longest,
                first,
                AWAITING=last is not None,
                BLOCK=_LOOKED_BACK,
                warps=8,
            )

    def _counted(self, lists: int, vocab: int, device: torch.device) -> Tensor:
        counts = self._counts
        if counts is None or counts.shape[0] < lists or counts.shape[1] != vocab or counts.device != device:
            self._counts = counts = torch.zeros((lists, vocab), dtype=torch.int32, device=device)
        return counts


_LISTS = {"logits": "*fp32", "draws": "*i64", "ids": "*i32", "vocab": "i32", "most": "i32"}
_HISTORIES = {
    "logits": "*fp32",
    "draws": "*i64",
    "histories": "*i32",
    "prompts": "*i32",
    "awaited": "*i64",
    "lasts": "*i64",
    "repetitions": "*fp64",
    "frequencies": "*fp64",
    "presences": "*fp64",
    "counts": "*i32",
    "vocab": "i32",
    "longest": "i32",
    "first": "i32",
}
_WORDS = {"logits": "*fp32", "draws": "*i64", "words": "*i32", "vocab": "i32", "size": "i32"}

VARIANTS = (
    Variant("bias", _bias, {**_LISTS, "values": "*fp64"}, {"BLOCK": _LISTED}, fusion=False),
    Variant("ban", _ban, _LISTS, {"BLOCK": _LISTED}, fusion=False),
    Variant("penalise", _penalise, _HISTORIES, {"AWAITING": True, "BLOCK": _LOOKED_BACK}, num_warps=8, fusion=False),
    Variant("mask", _mask, _WORDS, {"BLOCK": 2048}, fusion=False),
)
