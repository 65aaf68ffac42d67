"""From logits on the device to tokens on the device, all draws of a step at once, by the rules of `execute.sampler`.

Everything is asked of the device and nothing is waited for; what no draw of the step needs is left out. `TorchSampler` is the
readable form, for any device, and what `kernels.sampler` is tested against. A draw is the reference's but for what follows:

- Probabilities are counted in whole units of 2 ** -44 of the best one's. So sums do not depend on their order, and a draw
  depends neither on the others of its step nor on how a device splits a row. Where the reference's own sum comes within
  2 ** -27 of top-p, the two may part.
- Logarithms and exponentials are the device's, which may differ in their last bit: two ids whose noisy scores agree in some
  15 digits may change places, and so may one whose probability is min-p in some 15 digits.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from chairlift.execute.torch.draws import Bans, Best, Biases, Draws, Masks, Noisy, Nuclei, Penalties

FINE, BROKEN, EXCLUDED = 0, 1, 2
"""How a draw went: well, the logits are not finite numbers, every token is excluded."""

MASS_BITS = 44
"""Probability 1 is 2 ** MASS_BITS units."""

MOST_VOCAB = (1 << 63 - MASS_BITS) - 1
"""So many times probability 1 fits into a signed 64-bit number."""

LARGEST = torch.finfo(torch.float32).max

_LOW = 0xFFFFFFFF
_GAMMA, _MIX_1, _MIX_2 = (word - (1 << 64) for word in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
"""The constants of `execute.noise` as signed numbers: sums, products and exclusive ors of both have the same bits."""


class Told(NamedTuple):
    """Log probabilities of some draws, the drawn token's first, then those of the best ones: float64 [tellers, 1 + most].

    `ids` int64 [tellers, 1 + most] has the rank of the drawn token (from 1), then the best ids.
    """

    logs: Tensor
    ids: Tensor


class Drawn(NamedTuple):
    """`tokens` int64 [draws] on the device, 0 where nothing could be drawn; `failed` uint8 [draws] is FINE where it could."""

    tokens: Tensor
    failed: Tensor
    told: Told | None = None


class Sampler(Protocol):
    """Draws what is described, from `logits` float32 [rows, vocab], which it may overwrite.

    `pending` int64 [rows] has the last token of a row's history where the host does not know it; None if it knows all.
    """

    def draw(self, logits: Tensor, draws: Draws, pending: Tensor | None) -> Drawn: ...


class TorchSampler:
    """See `Sampler`."""

    def draw(self, logits: Tensor, draws: Draws, pending: Tensor | None) -> Drawn:
        assert logits.shape[1] <= MOST_VOCAB, "more logits than masses can be summed of"
        raw = logits if draws.rows is None else logits[draws.rows]
        broken = ~torch.isfinite(raw).all(dim=1)
        changed = _changed(raw, draws, awaited(draws, pending)) if draws.changing else raw
        tokens = changed.argmax(dim=1)
        best = changed.gather(1, tokens.unsqueeze(1))
        if draws.noisy is not None:
            tokens[draws.noisy.draws] = _noisy(_cut(changed, draws, best), draws.noisy, best)
        failed = torch.where(broken, BROKEN, torch.where(best.squeeze(1) == -torch.inf, EXCLUDED, FINE)).to(torch.uint8)
        tokens = torch.where(failed == FINE, tokens, 0)
        if draws.telling is None:
            return Drawn(tokens, failed)
        of_tellers = draws.telling.draws
        return Drawn(tokens, failed, logprobs(raw[of_tellers], tokens[of_tellers], draws.telling.most))


def awaited(draws: Draws, pending: Tensor | None) -> Tensor | None:
    """Of the draws that look back, the last tokens that the host does not know: int64 [those draws]; None if it knows all."""
    if pending is None or draws.penalties is None:
        return None
    rows = draws.penalties.draws
    return pending[rows if draws.rows is None else draws.rows[rows]]


def logprobs(logits: Tensor, tokens: Tensor, most: int) -> Told:
    """What raw `logits` float32 [rows, vocab] say of `tokens` int64 [rows] and of the `most` best ones."""
    exact = logits.double()
    below = exact - exact.amax(dim=1, keepdim=True)
    logs = below - below.exp().sum(dim=1, keepdim=True).log()
    chosen = tokens.unsqueeze(1)
    ranked = _ranked(logits)
    rank = (ranked >= ranked.gather(1, chosen)).sum(dim=1, keepdim=True)
    if most == 0:
        return Told(logs.gather(1, chosen), rank)
    best = _LOW ^ (ranked.topk(most, dim=1).values & _LOW)
    return Told(torch.cat((logs.gather(1, chosen), logs.gather(1, best)), dim=1), torch.cat((rank, best), dim=1))


def _changed(raw: Tensor, draws: Draws, last: Tensor | None) -> Tensor:
    """Rules 1 to 3."""
    logits = raw.clone()
    if draws.biases is not None:
        _bias(logits, draws.biases)
    if draws.penalties is not None:
        _penalise(logits, draws.penalties, last)
    if draws.bans is not None:
        _ban(logits, draws.bans)
    if draws.masks is not None:
        _mask(logits, draws.masks)
    return logits


def _bias(logits: Tensor, biases: Biases) -> None:
    rows, ids = biases.draws.unsqueeze(1), _repeated(biases.ids, biases.ids)
    values = _repeated(biases.values, biases.ids)
    logits[rows, ids] = _rounded(logits[rows, ids].double() + values)


def _penalise(logits: Tensor, penalties: Penalties, last: Tensor | None) -> None:
    histories = penalties.histories.long()
    columns = torch.arange(histories.shape[1], device=histories.device)
    if last is not None:
        histories = torch.where(columns == penalties.awaited.unsqueeze(1), last.unsqueeze(1), histories)
    # The larger a list, the longer a sort; but a table of counts for all ids would be larger still.
    is_output = (columns >= penalties.prompts.unsqueeze(1)) & (histories >= 0)
    output = torch.where(is_output, histories, logits.shape[1]).sort(dim=1).values
    ids = _repeated(histories, histories)
    counts = torch.searchsorted(output, ids, right=True) - torch.searchsorted(output, ids)
    rows = penalties.draws.unsqueeze(1)
    values, repetition = logits[rows, ids].double(), penalties.repetition.unsqueeze(1)
    values = torch.where(values > 0, values / repetition, values * repetition)
    values = values - penalties.frequency.unsqueeze(1) * counts
    values = torch.where(counts > 0, values - penalties.presence.unsqueeze(1), values)
    logits[rows, ids] = _rounded(values)


def _ban(logits: Tensor, bans: Bans) -> None:
    logits[bans.draws.unsqueeze(1), _repeated(bans.ids, bans.ids)] = -torch.inf


def _mask(logits: Tensor, masks: Masks) -> None:
    bits = torch.arange(32, dtype=torch.int32, device=logits.device)
    allowed = ((masks.words.unsqueeze(2) >> bits) & 1).flatten(1)[:, : logits.shape[1]]
    logits[masks.draws] = torch.where(allowed == 1, logits[masks.draws], -torch.inf)


def _repeated(values: Tensor, ids: Tensor) -> Tensor:
    """`values` with the first of a list wherever its id is NOTHING, so that what is done there is done already.

    An index that is no id stays 0 in a list without any.
    """
    filled = torch.where(ids >= 0, values, values[:, :1])
    return filled if values.is_floating_point() else filled.long().clamp(min=0)


def _rounded(values: Tensor) -> Tensor:
    return values.clamp(-LARGEST, LARGEST).float()


def _cut(logits: Tensor, draws: Draws, best: Tensor) -> Tensor:
    """Rules 6 and 7: what they do not keep has minus infinity."""
    if draws.best is None and draws.nuclei is None:
        return logits
    logits = logits.clone()
    if draws.best is not None:
        _keep_best(logits, draws.best)
    if draws.nuclei is not None:
        _keep_nucleus(logits, draws.nuclei, best[draws.nuclei.draws])
    return logits


def _keep_best(logits: Tensor, cut: Best) -> None:
    rows = logits[cut.draws]
    ranked = _ranked(rows)
    last = ranked.sort(dim=1, descending=True).values.gather(1, cut.counts.unsqueeze(1) - 1)
    logits[cut.draws] = torch.where(ranked >= last, rows, -torch.inf)


def _keep_nucleus(logits: Tensor, nuclei: Nuclei, best: Tensor) -> None:
    rows = logits[nuclei.draws]
    ranked = _ranked(rows)
    sorted_, order = ranked.sort(dim=1, descending=True)
    scores = (rows.double() - best.double()) / nuclei.temperatures.unsqueeze(1)
    masses = (scores.exp() * 2.0**MASS_BITS + 0.5).floor().long()
    reached = masses.gather(1, order).cumsum(dim=1)
    total = reached[:, -1:]
    wanted = (nuclei.masses.unsqueeze(1) * total).ceil().long().clamp(min=1)
    # A product of 64 bits may be rounded to more than there is.
    short = (reached < torch.minimum(wanted, total)).sum(dim=1, keepdim=True)
    last = sorted_.gather(1, short.clamp(max=rows.shape[1] - 1))
    logits[nuclei.draws] = torch.where(ranked >= last, rows, -torch.inf)


def _noisy(logits: Tensor, noisy: Noisy, best: Tensor) -> Tensor:
    """Rules 8 and 9: ids [noisy draws]."""
    scores = (logits[noisy.draws].double() - best[noisy.draws].double()) / noisy.temperatures.unsqueeze(1)
    ids = torch.arange(logits.shape[1], device=logits.device)
    chances = scores + _gumbel(noisy.keys.unsqueeze(1), ids)
    if noisy.min_p is not None:
        chances = torch.where(scores.exp() >= noisy.min_p.unsqueeze(1), chances, -torch.inf)
    return chances.argmax(dim=1)


def _gumbel(keys: Tensor, ids: Tensor) -> Tensor:
    """See `execute.noise`: its numbers [..., ids] for the int64 bits of keys [..., 1]."""
    z = keys + (ids + 1) * _GAMMA
    z = (z ^ _shifted(z, 30)) * _MIX_1
    z = (z ^ _shifted(z, 27)) * _MIX_2
    z = z ^ _shifted(z, 31)
    uniform = (_shifted(z, 12).double() + 0.5) * 2.0**-52
    return -torch.log(-torch.log(uniform))


def _shifted(words: Tensor, bits: int) -> Tensor:
    """To the right, as unsigned words."""
    return (words >> bits) & ((1 << 64 - bits) - 1)


def _ranked(logits: Tensor) -> Tensor:
    """int64 [rows, vocab], all different: the larger the better, first by the logit and then by the lower id."""
    # Adding 0 makes minus zero zero, as the two are equal.
    bits = (logits + 0.0).view(torch.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    ids = torch.arange(logits.shape[1], device=logits.device)
    return (ordered.long() << 32) | (_LOW ^ ids)
