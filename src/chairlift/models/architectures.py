"""Which architectures are supported, and how GGUF metadata and Hugging Face's `config.json` describe them.

Turns settings into a `Description` and gives the names that tensors have in either kind of file. Reads no tensor and no file:
whatever is not supported is refused here, by name, before anything large is touched.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from chairlift.core.errors import ModelError
from chairlift.models.description import Description, Layer, Llama3Scaling, Rope
from chairlift.models.fields import Fields

MAX_LAYERS = 1024
MAX_HEAD_DIM = 4096
MAX_WIDTH = 1 << 24

GGUF_ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")
HF_MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text")

GEMMA_PATTERN = 6
"""Every sixth layer of Gemma 3 sees everything, the others see a window."""
GEMMA_LOCAL_THETA = 10_000.0
GEMMA_GLOBAL_THETA = 1_000_000.0
GEMMA_27B_LAYERS = 62
"""Gemma 3 27B scales attention by hidden / heads instead of the head size, and GGUF has no key that says so."""

Activation = Literal["silu", "gelu_tanh", "gelu"]
_ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}

_GGUF_TOP = {"embed": "token_embd.weight", "norm": "output_norm.weight", "head": "output.weight"}
_GGUF_LAYER = {
    "attn_norm": "attn_norm.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "o": "attn_output.weight",
    "q_bias": "attn_q.bias",
    "k_bias": "attn_k.bias",
    "v_bias": "attn_v.bias",
    "o_bias": "attn_output.bias",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
    "post_attn_norm": "post_attention_norm.weight",
    "mlp_norm": "ffn_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "gate_bias": "ffn_gate.bias",
    "up_bias": "ffn_up.bias",
    "down_bias": "ffn_down.bias",
    "post_mlp_norm": "post_ffw_norm.weight",
}
_HF_TOP = {"embed": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight"}
_HF_LAYER = {
    "attn_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "o_bias": "self_attn.o_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "gate_bias": "mlp.gate_proj.bias",
    "up_bias": "mlp.up_proj.bias",
    "down_bias": "mlp.down_proj.bias",
}
# Gemma's names differ in meaning: what others call `post_attention_layernorm` is its norm after attention, not before the MLP.
_HF_GEMMA_LAYER = _HF_LAYER | {
    "post_attn_norm": "post_attention_layernorm.weight",
    "mlp_norm": "pre_feedforward_layernorm.weight",
    "post_mlp_norm": "post_feedforward_layernorm.weight",
}


@dataclass(frozen=True, slots=True)
class GgufTensors:
    """What a description needs to know of a GGUF file's tensors: their shapes, and the factors in `rope_freqs.weight`."""

    shapes: Mapping[str, tuple[int, ...]]
    rope_factors: tuple[float, ...] | None = None


def gguf_names(description: Description) -> dict[str, str]:
    """The name in a GGUF file of every tensor of the layout."""
    return {ours: _file_name(ours, _GGUF_TOP, "blk", _GGUF_LAYER) for ours in description.layout()}


def hf_names(description: Description) -> dict[str, str]:
    """The name in a Hugging Face checkpoint of every tensor of the layout."""
    layer = _HF_GEMMA_LAYER if description.sandwich else _HF_LAYER
    return {ours: _file_name(ours, _HF_TOP, "model.layers", layer) for ours in description.layout()}


def _file_name(ours: str, top: Mapping[str, str], prefix: str, layer: Mapping[str, str]) -> str:
    if ours in top:
        return top[ours]
    _, index, name = ours.split(".")
    return f"{prefix}.{index}.{layer[name]}"


def check_gguf_architecture(metadata: Mapping[str, object]) -> str:
    """The architecture a GGUF file names, or ModelError if it is not supported. Needs nothing but the metadata."""
    fields = Fields(metadata, "GGUF metadata")
    architecture = fields.text("general.architecture")
    if architecture not in GGUF_ARCHITECTURES:
        raise _unsupported(architecture, GGUF_ARCHITECTURES)
    experts = fields.integer_or(f"{architecture}.expert_count", 0)
    if experts:
        raise ModelError(f"a mixture of experts ({architecture} with {experts} experts) is not supported")
    return architecture


