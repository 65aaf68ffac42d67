"""Greedy answers of the real models against transformers, which runs on the very weights that the executor runs on.

Transformers reads prompt and answer at once: if each token of the answer is its best guess after all tokens before, then the
answer is what it would have written itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch_twins
from numpy.typing import NDArray
from real_models import real_model
from tiny_decoders import ArrayWeights, row
from torch_executors import torch_executor
from transformers import PreTrainedModel
from virtual import Ride, request

from chairlift.core.config import EngineConfig
from chairlift.core.ports import Executor
from chairlift.engine.core import EngineCore
from chairlift.execute.parameters import Parameters
from chairlift.execute.reference import ReferenceExecutor
from chairlift.execute.torch.executor import TorchExecutor
from chairlift.models.description import Description
from chairlift.text.tokenizer import build

pytestmark = [pytest.mark.parity, pytest.mark.model]

BLOCK_SIZE = 16
BUDGET = 64

SMOLLM2_PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "1 2 3 4 5 6 7 8 9",
    "Q: What is 17 + 25?\nA:",
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWrite a haiku about snow.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>system\nYou answer in one word.<|im_end|>\n<|im_start|>user\nIs water wet?<|im_end|>\n<|im_start|>assistant\n",
    "La capitale de l'Italie est",
    "Die Hauptstadt von Deutschland ist",
    "El perro y el gato",
    "Dear Sir or Madam,\n\nI am writing to",
    "The quick brown fox",
    '{"name": "Ada", "born": 1815, "known for": "',
    "To make pancakes you need:\n- flour\n- eggs\n-",
    "SELECT name, price FROM products WHERE",
    "Water boils at 100 degrees Celsius because",
    "H",
    "naïve café — “quoted” … 東京 🙂",
    """A chairlift never stops: an endless loop of chairs, riders get on wherever a chair is free and off when they have
arrived, and the cable keeps moving. Here the cable is the engine's step, and the chairs are""",
)

SENTENCES = (
    "The lift opened at eight, and the first riders were already waiting in the cold.",
    "A red fox crossed the slope between two trees and did not look back.",
    "By noon the clouds had come down over the ridge, and nobody could see the valley any more.",
    "The old man at the top station counted every chair, as he had done for thirty years.",
    "Two children argued about who had been faster, and neither would give in.",
    "Coffee was served in tin cups, hot and far too strong.",
    "In the village below, the church bell rang three times.",
    "The snow was dry and squeaked under every step.",
)


def long_prompt(count: int, *, start: int) -> str:
    """Numbered sentences, so that no part is the same as another."""
    return " ".join(f"{number}. {SENTENCES[number * 5 % len(SENTENCES)]}" for number in range(start, start + count))


GEMMA_PROMPTS = (
    long_prompt(33, start=201) + " The capital of France is",
    long_prompt(31, start=301) + " Es war einmal ein König, der hatte drei",
    "Here is a story. " + long_prompt(32, start=1) + " After that,",
    long_prompt(34, start=401) + "\n\ndef quicksort(items):\n",
    "A report of one day. " + long_prompt(36, start=101) + " In the evening",
)


@dataclass(frozen=True)
class Real:
    """A model, its weights in memory once for both sides, and prompts by name."""

    description: Description
    parameters: Parameters
    twin: PreTrainedModel
    prompts: Mapping[str, Sequence[int]]
    new_tokens: int

    def executor(self, num_blocks: int) -> ReferenceExecutor:
        return ReferenceExecutor(self.description, self.parameters, num_blocks=num_blocks, block_size=BLOCK_SIZE)

    def torch_executor(self, num_blocks: int) -> TorchExecutor:
        """In float32, with a copy of the weights."""
        weights = ArrayWeights(self.parameters.tensors)
        return torch_executor(
            self.description,
            weights,
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            max_tokens=BUDGET,
            max_rows=len(self.prompts),
        )

    def ride(self, num_blocks: int, executor: Executor | None = None) -> Ride:
        config = EngineConfig(
            max_model_len=num_blocks * BLOCK_SIZE,
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            max_num_seqs=len(self.prompts),
            max_num_batched_tokens=BUDGET,
        )
        return Ride(EngineCore(config, executor or self.executor(num_blocks)))

    def answer(self, ride: Ride, names: Sequence[str]) -> dict[str, list[int]]:
        ride.submit(*(request(name, self.prompts[name], self.new_tokens) for name in names))
        ride.run()
        return {name: ride.tokens[name] for name in names}

    def longer_than(self, count: int) -> set[str]:
        return {name for name, prompt in self.prompts.items() if len(prompt) > count}

    def best_guesses(self, name: str, answer: Sequence[int]) -> list[int]:
        """What transformers would write at every place of the answer, after the prompt and the answer so far."""
        prompt = self.prompts[name]
        return torch_twins.logits(self.twin, [*prompt, *answer[:-1]], last=len(answer)).argmax(axis=-1).tolist()


