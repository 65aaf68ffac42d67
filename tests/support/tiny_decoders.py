"""Random decoders of a few thousand numbers, and what they should compute, written as plainly as possible.

`naive_logits` knows no batch, no cache and no blocks: token by token, head by head, in float64.
"""

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from masks import mask_of
from numpy.typing import NDArray

from chairlift.core.types import Draw, Sampling, Work
from chairlift.models.description import Description, Layer, Llama3Scaling, Rope

BLOCK_SIZE = 4

PLAIN = Description(
    architecture="tiny",
    vocab=61,
    hidden=24,
    heads=4,
    kv_heads=2,
    head_dim=6,
    mlp=40,
    context=256,
    layers=(Layer(Rope(10_000.0)), Layer(Rope(10_000.0))),
    attention_scale=6**-0.5,
)
SLOW, FAST = Rope(500_000.0), Rope(100.0)
LLAMA3 = Rope(100.0, llama3=Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=64))

VARIANTS: dict[str, Description] = {
    "plain": PLAIN,
    "tied": replace(PLAIN, tied=True),
    "one key head": replace(PLAIN, kv_heads=1),
    "as many key heads": replace(PLAIN, kv_heads=4),
    "three queries a key": replace(PLAIN, heads=6, head_dim=10),
    "heads wider than hidden": replace(PLAIN, heads=6, head_dim=16),
    "input biases": replace(PLAIN, qkv_bias=True),
    "all biases": replace(PLAIN, qkv_bias=True, out_bias=True, mlp_bias=True),
    "query and key norms": replace(PLAIN, qk_norm=True),
    "sandwich norms": replace(PLAIN, sandwich=True),
    "scaled embedding": replace(PLAIN, embedding_scale=24**0.5),
    "another attention scale": replace(PLAIN, attention_scale=0.11),
    "tanh gelu": replace(PLAIN, activation="gelu_tanh"),
    "exact gelu": replace(PLAIN, activation="gelu"),
    "another epsilon": replace(PLAIN, norm_eps=0.01),
    "linear rope": replace(PLAIN, layers=(Layer(Rope(10_000.0, linear=4.0)),) * 2),
    "llama 3 rope": replace(PLAIN, layers=(Layer(LLAMA3),) * 2),
    "rope with factors": replace(PLAIN, layers=(Layer(Rope(100.0, factors=(1.0, 2.0, 16.0))),) * 2),
    "window of one": replace(PLAIN, layers=(Layer(SLOW, window=1), Layer(FAST))),
    "window": replace(PLAIN, layers=(Layer(SLOW, window=3), Layer(FAST), Layer(SLOW, window=5))),
    "everything": replace(
        PLAIN,
        heads=6,
        kv_heads=3,
        head_dim=8,
        layers=(Layer(FAST, window=4), Layer(LLAMA3), Layer(Rope(1_000.0, linear=2.0), window=7)),
        attention_scale=0.3,
        activation="gelu_tanh",
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        qk_norm=True,
        sandwich=True,
        embedding_scale=5.0,
        tied=True,
    ),
}


@dataclass(frozen=True)
class ArrayWeights:
    """Weights held in memory."""

    tensors: Mapping[str, NDArray[np.float32]]

    def float32(self, name: str) -> NDArray[np.float32]:
        return self.tensors[name]


def random_weights(description: Description, *, seed: int = 1) -> ArrayWeights:
    """Matrices that keep the size of what they multiply, norms around 1: logits come out a few units wide."""
    generator = np.random.default_rng(seed)
    tensors: dict[str, NDArray[np.float32]] = {}
    for name, shape in description.layout().items():
        tensor = generator.standard_normal(shape)
        if name.endswith("norm"):
            tensor = 1 + 0.3 * tensor
        elif len(shape) == 2 and name not in ("embed", "head"):
            tensor = 2 * tensor / math.sqrt(shape[1])
        tensors[name] = tensor.astype(np.float32)
    return ArrayWeights(tensors)


def random_tokens(count: int, *, vocab: int = PLAIN.vocab, seed: int = 2) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocab, count).tolist()


def row(
    tokens: Sequence[int], blocks: Sequence[int] = (), *, seq_id: str = "a", start: int = 0, draws: int = 1, pad: bool = False
) -> Work:
    """A row that draws greedily."""
    wanted = tuple(Draw(choice, Sampling(temperature=0)) for choice in range(draws))
    return Work(seq_id, start, array("i", tokens), array("i", blocks), wanted, pad)


def masked(work: Work, allowed: Iterable[int], *, vocab: int = PLAIN.vocab) -> Work:
    """The row, which may draw but these tokens."""
    return work._replace(draws=tuple(draw._replace(mask=mask_of(allowed, vocab)) for draw in work.draws))


def asking(work: Work, **sampling: Any) -> Work:
    """The row, with other settings of its draws."""
    draws = [draw._replace(sampling=replace(draw.sampling, **sampling)) for draw in work.draws]
    return work._replace(draws=tuple(draws))


def naive_logits(description: Description, weights: ArrayWeights, tokens: Sequence[int]) -> NDArray[np.float64]:
    """Logits [tokens, vocab] of every position."""
    w = {name: tensor.astype(np.float64) for name, tensor in weights.tensors.items()}
    stream = [w["embed"][token] * description.embedding_scale for token in tokens]
    for index, layer in enumerate(description.layers):
        of_layer = {name.split(".")[2]: tensor for name, tensor in w.items() if name.startswith(f"layers.{index}.")}
        stream = [x + added for x, added in zip(stream, _naive_attention(description, layer, of_layer, stream), strict=True)]
        stream = [x + _naive_mlp(description, of_layer, x) for x in stream]
    head = w["embed"] if description.tied else w["head"]
    return np.array([head @ _naive_norm(description, x, w["norm"]) for x in stream])


def _naive_norm(description: Description, x: NDArray[np.float64], weight: NDArray[np.float64]) -> NDArray[np.float64]:
    return x / math.sqrt(sum(value * value for value in x) / len(x) + description.norm_eps) * weight


def _naive_attention(
    description: Description, layer: Layer, w: Mapping[str, NDArray[np.float64]], stream: Sequence[NDArray[np.float64]]
) -> list[NDArray[np.float64]]:
    heads: dict[str, list[list[NDArray[np.float64]]]] = {"q": [], "k": [], "v": []}
    for position, x in enumerate(stream):
        normed = _naive_norm(description, x, w["attn_norm"])
        for name, by_position in heads.items():
            flat = w[name] @ normed + w.get(f"{name}_bias", 0)
            vectors = [flat[begin : begin + description.head_dim] for begin in range(0, len(flat), description.head_dim)]
            if name != "v" and description.qk_norm:
                vectors = [_naive_norm(description, vector, w[f"{name}_norm"]) for vector in vectors]
            if name != "v":
                vectors = [_naive_rotation(layer.rope, vector, position) for vector in vectors]
            by_position.append(vectors)
    outputs: list[NDArray[np.float64]] = []
    for here in range(len(stream)):
        mixed = [_naive_head(description, layer, heads, here, head) for head in range(description.heads)]
        out = w["o"] @ np.concatenate(mixed) + w.get("o_bias", 0)
        outputs.append(_naive_norm(description, out, w["post_attn_norm"]) if description.sandwich else out)
    return outputs


def _naive_head(
    description: Description, layer: Layer, heads: Mapping[str, list[list[NDArray[np.float64]]]], here: int, head: int
) -> NDArray[np.float64]:
    shared = head // (description.heads // description.kv_heads)
    seen = [there for there in range(here + 1) if layer.window is None or here - there < layer.window]
    scores = [heads["q"][here][head] @ heads["k"][there][shared] * description.attention_scale for there in seen]
    shares = [math.exp(score - max(scores)) for score in scores]
    return np.sum([heads["v"][there][shared] * share / sum(shares) for there, share in zip(seen, shares, strict=True)], axis=0)


def _naive_rotation(rope: Rope, vector: NDArray[np.float64], position: int) -> NDArray[np.float64]:
    half = len(vector) // 2
    turned = vector.copy()
    for i in range(half):
        factor = rope.factors[i] if rope.factors else 1.0
        angle = position * _naive_frequency(rope, rope.theta ** (-i / half)) / rope.linear / factor
        pair = complex(vector[i], vector[i + half]) * complex(math.cos(angle), math.sin(angle))
        turned[i], turned[i + half] = pair.real, pair.imag
    return turned


def _naive_frequency(rope: Rope, plain: float) -> float:
    scaling = rope.llama3
    if scaling is None:
        return plain
    wavelength = 2 * math.pi / plain
    if wavelength < scaling.original_context / scaling.high_freq_factor:
        return plain
    if wavelength > scaling.original_context / scaling.low_freq_factor:
        return plain / scaling.factor
    smooth = (scaling.original_context / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    return (1 - smooth) * plain / scaling.factor + smooth * plain


def _naive_mlp(description: Description, w: Mapping[str, NDArray[np.float64]], x: NDArray[np.float64]) -> NDArray[np.float64]:
    normed = _naive_norm(description, x, w["mlp_norm"])
    gate = w["gate"] @ normed + w.get("gate_bias", 0)
    up = w["up"] @ normed + w.get("up_bias", 0)
    activated = np.array([_naive_activation(description.activation, value) for value in gate])
    out = w["down"] @ (activated * up) + w.get("down_bias", 0)
    return _naive_norm(description, out, w["post_mlp_norm"]) if description.sandwich else out


def _naive_activation(kind: str, x: float) -> float:
    if kind == "silu":
        return x / (1 + math.exp(-x))
    if kind == "gelu":
        return x * 0.5 * (1 + math.erf(x / math.sqrt(2)))
    return x * 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