def from_gguf(metadata: Mapping[str, object], tensors: GgufTensors) -> Description:
    """The description of a GGUF model. ModelError if the architecture, or a variant of it, is not supported."""
    architecture = check_gguf_architecture(metadata)
    fields = Fields(
        {key.removeprefix(f"{architecture}."): value for key, value in metadata.items() if key.startswith(f"{architecture}.")},
        f"GGUF metadata of {architecture}",
    )
    _refuse_softcaps(fields, "attn_logit_softcapping", "final_logit_softcapping")
    gemma = architecture == "gemma3"
    hidden, heads = fields.integer("embedding_length"), _heads(fields, "attention.head_count")
    head_dim = fields.integer_or("attention.key_length", hidden // heads)
    _same_width(fields, "attention.value_length", head_dim)
    _same_width(fields, "rope.dimension_count", head_dim)
    layers = _layer_count(fields, "block_count")
    biased = "blk.0.attn_q.bias" in tensors.shapes
    return _checked(
        Description(
            architecture=architecture,
            vocab=_gguf_vocab(tensors),
            hidden=hidden,
            heads=heads,
            kv_heads=fields.integer_or("attention.head_count_kv", heads),
            head_dim=head_dim,
            mlp=fields.integer("feed_forward_length"),
            context=fields.integer("context_length"),
            layers=_gguf_layers(fields, layers, gemma=gemma, factors=tensors.rope_factors),
            norm_eps=fields.positive("attention.layer_norm_rms_epsilon"),
            attention_scale=_gguf_attention_scale(hidden, heads, head_dim, gemma_27b=gemma and layers == GEMMA_27B_LAYERS),
            activation="gelu_tanh" if gemma else "silu",
            qkv_bias=biased or architecture == "qwen2",
            out_bias="blk.0.attn_output.bias" in tensors.shapes,
            mlp_bias="blk.0.ffn_gate.bias" in tensors.shapes,
            qk_norm=architecture in ("qwen3", "gemma3"),
            sandwich=gemma,
            embedding_scale=_embedding_scale(hidden) if gemma else 1.0,
            tied="output.weight" not in tensors.shapes,
        )
    )


def _gguf_vocab(tensors: GgufTensors) -> int:
    shape = tensors.shapes.get("token_embd.weight", ())
    if len(shape) != 2:
        raise ModelError("tensor 'token_embd.weight' is missing or no matrix")
    return shape[0]


def _gguf_attention_scale(hidden: int, heads: int, head_dim: int, *, gemma_27b: bool) -> float:
    width = hidden / heads if gemma_27b else head_dim
    return width**-0.5 if width else 0.0


def _gguf_layers(fields: Fields, count: int, *, gemma: bool, factors: tuple[float, ...] | None) -> tuple[Layer, ...]:
    kind = fields.text_or("rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise ModelError(f"rotary scaling of type {kind!r} is not supported")
    linear = fields.positive_or("rope.scaling.factor" if kind == "linear" else "rope.scale_linear", 1.0)
    theta = fields.positive_or("rope.freq_base", GEMMA_GLOBAL_THETA if gemma else 10_000.0)
    rope = Rope(theta, linear=linear, factors=factors)
    window = _window(fields, "attention.sliding_window", default=None)
    if not gemma:
        return (Layer(rope, window),) * count
    local = Layer(Rope(fields.positive_or("rope.freq_base_swa", GEMMA_LOCAL_THETA)), window)
    sliding = _gguf_pattern(fields, count)
    return tuple(local if slides and window else Layer(rope) for slides in sliding)


def _gguf_pattern(fields: Fields, count: int) -> list[bool]:
    key = "attention.sliding_window_pattern"
    given = fields.values.get(key)
    if isinstance(given, list):
        if len(given) != count:
            raise ModelError(f"{fields.where}: {key} has {len(given)} entries for {count} layers")
        return [bool(slides) for slides in given]
    return _pattern(fields.integer_or(key, GEMMA_PATTERN), count)


def check_config_architecture(config: Mapping[str, object]) -> str:
    """The model type that a `config.json` names, or ModelError if it is not supported."""
    fields = Fields(config, "config.json")
    model_type = fields.text("model_type")
    if model_type == "gemma3":
        raise ModelError("architecture 'gemma3' (Gemma 3 with images) is not supported: only its text models, gemma3_text, are")
    if model_type not in HF_MODEL_TYPES:
        raise _unsupported(model_type, HF_MODEL_TYPES)
    if fields.has("quantization_config"):
        method = fields.group("quantization_config").text_or("quant_method", "unnamed")
        raise ModelError(f"a checkpoint quantised by {method!r} is not supported: use F32, F16 or BF16, or a GGUF file")
    return model_type


def from_config(config: Mapping[str, object]) -> Description:
    """The description of a Hugging Face checkpoint from its `config.json`, of transformers 4 or 5.

    ModelError if the architecture, or a variant of it, is not supported.
    """
    model_type = check_config_architecture(config)
    fields = Fields(config, "config.json")
    _refuse_softcaps(fields, "attn_logit_softcapping", "final_logit_softcapping")
    if fields.flag_or("use_bidirectional_attention", False):
        raise ModelError("config.json: use_bidirectional_attention is not supported")
    gemma = model_type == "gemma3_text"
    hidden, heads = fields.integer("hidden_size"), _heads(fields, "num_attention_heads")
    head_dim = fields.integer_or("head_dim", {"gemma3_text": 256, "qwen3": 128}.get(model_type, hidden // heads))
    biased = model_type != "mistral" and bool(fields.flag_or("attention_bias", False))
    return _checked(
        Description(
            architecture=model_type,
            vocab=fields.integer("vocab_size"),
            hidden=hidden,
            heads=heads,
            kv_heads=fields.integer_or("num_key_value_heads", {"mistral": 8, "gemma3_text": 4}.get(model_type, heads)),
            head_dim=head_dim,
            mlp=fields.integer("intermediate_size"),
            context=fields.integer("max_position_embeddings"),
            layers=_config_layers(fields, model_type),
            norm_eps=fields.positive_or("rms_norm_eps", 1e-6),
            attention_scale=(fields.positive_or("query_pre_attn_scalar", 256.0) if gemma else max(head_dim, 1)) ** -0.5,
            activation=_activation(fields, gemma=gemma),
            qkv_bias=biased or model_type == "qwen2",
            out_bias=biased and model_type != "qwen2",
            mlp_bias=model_type == "llama" and bool(fields.flag_or("mlp_bias", False)),
            qk_norm=model_type in ("qwen3", "gemma3_text"),
            sandwich=gemma,
            embedding_scale=_embedding_scale(hidden) if gemma else 1.0,
            tied=bool(fields.flag_or("tie_word_embeddings", gemma)),
        )
    )


def _activation(fields: Fields, *, gemma: bool) -> Activation:
    key, default = ("hidden_activation", "gelu_pytorch_tanh") if gemma else ("hidden_act", "silu")
    name = fields.text_or(key, default)
    if name not in _ACTIVATIONS:
        raise ModelError(f"config.json: activation {name!r} is not supported: only {', '.join(_ACTIVATIONS)} are")
    return _ACTIVATIONS[name]


def _config_layers(fields: Fields, model_type: str) -> tuple[Layer, ...]:
    count = _layer_count(fields, "num_hidden_layers")
    if model_type == "mistral":
        # An absent key means transformers' default here; null means that there is no window.
        window = _window(fields, "sliding_window", default=None if "sliding_window" in fields.values else 4096)
        return (Layer(_config_rope(fields), window),) * count
    if model_type == "llama":
        return (Layer(_config_rope(fields)),) * count
    if model_type == "gemma3_text":
        wide, local = _gemma_ropes(fields)
        window = _window(fields, "sliding_window", default=4096)
        sliding = _sliding(fields, _pattern(fields.integer_or("sliding_window_pattern", GEMMA_PATTERN), count))
    else:
        wide = local = _config_rope(fields)
        on = fields.flag_or("use_sliding_window", False)
        window = _window(fields, "sliding_window", default=4096) if on else None
        first = fields.integer_or("max_window_layers", 28)
        sliding = _sliding(fields, [window is not None and index >= first for index in range(count)])
    return tuple(Layer(local, window) if slides else Layer(wide) for slides in sliding)


def _sliding(fields: Fields, default: list[bool]) -> list[bool]:
    """For each layer, whether it has a window: from `layer_types`, else the default."""
    if not fields.has("layer_types"):
        return default
    kinds = fields.texts("layer_types")
    unknown = set(kinds) - {"sliding_attention", "full_attention"}
    if unknown:
        raise ModelError(f"config.json: layers of type {min(unknown)!r} are not supported")
    if len(kinds) != len(default):
        raise ModelError(f"config.json: layer_types has {len(kinds)} entries for {len(default)} layers")
    return [kind == "sliding_attention" for kind in kinds]


def _gemma_ropes(fields: Fields) -> tuple[Rope, Rope]:
    """Gemma 3 turns its global layers and its local ones differently; only the global ones are ever scaled."""
    nested = fields.group("rope_parameters")
    wide, local = nested.group("full_attention"), nested.group("sliding_attention")
    global_theta = fields.positive_or("rope_theta", GEMMA_GLOBAL_THETA)
    local_theta = fields.positive_or("rope_local_base_freq", GEMMA_LOCAL_THETA)
    scaling = wide if wide.values else fields.group("rope_scaling")
    return _rope(scaling, theta=global_theta, context=0), _rope(local, theta=local_theta, context=0)


def _config_rope(fields: Fields) -> Rope:
    _refuse_partial_rotation(fields)
    newer = fields.group("rope_parameters")
    scaling = newer if newer.values else fields.group("rope_scaling")
    context = fields.integer("max_position_embeddings")
    return _rope(scaling, theta=fields.positive_or("rope_theta", 10_000.0), context=context)


def _rope(fields: Fields, *, theta: float, context: int) -> Rope:
    """One group of rotary settings, in either of transformers' shapes (`type` is the older name of `rope_type`)."""
    _refuse_partial_rotation(fields)
    theta = fields.positive_or("rope_theta", theta)
    kind = fields.text_or("rope_type", fields.text_or("type", "default"))
    if kind == "default":
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, linear=fields.positive("factor"))
    if kind != "llama3":
        raise ModelError(f"{fields.where}: rotary scaling of type {kind!r} is not supported: only linear and llama3 are")
    original = fields.integer_or("original_max_position_embeddings", context)
    low, high = fields.positive("low_freq_factor"), fields.positive("high_freq_factor")
    if high <= low or not original:
        raise ModelError(f"{fields.where}: high_freq_factor must be above low_freq_factor, and the original context above 0")
    return Rope(theta, llama3=Llama3Scaling(fields.positive("factor"), low, high, original))


def _refuse_partial_rotation(fields: Fields) -> None:
    if fields.number_or("partial_rotary_factor", 1.0) != 1.0:
        raise ModelError(f"{fields.where}: partial_rotary_factor other than 1 is not supported")


def _refuse_softcaps(fields: Fields, *keys: str) -> None:
    for key in keys:
        if fields.number_or(key, 0.0):
            raise ModelError(f"{fields.where}: {key} is not supported")


def _pattern(every: int, count: int) -> list[bool]:
    if every < 1:
        raise ModelError("a sliding window pattern must be at least 1")
    return [(index + 1) % every != 0 for index in range(count)]


def _window(fields: Fields, key: str, *, default: int | None) -> int | None:
    """A window in tokens; 0 in a GGUF file means that there is none."""
    return fields.integer_or(key, default) or None


def _heads(fields: Fields, key: str) -> int:
    heads = fields.integer(key)
    if not heads:
        raise ModelError(f"{fields.where}: {key} must be above 0")
    return heads


def _layer_count(fields: Fields, key: str) -> int:
    count = fields.integer(key)
    if not 1 <= count <= MAX_LAYERS:
        raise ModelError(f"{fields.where}: {key} must be between 1 and {MAX_LAYERS:,}, not {count:,}")
    return count


def _same_width(fields: Fields, key: str, head_dim: int) -> None:
    if fields.integer_or(key, head_dim) != head_dim:
        raise ModelError(f"{fields.where}: {key} other than the head size {head_dim} is not supported")


def _embedding_scale(hidden: int) -> float:
    """The square root as float32, which is what the reference implementation multiplies float32 embeddings with."""
    return float(np.float32(hidden**0.5))


def _checked(description: Description) -> Description:
    """The description itself, if its sizes are possible ones."""
    for name in ("vocab", "hidden", "heads", "kv_heads", "head_dim", "mlp", "context"):
        size = getattr(description, name)
        limit = MAX_HEAD_DIM if name == "head_dim" else MAX_WIDTH
        if not 1 <= size <= limit:
            raise ModelError(f"{description.architecture}: {name} must be between 1 and {limit:,}, not {size:,}")
    if description.heads % description.kv_heads:
        raise ModelError(f"{description.architecture}: {description.heads} heads do not share {description.kv_heads} KV heads")
    if description.head_dim % 2:
        raise ModelError(f"{description.architecture}: the head size {description.head_dim} is odd, so it cannot be rotated")
    factors = description.layers[0].rope.factors
    if factors is not None and len(factors) != description.head_dim // 2:
        raise ModelError(f"rope_freqs has {len(factors)} factors for a head size of {description.head_dim}")
    return description


def _unsupported(architecture: str, supported: tuple[str, ...]) -> ModelError:
    return ModelError(f"architecture {architecture!r:.80} is not supported: only {', '.join(supported)} are")
