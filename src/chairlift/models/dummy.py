"""Models of known sizes with made-up weights, for speed work and tests: `dummy:tiny` and its like. They talk nonsense.

The same preset has the same weights everywhere: each tensor is drawn from a generator seeded with its name, when asked for.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from chairlift.core.errors import ModelError
from chairlift.core.types import TokenizerSource
from chairlift.models.description import Description, Layer, Model, Rope

PREFIX = "dummy:"
DEVIATION = 0.02
"""Standard deviation of the weights, as models are commonly initialised."""

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CONTROL, _NORMAL = 3, 1


@dataclass(frozen=True, slots=True)
class Preset:
    """The sizes of a Llama-shaped model; the head is tied."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocab: int
    context: int
    theta: float = 10_000.0


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "tiny": Preset(2, 64, 4, 2, 16, 128, 512, 4096),
        "smollm2-135m": Preset(30, 576, 9, 3, 64, 1536, 49_152, 8192, 100_000.0),
        "llama-1b": Preset(16, 2048, 32, 8, 64, 8192, 128_256, 131_072, 500_000.0),
        "llama-3b": Preset(28, 3072, 24, 8, 128, 8192, 128_256, 131_072, 500_000.0),
        "llama-8b": Preset(32, 4096, 32, 8, 128, 14_336, 128_256, 131_072, 500_000.0),
    }
)


@dataclass(frozen=True, slots=True)
class DummyWeights:
    """Normally distributed matrices and norms of 1, of the shapes that a layout gives."""

    layout: Mapping[str, tuple[int, ...]]

    def float32(self, name: str) -> NDArray[np.float32]:
        shape = self.layout[name]
        if name.endswith("norm"):
            return np.ones(shape, dtype=np.float32)
        generator = np.random.default_rng(zlib.crc32(name.encode()))
        values = generator.standard_normal(shape, dtype=np.float32)
        return np.multiply(values, np.float32(DEVIATION), out=values)


def load_dummy(spec: str) -> Model:
    """The made-up model of a spec such as `dummy:tiny`. ModelError lists the presets if there is none of that name."""
    preset = PRESETS.get(spec.removeprefix(PREFIX))
    if preset is None:
        raise ModelError(f"{spec}: there is no such preset, only {', '.join(PREFIX + name for name in PRESETS)}")
    description = Description(
        architecture="llama",
        vocab=preset.vocab,
        hidden=preset.hidden,
        heads=preset.heads,
        kv_heads=preset.kv_heads,
        head_dim=preset.head_dim,
        mlp=preset.mlp,
        context=preset.context,
        layers=(Layer(Rope(preset.theta)),) * preset.layers,
        attention_scale=preset.head_dim**-0.5,
        tied=True,
    )
    return Model(
        name=spec,
        description=description,
        weights=DummyWeights(description.layout()),
        tokenizer=_tokenizer(preset.vocab),
        defaults={},
        quantization="F32",
        close=lambda: None,
    )


def _tokenizer(vocab: int) -> TokenizerSource:
    """The special tokens, one for each byte, and invented words for the rest, so that whatever is drawn says something."""
    first_word = len(SPECIALS) + 256
    words = [f"Ġw{index}" for index in range(first_word, vocab)]
    return TokenizerSource(
        kind="bpe",
        tokens=(*SPECIALS, *_byte_alphabet(), *words),
        types=(_CONTROL,) * len(SPECIALS) + (_NORMAL,) * (vocab - len(SPECIALS)),
        pre="gpt-2",
        bos_id=0,
        eos_ids=(0, 2),
        add_bos=False,
        add_eos=False,
        templates={"default": TEMPLATE},
    )


def _byte_alphabet() -> list[str]:
    """The character that byte-level BPE (GPT-2) writes for each byte: printable ones as they are, the others from 256 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]
