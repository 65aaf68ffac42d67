"""Chooses the instruction set: what the processor reports, or what the user asks for.

Knows names and sizes; the instructions themselves are in `kernels`. Results do not depend on the choice, to the last bit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from chairlift.core.errors import ConfigError

Isa = Literal["avx512-vnni", "avx2-vnni", "avx2", "portable"]


@dataclass(frozen=True, slots=True)
class Shape:
    """How wide weights are packed and how large register tiles are.

    `lanes` outputs make a vector and `vectors` of them a strip; a tile is at most `rows` tokens of a strip, `float_rows` where
    numbers are floats. `flip`: 8-bit weights are stored plus 128, as the instructions want them unsigned.
    """

    lanes: int
    vectors: int
    rows: int
    float_rows: int
    flip: bool = False

    @property
    def strip(self) -> int:
        return self.lanes * self.vectors


SHAPES: Mapping[Isa, Shape] = {
    "avx512-vnni": Shape(lanes=16, vectors=4, rows=4, float_rows=6, flip=True),
    "avx2-vnni": Shape(lanes=8, vectors=2, rows=4, float_rows=6, flip=True),
    "avx2": Shape(lanes=8, vectors=2, rows=4, float_rows=6),
    "portable": Shape(lanes=8, vectors=2, rows=4, float_rows=6),
}


@dataclass(frozen=True, slots=True)
class Chains:
    """Dot products that do not wait for each other, enough to keep the processor's units busy: each of `weights` vectors with
    each of `inputs` vectors, all in registers.
    """

    weights: int
    inputs: int


CHAINS: Mapping[Isa, Chains] = {
    "avx512-vnni": Chains(weights=4, inputs=3),
    "avx2-vnni": Chains(weights=2, inputs=5),
    "avx2": Chains(weights=2, inputs=2),
    "portable": Chains(weights=1, inputs=2),
}

_NEEDS: Mapping[Isa, tuple[str, ...]] = {
    "avx512-vnni": ("avx512f", "avx512bw", "avx512vl", "avx512vnni", "f16c", "fma"),
    "avx2-vnni": ("avx2", "avxvnni", "f16c", "fma"),
    "avx2": ("avx2", "f16c", "fma"),
    "portable": (),
}


def available(features: Mapping[str, bool]) -> tuple[Isa, ...]:
    """The instruction sets that a processor with these features (LLVM's names) can run, the fastest first."""
    return tuple(isa for isa, needs in _NEEDS.items() if all(features.get(need, False) for need in needs))


def choose(features: Mapping[str, bool], wanted: str | None = None) -> Isa:
    """The fastest one, or the one that is wanted. ConfigError if there is none of that name, or if the processor lacks it."""
    usable = available(features)
    if wanted is None:
        return usable[0]
    for isa in usable:
        if isa == wanted:
            return isa
    if wanted in _NEEDS:
        raise ConfigError(f"isa {wanted} needs a processor with it; this one has {', '.join(usable)}")
    raise ConfigError(f"isa {wanted!r:.40} is unknown: it may be {', '.join(_NEEDS)}")
