"""From logits on the device to tokens on the device, draw by draw, as `execute.sampler` has it. Waits for the device."""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from chairlift.core.errors import NothingAllowed
from chairlift.core.types import Draw, Logprobs
from chairlift.execute import sampler
from chairlift.execute.torch.device import Device

FINE, BROKEN, EXCLUDED = 0, 1, 2
"""How a draw went: well, the logits are not finite numbers, every token is excluded."""


class Drawn(NamedTuple):
    """`tokens` int64 [draws] on the device, 0 where nothing could be drawn; `failed` uint8 [draws] is FINE where it could."""

    tokens: Tensor
    failed: Tensor
    logprobs: tuple[Logprobs | None, ...] = ()


class HostSampler:
    """Draws on the machine, with the reference's own sampler."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def draw(self, logits: Tensor, draws: Sequence[Draw], rows: Sequence[int], pending: Tensor | None) -> Drawn:
        """`rows` says which row of `logits` float32 [rows, vocab] each draw is from.

        `pending` int64 [rows] is the last token of the row's history where that is not known here, else -1; None if all are.
        """
        known = logits.cpu().numpy()
        finite = [bool(np.isfinite(row).all()) for row in known]
        last = [-1] * len(logits) if pending is None else pending.tolist()
        tokens, failed = [0] * len(draws), [FINE] * len(draws)
        told: list[Logprobs | None] = [None] * len(draws)
        for at, (draw, row) in enumerate(zip(draws, rows, strict=True)):
            if not finite[row]:
                failed[at] = BROKEN
                continue
            try:
                tokens[at] = sampler.draw(known[row], _completed(draw, last[row]))
            except NothingAllowed:
                failed[at] = EXCLUDED
                continue
            if draw.sampling.logprobs is not None:
                told[at] = sampler.logprobs(known[row], tokens[at], draw.sampling.logprobs)
        put = self._device.put
        return Drawn(put(np.array(tokens, dtype=np.int64)), put(np.array(failed, dtype=np.uint8)), tuple(told))


def _completed(draw: Draw, last: int) -> Draw:
    if last < 0 or draw.history is None:
        return draw
    history = array("i", draw.history[: draw.prompt_len + draw.position])
    history[-1] = last
    return draw._replace(history=history)
