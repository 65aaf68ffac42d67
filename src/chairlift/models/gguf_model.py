"""A model out of a GGUF file: description, weights by our names, tokenizer. Knows what the metadata keys mean.

GGUF files of the `llama` architecture have the rows of their query and key projections in interleaved rotary order; here they
are put back into the order of two halves. Norm weights of Gemma are stored with their 1 already added.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from chairlift.core.errors import ModelError
from chairlift.core.types import TokenizerKind, TokenizerSource
from chairlift.models.architectures import GgufTensors, from_gguf, gguf_names
from chairlift.models.description import Description, Model
from chairlift.models.fields import Fields
from chairlift.models.gguf import GgufFile, Header, open_gguf
from chairlift.models.layout import check_layout

ROPE_FACTORS = "rope_freqs.weight"
MAX_ROPE_FACTORS = 4096

END_TOKENS = frozenset({
    "<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<eos>", "</s>",
})  # fmt: skip
"""Texts that end an answer if they are control tokens: files often name only one of several."""

CONTROL = 3
NO_TOKEN = 0xFFFF_FFFF
"""What converters write for a token that does not exist."""

N = TypeVar("N", int, float)

_TOKENIZERS: Mapping[str, TokenizerKind] = {"gpt2": "bpe", "llama": "sentencepiece"}


@dataclass(frozen=True, slots=True)
class GgufWeights:
    """The tensors of a GGUF file by our names. `rotary_heads` says for interleaved tensors how many heads their rows make."""

    file: GgufFile
    names: Mapping[str, str]
    rotary_heads: Mapping[str, int]

    def float32(self, name: str) -> NDArray[np.float32]:
        values = self.file.float32(self.names[name])
        heads = self.rotary_heads.get(name.rpartition(".")[2])
        return values if heads is None else deinterleave(values, heads=heads)

    def kind(self, name: str) -> str:
        return self.file.header.tensors[self.names[name]].type.name

    def raw(self, name: str, first: int, end: int) -> NDArray[np.uint8]:
        return self.file.raw(self.names[name], first, end)

    def interleaved(self, name: str) -> bool:
        return name.rpartition(".")[2] in self.rotary_heads


def deinterleave(rows: NDArray[np.float32], *, heads: int) -> NDArray[np.float32]:
    """Rows (heads * head_dim, ...) from rotary pairs side by side to pairs in the two halves of each head."""
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def load_gguf(path: Path, *, name: str) -> Model:
    """A model out of a GGUF file. Tensors are not read yet; ModelError, in one line, if the file cannot be used."""
    file = open_gguf(path)
    try:
        return _model(file, name)
    except ModelError as error:
        file.close()
        raise ModelError(f"{path}: {error}") from None


def check_header(header: Header) -> TokenizerSource:
    """What the header says of the tokenizer. ModelError if the model that begins with it cannot be used."""
    return _described(header, None)[1]


def _model(file: GgufFile, name: str) -> Model:
    description, tokenizer = _described(file.header, _rope_factors(file))
    return Model(
        name=name,
        description=description,
        weights=GgufWeights(file, gguf_names(description), _rotary_heads(description)),
        tokenizer=tokenizer,
        defaults={},
        quantization=_quantization(file.header),
        close=file.close,
    )


def _described(header: Header, rope_factors: tuple[float, ...] | None) -> tuple[Description, TokenizerSource]:
    shapes = {tensor.name: tensor.shape for tensor in header.tensors.values()}
    description = from_gguf(header.metadata, GgufTensors(shapes, rope_factors))
    check_layout(description, gguf_names(description), shapes, ignored=(ROPE_FACTORS,))
    tokenizer = tokenizer_source(header.metadata)
    if len(tokenizer.tokens) > description.vocab:
        raise ModelError(f"{len(tokenizer.tokens):,} tokens, but embeddings for {description.vocab:,}")
    return description, tokenizer


def _rotary_heads(description: Description) -> Mapping[str, int]:
    if description.architecture != "llama":
        return {}
    heads, kv_heads = description.heads, description.kv_heads
    return {"q": heads, "q_bias": heads, "k": kv_heads, "k_bias": kv_heads}


def _rope_factors(file: GgufFile) -> tuple[float, ...] | None:
    tensor = file.header.tensors.get(ROPE_FACTORS)
    if tensor is None:
        return None
    if len(tensor.shape) != 1 or tensor.shape[0] > MAX_ROPE_FACTORS:
        raise ModelError(f"{ROPE_FACTORS} has the shape {tensor.shape}")
    factors = file.float32(ROPE_FACTORS)
    if not (np.isfinite(factors) & (factors > 0)).all():
        raise ModelError(f"{ROPE_FACTORS} must hold finite numbers above 0")
    return tuple(factors.tolist())


def _quantization(header: Header) -> str:
    """The type of most numbers in the layers; the embeddings are often kept in a finer one."""
    counts = Counter[str]()
    for tensor in header.tensors.values():
        if tensor.name.startswith("blk.") and len(tensor.shape) > 1:
            counts[tensor.type.name] += tensor.size // tensor.type.bytes * tensor.type.elements
    return counts.most_common(1)[0][0]


def tokenizer_source(metadata: Mapping[str, object]) -> TokenizerSource:
    """What the metadata says about the tokenizer. ModelError if its kind is not supported or its lists disagree."""
    fields = Fields({key.removeprefix("tokenizer."): value for key, value in metadata.items()}, "GGUF tokenizer")
    model = fields.text("ggml.model")
    kind = _TOKENIZERS.get(model)
    if kind is None:
        raise ModelError(f"tokenizer {model!r:.80} is not supported: only {', '.join(_TOKENIZERS)} are")
    tokens = fields.texts("ggml.tokens")
    types = _per_token(fields.integers("ggml.token_type"), tokens, "types") if fields.has("ggml.token_type") else ()
    scores: tuple[float, ...] = ()
    if kind == "sentencepiece":
        scores = _per_token(fields.numbers("ggml.scores"), tokens, "scores")
    return TokenizerSource(
        kind=kind,
        tokens=tokens,
        types=types,
        scores=scores,
        merges=fields.texts("ggml.merges") if kind == "bpe" else (),
        pre=fields.text_or("ggml.pre", ""),
        bos_id=_token_id(fields, "bos", tokens),
        unk_id=_token_id(fields, "unknown", tokens),
        pad_id=_token_id(fields, "padding", tokens),
        eos_ids=_eos_ids(fields, tokens, types),
        add_bos=fields.flag_or("ggml.add_bos_token", None),
        add_eos=fields.flag_or("ggml.add_eos_token", None),
        add_space_prefix=fields.flag_or("ggml.add_space_prefix", None),
        templates=_templates(fields),
    )


def _per_token(values: tuple[N, ...], tokens: tuple[str, ...], what: str) -> tuple[N, ...]:
    if len(values) != len(tokens):
        raise ModelError(f"GGUF tokenizer: {len(values):,} {what} for {len(tokens):,} tokens")
    return values


def _token_id(fields: Fields, name: str, tokens: tuple[str, ...]) -> int | None:
    key = f"ggml.{name}_token_id"
    token = fields.integer_or(key, NO_TOKEN)
    if token == NO_TOKEN:
        return None
    if token >= len(tokens):
        raise ModelError(f"GGUF tokenizer: {key} is {token:,}, but there are {len(tokens):,} tokens")
    return token


def _eos_ids(fields: Fields, tokens: tuple[str, ...], types: tuple[int, ...]) -> tuple[int, ...]:
    named = [_token_id(fields, name, tokens) for name in ("eos", "eot", "eom")]
    known = [index for index, kind in enumerate(types) if kind == CONTROL and tokens[index] in END_TOKENS]
    return tuple(dict.fromkeys([token for token in named if token is not None] + known))


def _templates(fields: Fields) -> Mapping[str, str]:
    prefix = "chat_template."
    named = {key.removeprefix(prefix): fields.text(key) for key in fields.values if key.startswith(prefix)}
    return named | ({"default": fields.text("chat_template")} if fields.has("chat_template") else {})
