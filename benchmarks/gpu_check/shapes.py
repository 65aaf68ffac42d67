"""How large everything is that is measured: a model of Llama 3.1's 8B shape, or a tiny one for a dry run; how it is built.

Weights are random and made on the device: what they are changes no time, and no machine needs to hold them twice.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from chairlift.execute.torch.device import Device
from chairlift.execute.torch.executor import TorchExecutor
from chairlift.execute.torch.options import Choice, resolve
from chairlift.execute.torch.weights import LayerWeights, ModelWeights
from chairlift.models.description import Description, Layer, Rope

BLOCK_SIZE = 16
GRAPHS = "CUDA graphs"
DEVIATION = 0.02
"""Of the weights, as models are commonly initialised."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Lengths are in tokens. A run of decode are `steps` steps; every figure is the median of `runs` runs, if time allows."""

    description: Description
    copied_bytes: int
    matrix: int
    context: int
    batches: tuple[int, ...]
    prefills: tuple[tuple[int, int], ...]
    """Rows and the tokens of each."""
    most_tokens: int
    """Of a step."""
    crowds: tuple[int, ...]
    """Requests at once, for the whole engine; the last one beside transformers as well."""
    input_len: int
    output_len: int
    steps: int = 16
    runs: int = 5


def _llama(*, layers: int, hidden: int, heads: int, kv_heads: int, mlp: int, vocab: int) -> Description:
    head_dim = hidden // heads
    return Description(
        architecture="llama",
        vocab=vocab,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        mlp=mlp,
        context=131_072,
        layers=(Layer(Rope(500_000.0)),) * layers,
        attention_scale=head_dim**-0.5,
    )


LLAMA_8B = Sizes(
    _llama(layers=32, hidden=4096, heads=32, kv_heads=8, mlp=14_336, vocab=128_256),
    copied_bytes=4 << 30,
    matrix=8192,
    context=1024,
    batches=(1, 8, 32, 128, 256),
    prefills=((1, 2048), (8, 1024), (1, 8192)),
    most_tokens=8192,
    crowds=(32, 128),
    input_len=512,
    output_len=128,
)
TINY = Sizes(
    _llama(layers=2, hidden=64, heads=4, kv_heads=2, mlp=128, vocab=512),
    copied_bytes=1 << 20,
    matrix=128,
    context=48,
    batches=(1, 3),
    prefills=((1, 32), (2, 16)),
    most_tokens=64,
    crowds=(2, 4),
    input_len=12,
    output_len=6,
    steps=3,
    runs=3,
)


def served(description: Description, device: Device) -> Choice:
    """What a server does unless it is told otherwise."""
    return resolve(str(device.on), "auto", "auto", head_dim=description.head_dim)


def ways(description: Description, device: Device) -> dict[str, Choice]:
    """Ways of launching a step, by name: with every kernel for itself and, where the device can, as a whole.

    Another attention that is faster where nothing is captured is a way of its own.
    """
    chosen = served(description, device)
    eager = resolve(str(device.on), "auto", "auto", enforce_eager=True, head_dim=description.head_dim)
    found = {"eager": replace(chosen, eager="asked for eager")}
    if eager.attention.name != chosen.attention.name:
        found[f"eager, {eager.attention.name}"] = eager
    return found if chosen.eager else found | {GRAPHS: chosen}


def random_weights(description: Description, *, device: Device, dtype: torch.dtype) -> ModelWeights:
    """Norms of 1 and normally distributed matrices, as `chairlift.execute.torch.weights.read` would lay them out."""
    chance = torch.Generator(device.on).manual_seed(0)
    layout = description.layout()

    def matrix(*names: str) -> Tensor:
        shape = (sum(layout[name][0] for name in names), layout[names[0]][1])
        return torch.empty(shape, dtype=dtype, device=device.on).normal_(std=DEVIATION, generator=chance)

    def layer(prefix: str) -> LayerWeights:
        return LayerWeights(
            attn_norm=_ones(description, device),
            qkv=matrix(prefix + "q", prefix + "k", prefix + "v"),
            qkv_bias=None,
            q_norm=None,
            k_norm=None,
            o=matrix(prefix + "o"),
            o_bias=None,
            post_attn_norm=None,
            mlp_norm=_ones(description, device),
            gate_up=matrix(prefix + "gate", prefix + "up"),
            gate_up_bias=None,
            down=matrix(prefix + "down"),
            down_bias=None,
            post_mlp_norm=None,
        )

    layers = tuple(layer(f"layers.{index}.") for index in range(len(description.layers)))
    return ModelWeights(matrix("embed"), layers, _ones(description, device), matrix("head"))


def _ones(description: Description, device: Device) -> Tensor:
    return torch.ones(description.hidden, device=device.on)


def executor(
    sizes: Sizes, weights: ModelWeights, choice: Choice, *, rows: int, longest: int, num_blocks: int | None = None
) -> TorchExecutor:
    """Ready to serve, with blocks for `rows` rows of `longest` tokens, unless it is said how many there are."""
    built = TorchExecutor.build(
        sizes.description,
        weights,
        choice=choice,
        num_blocks=num_blocks or rows * -(-longest // BLOCK_SIZE),
        block_size=BLOCK_SIZE,
        max_tokens=max(sizes.most_tokens, rows),
        max_rows=rows,
        max_model_len=longest,
    )
    built.prepare(choice, on_compile=lambda: None)
    return built
