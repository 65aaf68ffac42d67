"""Hugging Face configurations of transformers 4 and 5: what they say, and what is refused by name."""

import pytest
from model_files import CONFIG

from chairlift.core.errors import ModelError
from chairlift.models.architectures import from_config, hf_names
from chairlift.models.description import Description, Llama3Scaling

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def described(**changes: object) -> Description:
    return from_config({**CONFIG, **changes})


def windows(description: Description) -> list[int | None]:
    return [layer.window for layer in description.layers]


def test_sizes_are_those_of_the_config() -> None:
    found = described()
    assert (found.hidden, found.heads, found.kv_heads, found.head_dim, found.mlp) == (32, 4, 2, 8, 64)
    assert (found.vocab, found.context, len(found.layers)) == (12, 128, 2)
    assert (found.tied, found.qkv_bias, found.out_bias, found.mlp_bias) == (False, False, False, False)


def test_head_size_is_hidden_by_heads_unless_given() -> None:
    assert described(head_dim=None).head_dim == 8
    assert described(head_dim=6).head_dim == 6


def test_without_kv_heads_there_are_as_many_as_heads() -> None:
    assert described(num_key_value_heads=None).kv_heads == 4


def test_biases_of_llama() -> None:
    found = described(attention_bias=True, mlp_bias=True)
    assert (found.qkv_bias, found.out_bias, found.mlp_bias) == (True, True, True)


def test_qwen2_has_biases_but_not_on_its_output() -> None:
    found = described(model_type="qwen2")
    assert (found.qkv_bias, found.out_bias) == (True, False)


def test_qwen3_normalises_queries_and_keys() -> None:
    found = described(model_type="qwen3", head_dim=None)
    assert (found.qk_norm, found.qkv_bias, found.head_dim) == (True, False, 128)


@pytest.mark.parametrize(("given", "expected"), [(None, None), (16, 16)])
def test_window_of_mistral(given: int | None, expected: int | None) -> None:
    assert windows(described(model_type="mistral", sliding_window=given)) == [expected] * 2


def test_window_of_mistral_that_says_nothing_is_that_of_transformers() -> None:
    assert windows(described(model_type="mistral")) == [4096] * 2


def test_qwen_has_windows_only_if_they_are_switched_on() -> None:
    assert windows(described(model_type="qwen2", sliding_window=16, max_window_layers=1)) == [None, None]
    on = described(model_type="qwen2", sliding_window=16, max_window_layers=1, use_sliding_window=True)
    assert windows(on) == [None, 16]


def test_layer_types_say_which_layers_have_a_window() -> None:
    kinds = ["sliding_attention", "full_attention"]
    assert windows(described(model_type="qwen3", sliding_window=16, use_sliding_window=True, layer_types=kinds)) == [16, None]


def test_gemma_of_transformers_4() -> None:
    found = described(model_type="gemma3_text", num_hidden_layers=6, sliding_window=16, query_pre_attn_scalar=64)
    assert windows(found) == [16] * 5 + [None]
    assert [layer.rope.theta for layer in found.layers] == [1e4] * 5 + [1e6]
    assert (found.attention_scale, found.activation, found.tied, found.sandwich) == (0.125, "gelu_tanh", True, True)


def test_gemma_of_transformers_5() -> None:
    parameters = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
    }
    kinds = ["full_attention", "sliding_attention"]
    found = described(model_type="gemma3_text", rope_parameters=parameters, layer_types=kinds, sliding_window=16)
    assert [(layer.rope.theta, layer.rope.linear, layer.window) for layer in found.layers] == [(5e5, 8.0, None), (2e4, 1.0, 16)]


def test_gemma_scaling_of_transformers_4_is_for_global_layers() -> None:
    found = described(model_type="gemma3_text", rope_scaling={"rope_type": "linear", "factor": 8.0}, sliding_window_pattern=2)
    assert [layer.rope.linear for layer in found.layers] == [1.0, 8.0]


@pytest.mark.parametrize(
    "rope", [{"rope_scaling": LLAMA3, "rope_theta": 5e5}, {"rope_parameters": {**LLAMA3, "rope_theta": 5e5}}], ids=["4", "5"]
)
def test_llama3_scaling_in_both_shapes(rope: dict[str, object]) -> None:
    found = described(**rope).layers[0].rope
    assert (found.theta, found.llama3) == (5e5, Llama3Scaling(8.0, 1.0, 4.0, 64))


def test_older_name_of_the_scaling_type() -> None:
    assert described(rope_scaling={"type": "linear", "factor": 4.0}).layers[0].rope.linear == 4.0


def test_gemma_names_its_norms_differently() -> None:
    assert hf_names(described())["layers.0.mlp_norm"] == "model.layers.0.post_attention_layernorm.weight"
    gemma = hf_names(described(model_type="gemma3_text"))
    assert gemma["layers.0.post_attn_norm"] == "model.layers.0.post_attention_layernorm.weight"
    assert gemma["layers.0.mlp_norm"] == "model.layers.0.pre_feedforward_layernorm.weight"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "mixtral"}, "architecture 'mixtral' is not supported"),
        ({"model_type": "gemma3"}, "Gemma 3 with images"),
        ({"model_type": None}, "model_type is missing"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised by 'awq'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'yarn' is not supported"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}, "'dynamic' is not supported"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor is missing"),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "above low_freq_factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"hidden_act": "relu"}, "activation 'relu' is not supported"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is not supported"),
        ({"num_key_value_heads": 3}, "do not share"),
        ({"head_dim": 7}, "odd"),
        ({"hidden_size": 1 << 30}, "hidden must be between"),
        ({"hidden_size": "wide"}, "must be a whole number"),
        ({"model_type": "qwen3", "layer_types": ["chunked_attention"] * 2}, "'chunked_attention' are not supported"),
        ({"model_type": "qwen3", "layer_types": ["full_attention"]}, "1 entries for 2 layers"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        described(**changes)
