"""The default model: its logits have the same bits in any company, and its answers are those of the reference."""

from collections.abc import Iterator

import numpy as np
import pytest
from cpu_executors import cpu_executor
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from real_models import real_model
from tiny_decoders import random_tokens, row

from chairlift.execute.cpu.executor import CpuExecutor, CpuOptions
from chairlift.execute.reference import ReferenceExecutor
from chairlift.models.description import Model

pytestmark = pytest.mark.model

PROMPT = [504, 3575, 282, 4649, 314, 7042, 30, 378, 3575, 282, 7158, 314, 7268, 30, 4027, 1980, 253, 655]
VOCAB = 40_000
LENGTHS = (70, 33, 16, 5)
TEXTS = [random_tokens(length, vocab=VOCAB, seed=length) for length in LENGTHS]
BLOCKS_EACH = 5
LEAD = 1.0
CLOSE = 0.4
"""Standard deviation over the vocabulary, as a shift of all logits means nothing; they are about 4 wide."""


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    opened = real_model("smollm2")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def alone(model: Model) -> list[NDArray[np.float32]]:
    """Logits after each text, computed at once, on one thread, by itself."""
    with cpu_executor(model.description, model.weights, options=CpuOptions(threads=1)) as executor:
        return [executor.logits([row(text, range(BLOCKS_EACH))])[0] for text in TEXTS]


@pytest.fixture(scope="module")
def shared(model: Model) -> Iterator[CpuExecutor]:
    with cpu_executor(model.description, model.weights, options=CpuOptions(threads=2)) as executor:
        yield executor


def test_the_best_token_is_that_of_the_reference_where_it_leads(model: Model, shared: CpuExecutor) -> None:
    """Activations of 8 bits move logits by a few tenths: the lead that counts is a multiple of it."""
    reference = ReferenceExecutor.load(model.description, model.weights, num_blocks=BLOCKS_EACH, block_size=16)
    text = list(PROMPT)
    clear = 0
    for position in range(30):
        work = [row([text[position]], range(BLOCKS_EACH), start=position)]
        ours, theirs = shared.logits(work)[0], reference.logits(work)[0]
        best, second = np.sort(theirs)[::-1][:2]
        if best - second > LEAD:
            clear += 1
            assert np.argmax(ours) == np.argmax(theirs)
        assert np.std(ours - theirs) < CLOSE
        if position + 1 == len(text):
            text.append(int(np.argmax(theirs)))
    assert clear > 5


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_logits_have_the_same_bits_in_any_batch(
    data: st.DataObject, shared: CpuExecutor, alone: list[NDArray[np.float32]]
) -> None:
    done = [0] * len(TEXTS)
    last: dict[int, NDArray[np.float32]] = {}
    while left := [number for number, text in enumerate(TEXTS) if done[number] < len(text)]:
        chosen = data.draw(st.lists(st.sampled_from(left), min_size=1, unique=True))
        counts = [data.draw(st.integers(1, len(TEXTS[number]) - done[number])) for number in chosen]
        rows = [
            row(
                TEXTS[number][done[number] : done[number] + count],
                range(number * BLOCKS_EACH, (number + 1) * BLOCKS_EACH),
                seq_id=str(number),
                start=done[number],
            )
            for number, count in zip(chosen, counts, strict=True)
        ]
        last |= dict(zip(chosen, shared.logits(rows), strict=True))
        for number, count in zip(chosen, counts, strict=True):
            done[number] += count
    for number, logits in last.items():
        assert logits.tobytes() == alone[number].tobytes()
