"""Transformers' models, tiny and random or built from a model of ours. Imports torch at its top."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from chairlift.models.architectures import hf_names
from chairlift.models.description import Description, Weights

KINDS: dict[type[PreTrainedConfig], type[PreTrainedModel]] = {
    LlamaConfig: LlamaForCausalLM,
    MistralConfig: MistralForCausalLM,
    Qwen2Config: Qwen2ForCausalLM,
    Qwen3Config: Qwen3ForCausalLM,
    Gemma3TextConfig: Gemma3ForCausalLM,
}


def random_model(config: PreTrainedConfig, *, seed: int = 0) -> PreTrainedModel:
    """A model whose every parameter is random, norms and biases too, as fresh ones would hide mistakes."""
    config._attn_implementation = "eager"
    model = KINDS[type(config)](config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.add_(0.3 * noise)
            elif parameter.dim() == 2 and "embed" not in name and "lm_head" not in name:
                parameter.copy_(2 * noise / parameter.shape[1] ** 0.5)
            else:
                parameter.copy_(noise)
    return model


def save(model: PreTrainedModel, folder: Path) -> None:
    """A Hugging Face folder with safetensors, and the least that a tokenizer can be."""
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(
        '{"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}'
    )


def twin(description: Description, weights: Weights) -> PreTrainedModel:
    """Transformers' Llama or Gemma 3 of this shape, with these very weights (their memory is shared where it can be)."""
    model = KINDS[type(config := _config(description))](config).eval()
    state = {theirs: torch.from_numpy(_stored(description, weights, ours)) for ours, theirs in hf_names(description).items()}
    if description.tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True, assign=True)
    return model


@torch.no_grad()
def logits(model: PreTrainedModel, tokens: Sequence[int], *, last: int = 0) -> NDArray[np.float32]:
    """Logits [tokens, vocab] after every token, or after each of the `last` ones."""
    return model(input_ids=torch.tensor([list(tokens)]), use_cache=False, logits_to_keep=last).logits[0].numpy()


def _stored(description: Description, weights: Weights, name: str) -> NDArray[np.float32]:
    """Gemma stores norm weights less 1; `sandwich` tells it."""
    tensor = weights.float32(name)
    return tensor - np.float32(1) if description.sandwich and name.endswith("norm") else tensor


def _config(description: Description) -> PreTrainedConfig:
    shape: dict[str, Any] = {
        "vocab_size": description.vocab,
        "hidden_size": description.hidden,
        "intermediate_size": description.mlp,
        "num_hidden_layers": len(description.layers),
        "num_attention_heads": description.heads,
        "num_key_value_heads": description.kv_heads,
        "head_dim": description.head_dim,
        "rms_norm_eps": description.norm_eps,
        "max_position_embeddings": description.context,
        "tie_word_embeddings": description.tied,
    }
    first, *_, last = description.layers
    if description.architecture == "llama":
        return LlamaConfig(**shape, rope_parameters={"rope_type": "default", "rope_theta": first.rope.theta})
    assert description.architecture == "gemma3"
    return Gemma3TextConfig(
        **shape,
        sliding_window=first.window,
        layer_types=["full_attention" if layer.window is None else "sliding_attention" for layer in description.layers],
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": first.rope.theta},
            "full_attention": {"rope_type": "default", "rope_theta": last.rope.theta},
        },
        query_pre_attn_scalar=round(description.attention_scale**-2),
    )