def real(name: str, texts: Sequence[str], *, new_tokens: int) -> Iterator[Real]:
    model = real_model(name)
    parameters = Parameters.read(model.description, model.weights)
    tokenizer = build(model.tokenizer)
    prompts = {f"{name}-{index}": tokenizer.encode(text) for index, text in enumerate(texts)}
    twin = torch_twins.twin(model.description, ArrayWeights(parameters.tensors))
    yield Real(model.description, parameters, twin, prompts, new_tokens)
    model.close()


@pytest.fixture(scope="module")
def smollm2() -> Iterator[Real]:
    yield from real("smollm2", SMOLLM2_PROMPTS, new_tokens=24)


@pytest.fixture(scope="module")
def smollm2_alone(smollm2: Real) -> dict[str, list[int]]:
    """Every prompt answered by an engine of its own."""
    return {name: smollm2.answer(smollm2.ride(num_blocks=8), [name])[name] for name in smollm2.prompts}


@pytest.fixture(scope="module")
def gemma3() -> Iterator[Real]:
    yield from real("gemma3-270m", GEMMA_PROMPTS, new_tokens=32)


@pytest.fixture(scope="module")
def gemma3_alone(gemma3: Real) -> dict[str, list[int]]:
    return {name: gemma3.answer(gemma3.ride(num_blocks=60), [name])[name] for name in gemma3.prompts}


def close(logits: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


class TestSmolLM2:
    def test_logits_of_a_prompt_in_chunks(self, smollm2: Real) -> None:
        tokens = smollm2.prompts["smollm2-19"]
        expected = torch_twins.logits(smollm2.twin, tokens)
        executor = smollm2.executor(num_blocks=8)
        for start in range(0, len(tokens), 7):
            chunk = tokens[start : start + 7]
            close(executor.logits([row(chunk, range(8), start=start)])[0], expected[start + len(chunk) - 1])

    def test_alone(self, smollm2: Real, smollm2_alone: dict[str, list[int]]) -> None:
        assert len(smollm2_alone) == 20
        assert smollm2_alone == {name: smollm2.best_guesses(name, answer) for name, answer in smollm2_alone.items()}

    def test_together_with_preemption(self, smollm2: Real, smollm2_alone: dict[str, list[int]]) -> None:
        ride = smollm2.ride(num_blocks=20)
        assert smollm2.answer(ride, list(smollm2.prompts)) == smollm2_alone
        assert ride.preemptions > 0
        assert ride.free_again

    def test_in_pytorch_together_with_preemption(self, smollm2: Real, smollm2_alone: dict[str, list[int]]) -> None:
        ride = smollm2.ride(num_blocks=20, executor=smollm2.torch_executor(num_blocks=20))
        assert smollm2.answer(ride, list(smollm2.prompts)) == smollm2_alone
        assert ride.preemptions > 0
        assert ride.free_again


class TestGemma3:
    def test_all_prompts_are_longer_than_the_window(self, gemma3: Real) -> None:
        assert {layer.window for layer in gemma3.description.layers} == {512, None}
        assert gemma3.longer_than(512) == set(gemma3.prompts)

    def test_alone(self, gemma3: Real, gemma3_alone: dict[str, list[int]]) -> None:
        assert gemma3_alone == {name: gemma3.best_guesses(name, answer) for name, answer in gemma3_alone.items()}

    def test_in_pytorch(self, gemma3: Real, gemma3_alone: dict[str, list[int]]) -> None:
        """The shortest one."""
        name = min(gemma3.prompts, key=lambda one: len(gemma3.prompts[one]))
        ride = gemma3.ride(num_blocks=60, executor=gemma3.torch_executor(num_blocks=60))
        assert gemma3.answer(ride, [name]) == {name: gemma3_alone[name]}

    def test_together_with_preemption(self, gemma3: Real, gemma3_alone: dict[str, list[int]]) -> None:
        first_two = [len(prompt) for prompt in gemma3.prompts.values()][:2]
        ride = gemma3.ride(num_blocks=sum(-(-length // BLOCK_SIZE) for length in first_two) + 1)  # no room for both answers
        assert gemma3.answer(ride, list(gemma3.prompts)) == gemma3_alone
        assert ride.preemptions > 0
        assert ride.free_again
