"""The parts of an engine as `chairlift.compose` hands them out, around a scripted model."""

from collections.abc import Callable

import numpy as np
from executors import ShadowExecutor
from numpy.typing import NDArray
from tiny import CHATML, letters, source
from tiny_decoders import PLAIN

from chairlift.compose import Engine, EngineOptions, fit
from chairlift.models.description import Model
from chairlift.text.template import ChatTemplate
from chairlift.text.tokenizer import build


class NoWeights:
    """A script needs none."""

    def float32(self, name: str) -> NDArray[np.float32]:
        raise AssertionError(name)


def scripted(next_token: Callable[[tuple[int, ...]], int] = letters, *, template: str | None = CHATML) -> Engine:
    """One place, a context of 256 tokens, one token per byte."""
    text = source(template=template)
    tokenizer = build(text)
    model = Model("scripted", PLAIN, NoWeights(), text, {}, "F32", lambda: None)
    sizes = fit(model, EngineOptions(max_num_seqs=1, executor="reference"), free_bytes=2**30)
    executor = ShadowExecutor(sizes.config.num_blocks, sizes.config.block_size, next_token)
    return Engine(model, sizes, executor, tokenizer, ChatTemplate(text, tokenizer))
