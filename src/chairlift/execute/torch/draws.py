"""Writes the draws of a step into tensors: a table for each thing that only some of them ask for, and all in one upload.

Knows sampling settings and histories; the rules are those of `execute.sampler`, and who follows them is `sampler`.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.core.types import PENDING, Draw, Logprobs
from chairlift.execute import noise

NOTHING = -1
"""Fills lists of ids up to the longest one of their table."""

_ALIGNMENT = 16

Put = Callable[[NDArray[np.uint8]], Tensor]
"""A new tensor of the device with these bytes."""


class Wanted(NamedTuple):
    """A draw, the row of logits that it is from, and the place of its token, counted from the beginning of the prompt."""

    draw: Draw
    row: int
    place: int


class Biases(NamedTuple):
    """What is added to logits: `ids` int32 and `values` float64 [some draws, most ids]."""

    draws: Tensor
    ids: Tensor
    values: Tensor


class Penalties(NamedTuple):
    """Histories int32 [some draws, longest], of which the first `prompts` are prompt, and the float64 penalties.

    Where `awaited` is not NOTHING, it is the column of a token that is not known on the host.
    """

    draws: Tensor
    histories: Tensor
    prompts: Tensor
    awaited: Tensor
    repetition: Tensor
    frequency: Tensor
    presence: Tensor


class Bans(NamedTuple):
    """Ids int32 [some draws, most ids] that must not be drawn."""

    draws: Tensor
    ids: Tensor


class Masks(NamedTuple):
    """Allowed ids as bits of words, int32 [some draws, words]."""

    draws: Tensor
    words: Tensor


class Noisy(NamedTuple):
    """Draws that are not greedy: `temperatures` and `min_p` float64, and the int64 bits of the `keys` of their noise.

    `min_p` is None if it is 0 for all of them.
    """

    draws: Tensor
    temperatures: Tensor
    keys: Tensor
    min_p: Tensor | None


class Best(NamedTuple):
    """Draws that keep their `counts` int64 best logits."""

    draws: Tensor
    counts: Tensor


class Nuclei(NamedTuple):
    """Draws that keep the best logits until their probabilities sum to `masses` float64. Temperatures stand here once more."""

    draws: Tensor
    temperatures: Tensor
    masses: Tensor


class Telling(NamedTuple):
    """Draws that tell log probabilities. On the host: where they stand among all, how many of the best each one wants."""

    draws: Tensor
    places: tuple[int, ...]
    counts: tuple[int, ...]

    @property
    def most(self) -> int:
        return max(self.counts)


@dataclass(frozen=True, slots=True)
class Draws:
    """The draws of a step, as tensors of the device; None: nobody needs it. `draws` of a table is int64 [some], ascending.

    `rows` int64 [count] says which row of logits each is from; None if that is its own number and all rows are drawn from.
    """

    count: int
    rows: Tensor | None
    biases: Biases | None
    penalties: Penalties | None
    bans: Bans | None
    masks: Masks | None
    noisy: Noisy | None
    best: Best | None
    nuclei: Nuclei | None
    telling: Telling | None

    @property
    def changing(self) -> bool:
        """Some draw does not take the logits as they are."""
        return any(table is not None for table in (self.biases, self.penalties, self.bans, self.masks))


def write(wanted: Sequence[Wanted], *, rows: int, vocab: int, put: Put) -> Draws:
    """Describes draws from `rows` rows of `vocab` logits. Ids that are none of the vocabulary are left out."""
    pack = _Pack()
    own = [one.row for one in wanted] == list(range(rows))
    drawn_from = None if own else pack.add(np.array([one.row for one in wanted], dtype=np.int64))
    tables = (
        _biases(wanted, vocab, pack),
        _penalties(wanted, vocab, pack),
        _bans(wanted, vocab, pack),
        _masks(wanted, vocab, pack),
        _noisy(wanted, pack),
        _best(wanted, vocab, pack),
        _nuclei(wanted, pack),
    )
    counts = {at: one.draw.sampling.logprobs for at, one in enumerate(wanted)}
    telling = {at: min(count, vocab) for at, count in counts.items() if count is not None}
    tellers = pack.add(_numbers(telling)) if telling else None
    tensors = pack.tensors(put)
    biases, penalties, bans, masks, noisy, best, nuclei = tables
    return Draws(
        len(wanted),
        None if drawn_from is None else tensors[drawn_from],
        _table(Biases, biases, tensors),
        _table(Penalties, penalties, tensors),
        _table(Bans, bans, tensors),
        _table(Masks, masks, tensors),
        _table(Noisy, noisy, tensors),
        _table(Best, best, tensors),
        _table(Nuclei, nuclei, tensors),
        None if tellers is None else Telling(tensors[tellers], tuple(telling), tuple(telling.values())),
    )


def logprobs(telling: Telling, logs: NDArray[np.float64], ids: NDArray[np.int64], count: int) -> tuple[Logprobs | None, ...]:
    """What each of `count` draws tells, from `sampler.Told` on the host."""
    told: list[Logprobs | None] = [None] * count
    for at, wanted, (chosen, *values), (rank, *best) in zip(
        telling.places, telling.counts, logs.tolist(), ids.tolist(), strict=True
    ):
        told[at] = Logprobs(chosen, rank, tuple(zip(best[:wanted], values[:wanted], strict=True)))
    return tuple(told)


class _Pack:
    """Arrays one behind another, so that one copy brings them all to the device."""

    def __init__(self) -> None:
        self._arrays: list[NDArray[np.generic]] = []

    def add(self, values: NDArray[np.generic]) -> int:
        """Its place among the tensors."""
        self._arrays.append(np.ascontiguousarray(values))
        return len(self._arrays) - 1

    def tensors(self, put: Put) -> list[Tensor]:
        if not self._arrays:
            return []
        begins: list[int] = []
        size = 0
        for values in self._arrays:
            begins.append(size)
            size += -(-values.nbytes // _ALIGNMENT) * _ALIGNMENT
        joined = np.zeros(size, dtype=np.uint8)
        for begin, values in zip(begins, self._arrays, strict=True):
            joined[begin : begin + values.nbytes] = values.reshape(-1).view(np.uint8)
        there = put(joined)
        return [
            there[begin : begin + values.nbytes].view(torch.from_numpy(values).dtype).view(values.shape)
            for begin, values in zip(begins, self._arrays, strict=True)
        ]


_Places = list[int | None] | None
_Table = TypeVar("_Table")


def _table(kind: Callable[..., _Table], places: _Places, tensors: Sequence[Tensor]) -> _Table | None:
    return None if places is None else kind(*(None if place is None else tensors[place] for place in places))


def _biases(wanted: Sequence[Wanted], vocab: int, pack: _Pack) -> _Places:
    lists: dict[int, list[tuple[int, float]]] = {}
    for at, one in enumerate(wanted):
        known = [(token, bias) for token, bias in one.draw.sampling.logit_bias if 0 <= token < vocab]
        if known:
            lists[at] = known
    if not lists:
        return None
    ids = _filled([[token for token, _ in known] for known in lists.values()], NOTHING, np.int32)
    values = _filled([[bias for _, bias in known] for known in lists.values()], 0, np.float64)
    return [pack.add(values) for values in (_numbers(lists), ids, values)]


def _penalties(wanted: Sequence[Wanted], vocab: int, pack: _Pack) -> _Places:
    looking = {at: _history(one, vocab) for at, one in enumerate(wanted) if one.draw.sampling.penalised}
    looking = {at: history for at, history in looking.items() if len(history.tokens) > 0}
    if not looking:
        return None
    samplings = [wanted[at].draw.sampling for at in looking]
    amounts = np.array([(one.repetition_penalty, one.frequency_penalty, one.presence_penalty) for one in samplings]).T
    histories = list(looking.values())
    tokens = _filled([history.tokens for history in histories], NOTHING, np.int32)
    prompts = np.array([history.prompt for history in histories], dtype=np.int32)
    awaited = np.array([len(one.tokens) - 1 if one.pending else NOTHING for one in histories], dtype=np.int64)
    return [pack.add(values) for values in (_numbers(looking), tokens, prompts, awaited, *amounts)]


class _History(NamedTuple):
    """Known tokens, of which the first `prompt` are prompt. If `pending`, the last one stands for one that is not known yet."""

    tokens: NDArray[np.int32]
    prompt: int
    pending: bool


def _history(one: Wanted, vocab: int) -> _History:
    draw = one.draw
    # Only the repetition penalty looks at the prompt.
    first = draw.prompt_len if draw.sampling.repetition_penalty == 1 else 0
    history = array("i") if draw.history is None else draw.history[first : one.place]
    # A slice is a copy, so that the history itself can go on growing.
    tokens = np.frombuffer(history, dtype=np.int32)
    known = (tokens >= 0) & (tokens < vocab)
    pending = one.place > draw.prompt_len and len(tokens) > 0 and tokens[-1] == PENDING
    if pending:
        known[-1] = True
    return _History(tokens[known], int(known[: draw.prompt_len - first].sum()), bool(pending))


def _bans(wanted: Sequence[Wanted], vocab: int, pack: _Pack) -> _Places:
    lists = {at: [token for token in one.draw.banned if 0 <= token < vocab] for at, one in enumerate(wanted)}
    lists = {at: ids for at, ids in lists.items() if ids}
    if not lists:
        return None
    return [pack.add(values) for values in (_numbers(lists), _filled(list(lists.values()), NOTHING, np.int32))]


def _masks(wanted: Sequence[Wanted], vocab: int, pack: _Pack) -> _Places:
    size = -(-vocab // 32)
    masks: dict[int, NDArray[np.uint32]] = {}
    for at, one in enumerate(wanted):
        if one.draw.mask is not None:
            masks[at] = np.array(one.draw.mask, dtype=np.uint32)[:size]
            assert len(masks[at]) == size, "a mask that is too short"
    if not masks:
        return None
    return [pack.add(values) for values in (_numbers(masks), np.array(list(masks.values())).view(np.int32))]


def _noisy(wanted: Sequence[Wanted], pack: _Pack) -> _Places:
    noisy = {at: one for at, one in enumerate(wanted) if one.draw.sampling.temperature != 0}
    if not noisy:
        return None
    samplings = [one.draw.sampling for one in noisy.values()]
    temperatures = np.array([one.temperature for one in samplings], dtype=np.float64)
    min_p = np.array([one.min_p for one in samplings], dtype=np.float64)
    keys = np.array([_key(one) for one in noisy.values()], dtype=np.uint64).view(np.int64)
    return [*(pack.add(values) for values in (_numbers(noisy), temperatures, keys)), pack.add(min_p) if min_p.any() else None]


def _key(one: Wanted) -> int:
    return noise.key(one.draw.sampling.seed, one.draw.choice, one.place - one.draw.prompt_len)


def _best(wanted: Sequence[Wanted], vocab: int, pack: _Pack) -> _Places:
    found = {at: one.draw.sampling.top_k for at, one in enumerate(wanted) if one.draw.sampling.temperature != 0}
    found = {at: count for at, count in found.items() if 0 < count < vocab}
    if not found:
        return None
    return [pack.add(values) for values in (_numbers(found), np.array(list(found.values()), dtype=np.int64))]


def _nuclei(wanted: Sequence[Wanted], pack: _Pack) -> _Places:
    found = {at: one.draw.sampling for at, one in enumerate(wanted) if one.draw.sampling.temperature != 0}
    found = {at: sampling for at, sampling in found.items() if sampling.top_p < 1}
    if not found:
        return None
    settings = np.array([(sampling.temperature, sampling.top_p) for sampling in found.values()], dtype=np.float64).T
    return [pack.add(values) for values in (_numbers(found), *settings)]


def _numbers(table: Mapping[int, object]) -> NDArray[np.int64]:
    return np.fromiter(table, dtype=np.int64, count=len(table))


def _filled(lists: Sequence[Sequence[float] | NDArray[np.int32]], filler: int, dtype: type[np.generic]) -> NDArray[np.generic]:
    """[lists, longest], filled up behind the shorter ones."""
    table = np.full((len(lists), max(map(len, lists))), filler, dtype=dtype)
    for row, values in zip(table, lists, strict=True):
        row[: len(values)] = values
    return table
