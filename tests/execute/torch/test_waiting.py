"""A step is asked of the device without waiting for it: nothing that the host does next depends on a number of the device.

PyTorch's fake tensors have shapes and no contents. Whoever asks one for its contents, or does what gives a tensor of unknown
length, gets an error: on a GPU it would wait.
"""

from array import array
from collections.abc import Callable

import pytest
import torch
from captures import DenseAttention
from masks import mask_of
from tiny_decoders import VARIANTS, random_tokens, random_weights, row
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch_executors import torch_executor

from chairlift.core.types import PENDING, Draw, Move, Plan, Sampling
from chairlift.execute.torch.executor import TorchExecutor

EVERYTHING = VARIANTS["everything"]
HISTORY = array("i", random_tokens(20))
DRAWS = (
    Draw(0, Sampling(temperature=0)),
    Draw(0, Sampling(seed=9, top_k=5, logprobs=5)),
    Draw(0, Sampling(frequency_penalty=1.2, logit_bias=((3, 5.0),), logprobs=0), history=HISTORY, prompt_len=9),
    Draw(0, Sampling(seed=2, top_p=0.5, min_p=0.1), frozenset({4}), mask=mask_of(range(5, 30), EVERYTHING.vocab)),
)


def plan(step: int, tokens: list[int], *, start: int) -> Plan:
    work = [
        row(tokens, [2 * number, 2 * number + 1], seq_id=str(number), start=start)._replace(draws=(draw,))
        for number, draw in enumerate(DRAWS)
    ]
    pad = row([1, 2], seq_id="pad", pad=True)
    return Plan(step, (*work, pad), moves=(Move("copy", 30, 31),))


def executor() -> TorchExecutor:
    return torch_executor(EVERYTHING, random_weights(EVERYTHING))


def test_two_steps_are_asked_for_without_a_look_at_any_number() -> None:
    asked = executor()
    with FakeTensorMode(allow_non_fake_inputs=True):
        asked.launch(plan(0, list(HISTORY[:19]), start=0))
        asked.launch(plan(1, [PENDING], start=19))


def test_a_captured_step_is_filled_and_launched_without_a_look_at_any_number() -> None:
    class Again:
        """Captures nothing, and computes what it was given, at once."""

        def __init__(self, run: Callable[[], None]) -> None:
            self.replay = run

        @classmethod
        def capture(cls, run: Callable[[], None]) -> "Again":
            return cls(run)

    attention = DenseAttention(scale=EVERYTHING.attention_scale)
    asked = torch_executor(EVERYTHING, random_weights(EVERYTHING), attention=attention, recorder=Again)
    asked.launch(plan(0, list(HISTORY[:19]), start=0))
    with FakeTensorMode(allow_non_fake_inputs=True):
        asked.launch(plan(1, [PENDING], start=19))


def test_fake_tensors_tell_who_waits() -> None:
    numbers = torch.arange(3)
    with FakeTensorMode(allow_non_fake_inputs=True):
        with pytest.raises(DataDependentOutputException):
            (numbers + 1).sum().item()
        with pytest.raises(DynamicOutputShapeException):
            (numbers + 1)[numbers > 1]
