"""Drawing by Triton kernels, on CUDA devices and in Triton's interpreter: which kernel is launched for what a step needs.

A row of logits is split over programs, as a step of one row would else leave most of a GPU idle. Its parts are read again from
the cache of the device, so a few passes over them cost less than sorting once.
"""

from torch import Tensor

from chairlift.execute.torch.draws import Draws
from chairlift.execute.torch.kernels import changing, cutting, drawing
from chairlift.execute.torch.kernels.drawing import Survey
from chairlift.execute.torch.sampler import MOST_VOCAB, Drawn, awaited, logprobs

_BLOCK = 2048
"""Logits of one program: 8 a thread, and 128 programs for a row of 262,144, about as many as an H200 has multiprocessors. It is
an estimate: nothing has been measured yet."""


class TritonSampler:
    """See `sampler.Sampler`. Tests take a smaller `block`, a power of two, so that small rows have many parts."""

    def __init__(self, *, block: int = _BLOCK) -> None:
        self._block = block
        self._penaliser = changing.Penaliser()

    def draw(self, logits: Tensor, draws: Draws, pending: Tensor | None) -> Drawn:
        assert logits.shape[1] <= MOST_VOCAB, "more logits than masses can be summed of"
        assert logits.is_contiguous(), "logits that lie apart"
        logits = logits if draws.rows is None else logits[draws.rows]
        told = None if draws.telling is None else logits[draws.telling.draws]
        survey = Survey(logits, block=self._block)
        survey.take(logits, raw=True)
        if draws.changing:
            self._change(logits, draws, awaited(draws, pending))
            survey.take(logits, raw=False)
        tokens, failed, best = survey.settled()
        if draws.best is not None:
            cutting.keep_best(logits, draws.best, block=self._block)
        if draws.nuclei is not None:
            cutting.keep_nucleus(logits, draws.nuclei, best, block=self._block)
        if draws.noisy is not None:
            drawing.race(logits, draws.noisy, best, failed, tokens, block=self._block)
        if draws.telling is None or told is None:
            return Drawn(tokens, failed)
        return Drawn(tokens, failed, logprobs(told, tokens[draws.telling.draws], draws.telling.most))

    def _change(self, logits: Tensor, draws: Draws, last: Tensor | None) -> None:
        """Rules 1 to 3 of `execute.sampler`."""
        if draws.biases is not None:
            changing.bias(logits, draws.biases)
        if draws.penalties is not None:
            self._penaliser.penalise(logits, draws.penalties, last)
        if draws.bans is not None:
            changing.ban(logits, draws.bans)
        if draws.masks is not None:
            changing.mask(logits, draws.masks, block=self._block)
