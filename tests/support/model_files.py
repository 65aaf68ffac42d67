"""Writes tiny model files: GGUF through the `gguf` package's writer, and Hugging Face folders. All tensors are random."""

import json
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

SIZES = {"hidden": 32, "heads": 4, "kv_heads": 2, "head_dim": 8, "mlp": 64, "vocab": 12, "layers": 2, "context": 128}
TOKENS = ["<unk>", "<s>", "</s>", "<|im_end|>", "a", "b", "c", "ab", "abc", "Ġa", "Ġb", "d"]
TYPES = [2, 3, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1]

CONFIG: Mapping[str, object] = {
    "model_type": "llama",
    "vocab_size": 12,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 2,
    "bos_token_id": 1,
}


def random_tensor(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Deterministic, and different for every name."""
    return np.random.default_rng(list(name.encode())).standard_normal(shape, dtype=np.float32)


def gguf_tensors(architecture: str = "llama", *, tied: bool = True) -> dict[str, NDArray[np.float32]]:
    """The tensors of a tiny model under their GGUF names."""
    hidden, mlp, q, kv = (
        SIZES["hidden"],
        SIZES["mlp"],
        SIZES["heads"] * SIZES["head_dim"],
        SIZES["kv_heads"] * SIZES["head_dim"],
    )
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (SIZES["vocab"], hidden), "output_norm.weight": (hidden,)}
    if not tied:
        shapes["output.weight"] = (SIZES["vocab"], hidden)
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (hidden,),
        "attn_q.weight": (q, hidden),
        "attn_k.weight": (kv, hidden),
        "attn_v.weight": (kv, hidden),
        "attn_output.weight": (hidden, q),
        "ffn_norm.weight": (hidden,),
        "ffn_gate.weight": (mlp, hidden),
        "ffn_up.weight": (mlp, hidden),
        "ffn_down.weight": (hidden, mlp),
    }
    if architecture == "qwen2":
        layer |= {"attn_q.bias": (q,), "attn_k.bias": (kv,), "attn_v.bias": (kv,)}
    if architecture in ("qwen3", "gemma3"):
        layer |= {"attn_q_norm.weight": (SIZES["head_dim"],), "attn_k_norm.weight": (SIZES["head_dim"],)}
    if architecture == "gemma3":
        layer |= {"post_attention_norm.weight": (hidden,), "post_ffw_norm.weight": (hidden,)}
    for index in range(SIZES["layers"]):
        shapes |= {f"blk.{index}.{name}": shape for name, shape in layer.items()}
    return {name: random_tensor(name, shape) for name, shape in shapes.items()}


def gguf_metadata(architecture: str = "llama") -> dict[str, object]:
    """The settings and the tokenizer of a tiny model."""
    settings: dict[str, object] = {
        "block_count": SIZES["layers"],
        "context_length": SIZES["context"],
        "embedding_length": SIZES["hidden"],
        "feed_forward_length": SIZES["mlp"],
        "attention.head_count": SIZES["heads"],
        "attention.head_count_kv": SIZES["kv_heads"],
        "attention.key_length": SIZES["head_dim"],
        "attention.value_length": SIZES["head_dim"],
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10_000.0,
    }
    return {f"{architecture}.{key}": value for key, value in settings.items()} | {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": TYPES,
        "tokenizer.ggml.merges": ["a b", "ab c"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def write_gguf(
    path: Path,
    tensors: Mapping[str, NDArray[np.float32]],
    metadata: Mapping[str, object],
    *,
    architecture: str = "llama",
    stored: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
) -> Path:
    """A GGUF file. Matrices are stored as `stored`, vectors as float32."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        _add(writer, key, value)
    for name, values in tensors.items():
        kind = stored if values.ndim > 1 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        assert isinstance(value, list)
        writer.add_array(key, value)


def tiny_gguf(
    path: Path, architecture: str = "llama", changes: Mapping[str, object] | None = None, *, tied: bool = True
) -> Path:
    """A whole tiny model. `changes` are further metadata, or replaced ones; None removes a key."""
    metadata = gguf_metadata(architecture) | dict(changes or {})
    kept = {key: value for key, value in metadata.items() if value is not None}
    return write_gguf(path, gguf_tensors(architecture, tied=tied), kept, architecture=architecture)


def hf_tensors(config: Mapping[str, object]) -> dict[str, NDArray[np.float32]]:
    """The tensors of the tiny checkpoint that a config describes, under Hugging Face's names."""
    from chairlift.models.architectures import from_config, hf_names

    description = from_config(config)
    names = hf_names(description)
    return {names[ours]: random_tensor(names[ours], shape) for ours, shape in description.layout().items()}


def safetensors_bytes(tensors: Mapping[str, NDArray[np.generic]], dtype: str = "F32") -> bytes:
    """A safetensors file. The format: length of the header in 8 bytes, header as JSON, data."""
    header: dict[str, object] = {}
    parts: list[bytes] = []
    offset = 0
    for name, values in tensors.items():
        data = _as_bytes(values, dtype)
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
        parts.append(data)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(parts)


def _as_bytes(values: NDArray[np.generic], dtype: str) -> bytes:
    if dtype == "BF16":
        return (np.ascontiguousarray(values).view(np.uint32) >> 16).astype("<u2").tobytes()
    return values.astype({"F32": "<f4", "F16": "<f2", "F64": "<f8"}[dtype]).tobytes()


def tokenizer_json() -> str:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": index, "content": text, "special": True, **plain} for index, text in enumerate(TOKENS[:4])]
    vocab = {text: index for index, text in enumerate(TOKENS)}
    return json.dumps({"added_tokens": added, "model": {"type": "BPE", "vocab": vocab, "merges": []}})


def hf_folder(folder: Path, *, dtype: str = "F32", files: Mapping[str, object] | None = None, **changes: object) -> Path:
    """A whole tiny checkpoint. `files` are further files (or replaced ones), as text or as JSON."""
    config = {**CONFIG, **changes}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(tokenizer_json())
    (folder / "model.safetensors").write_bytes(safetensors_bytes(hf_tensors(config), dtype))
    for name, content in (files or {}).items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder
