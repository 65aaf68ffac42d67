"""Models as data: one decoder covers all supported architectures by the switches described here.

Knows shapes and switches; knows neither files nor arithmetic. Tensors have one set of names and one layout, whatever file
they came from (`layout` lists them with their shapes); matrices are (outputs, inputs) row-major as in `y = W x`, rotary pairs
are the two halves of a head ("NeoX" order), and norm weights are what the normalised vector is multiplied with (a model that
stores `weight - 1` has had the 1 added by its loader).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from chairlift.core.types import TokenizerSource


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Rotary frequency scaling of Llama 3.1: long wavelengths slowed by `factor`, a smooth blend in between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding: base `theta`; positions divided by `linear` factor; `llama3` scaling of the frequencies.

    `factors`, if there are any, has one number for each of the head_dim / 2 frequencies, which the frequency is divided by (a
    GGUF file of Llama 3.1 carries its scaling in this form, as the tensor `rope_freqs`).
    """

    theta: float
    linear: float = 1.0
    llama3: Llama3Scaling | None = None
    factors: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Layer:
    """What may differ from layer to layer: the rotary variant, and how many positions (itself included) attention sees."""

    rope: Rope
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Description:
    """The shape of a decoder. Sizes are in elements; `window` and `context` in tokens."""

    architecture: str
    vocab: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    context: int
    layers: tuple[Layer, ...]
    norm_eps: float = 1e-5
    attention_scale: float = 0.0
    """What query-key products are multiplied with, usually head_dim ** -0.5. The loader always sets it."""
    activation: Literal["silu", "gelu_tanh", "gelu"] = "silu"
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """Queries and keys are normalised (RMS, per head) before the rotation."""
    sandwich: bool = False
    """Attention and MLP outputs are normalised as well, before they are added to the residual (Gemma)."""
    embedding_scale: float = 1.0
    tied: bool = False
    """The head is the embedding matrix: there is no tensor `head`."""

    def layout(self) -> dict[str, tuple[int, ...]]:
        """Every tensor that the model must have, by name, with its shape."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {"embed": (self.vocab, self.hidden), "norm": (self.hidden,)}
        if not self.tied:
            shapes["head"] = (self.vocab, self.hidden)
        layer: dict[str, tuple[int, ...]] = {
            "attn_norm": (self.hidden,),
            "q": (q, self.hidden),
            "k": (kv, self.hidden),
            "v": (kv, self.hidden),
            "o": (self.hidden, q),
            "mlp_norm": (self.hidden,),
            "gate": (self.mlp, self.hidden),
            "up": (self.mlp, self.hidden),
            "down": (self.hidden, self.mlp),
        }
        if self.qkv_bias:
            layer |= {"q_bias": (q,), "k_bias": (kv,), "v_bias": (kv,)}
        if self.out_bias:
            layer |= {"o_bias": (self.hidden,)}
        if self.mlp_bias:
            layer |= {"gate_bias": (self.mlp,), "up_bias": (self.mlp,), "down_bias": (self.hidden,)}
        if self.qk_norm:
            layer |= {"q_norm": (self.head_dim,), "k_norm": (self.head_dim,)}
        if self.sandwich:
            layer |= {"post_attn_norm": (self.hidden,), "post_mlp_norm": (self.hidden,)}
        for index in range(len(self.layers)):
            shapes |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
        return shapes


class Weights(Protocol):
    """The tensors of a model by the names of `Description.layout`. Nothing is read before it is asked for."""

    def float32(self, name: str) -> NDArray[np.float32]:
        """The tensor as float32, C-contiguous, of the shape that the layout gives; dequantised if the file is quantised."""
        ...


@runtime_checkable
class StoredWeights(Weights, Protocol):
    """Weights whose matrices can also be had as a file holds them, some rows at a time."""

    def kind(self, name: str) -> str:
        """How numbers are stored, by ggml's name: "F32", "BF16", "Q4_1"."""
        ...

    def raw(self, name: str, first: int, end: int) -> NDArray[np.uint8]:
        """The stored bytes of these outputs of a matrix, copied: (outputs, bytes of one)."""
        ...

    def interleaved(self, name: str) -> bool:
        """Whether the outputs of each head are stored with rotary pairs side by side, not in two halves."""
        ...


@dataclass(frozen=True)
class Model:
    """A model ready to be run: shape, weights, and what its files say about text and sampling.

    `defaults` are the sampling settings that the model's files recommend (`temperature`, `top_k`, `top_p`, `min_p`).
    `quantization` names the predominant tensor type, as in "Q4_1" or "BF16". Call `close` to let go of mapped files.
    """

    name: str
    description: Description
    weights: Weights
    tokenizer: TokenizerSource
    defaults: Mapping[str, float]
    quantization: str
    close: Callable[[], None]
    reference: str = ""
    """What another process of this machine opens it by (`registry.reopen`); empty if it was made by hand."""
