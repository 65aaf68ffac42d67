"""Logits of tiny random models against transformers: every architecture, at every position, whatever the chunks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch_twins
from numpy.typing import NDArray
from tiny_decoders import random_tokens, row
from torch_executors import torch_executor
from transformers import Gemma3TextConfig, LlamaConfig, MistralConfig, PreTrainedConfig, Qwen2Config, Qwen3Config

from chairlift.evaluate.logits import LogitsExecutor
from chairlift.execute.reference import ReferenceExecutor
from chairlift.models.folder import load_folder

pytestmark = pytest.mark.parity
on_both = pytest.mark.parametrize("kind", ["reference", "torch"])

LENGTH = 20
BLOCK_SIZE = 4
BLOCKS = [9, 0, 4, 7, 2]
SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
SIX_LAYERS: dict[str, Any] = {**SHAPE, "num_hidden_layers": 6}
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SHAPE, num_key_value_heads=4),
    "llama, two queries a key": LlamaConfig(**SHAPE, num_key_value_heads=2, tie_word_embeddings=True),
    "llama, one key head": LlamaConfig(**SHAPE, num_key_value_heads=1, head_dim=10),
    "llama, biases": LlamaConfig(**SHAPE, num_key_value_heads=2, attention_bias=True, mlp_bias=True),
    "llama, llama3 rope": LlamaConfig(**SHAPE, num_key_value_heads=2, rope_parameters=LLAMA3),
    "llama, linear rope": LlamaConfig(
        **SHAPE, num_key_value_heads=2, rope_parameters={"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
    ),
    "mistral": MistralConfig(**SHAPE, num_key_value_heads=2, sliding_window=None),
    "mistral, window": MistralConfig(**SHAPE, num_key_value_heads=2, sliding_window=6, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**SHAPE, num_key_value_heads=2),
    "qwen2, tied": Qwen2Config(**SHAPE, num_key_value_heads=1, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SHAPE, num_key_value_heads=2, head_dim=16),
    "qwen3, tied": Qwen3Config(**SHAPE, num_key_value_heads=4, head_dim=8, tie_word_embeddings=True),
    "gemma3": Gemma3TextConfig(**SIX_LAYERS, num_key_value_heads=1, head_dim=16, sliding_window=5),
    "gemma3, two kinds in turn": Gemma3TextConfig(
        **SHAPE,
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=3,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
        query_pre_attn_scalar=20,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 5_000.0, "factor": 2.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        },
    ),
}


@pytest.fixture(scope="module", params=CONFIGS.values(), ids=list(CONFIGS))
def compared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> "Compared":
    folder = tmp_path_factory.mktemp("model")
    model = torch_twins.random_model(request.param)
    torch_twins.save(model, folder)
    return Compared(folder, torch_twins.logits(model, random_tokens(LENGTH, vocab=96)))


class Compared:
    """A folder that transformers wrote, and the logits [tokens, vocab] it computes."""

    def __init__(self, folder: Path, expected: NDArray[np.float32]) -> None:
        self.folder = folder
        self.expected = expected
        self.tokens = random_tokens(LENGTH, vocab=96)

    def executor(self, kind: str) -> LogitsExecutor:
        model = load_folder(self.folder, name="tiny")
        if kind == "torch":
            return torch_executor(model.description, model.weights, num_blocks=10, block_size=BLOCK_SIZE)
        return ReferenceExecutor.load(model.description, model.weights, num_blocks=10, block_size=BLOCK_SIZE)

    def check(self, logits: NDArray[np.float32], position: int) -> None:
        expected = self.expected[position]
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


@on_both
def test_a_prompt_at_once(compared: Compared, kind: str) -> None:
    compared.check(compared.executor(kind).logits([row(compared.tokens, BLOCKS)])[0], -1)


@on_both
def test_a_prompt_cut_anywhere(compared: Compared, kind: str) -> None:
    executor = compared.executor(kind)
    for cut in range(1, LENGTH):
        before = executor.logits([row(compared.tokens[:cut], BLOCKS)])
        after = executor.logits([row(compared.tokens[cut:], BLOCKS, start=cut)])
        compared.check(before[0], cut - 1)
        compared.check(after[0], -1)


@on_both
def test_token_by_token(compared: Compared, kind: str) -> None:
    executor = compared.executor(kind)
    for position, token in enumerate(compared.tokens):
        compared.check(executor.logits([row([token], BLOCKS, start=position)])[0], position)
