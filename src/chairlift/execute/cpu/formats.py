"""The numeric forms in which weights are computed. Knows what a stored number means; knows neither layouts nor instructions.

A weight is `scale * (q - zero)`, or `scale * q + minimum`; scale and minimum belong to a group of inputs of one output. There
is one meaning for every type of file, whatever the batch and the instruction set:

    y[m, n] = sum over groups g, ascending: fma(minimum[n, g], sums[m, g], fma(dot * scale[n, g], steps[m, g], y))
    y[m, n] = y[m, n] + bias[n], then for each outlier o of the row, in its order: fma(w[n, k_o], rest_o, y)

where `dot` is the exact integer sum of (q - zero) * x over the group, x are the activations in units of `steps[m, g]`, and
`sums[m, g]` is the step times the integer sum of the group's activations. An outlier is an activation much larger than the
rest of its group, which would make the group's step coarse: it is cut down to the next smaller magnitude, and what was cut off
(`rest`) is multiplied in float32. A row has `OUTLIERS` of them, at most one in a group, where that does most good. (That a few
large activations spoil the rounding of all others is the observation of Dettmers and others, "LLM.int8()", 2022.)
"""

from dataclasses import dataclass
from typing import Literal

ACTIVATION_GROUP = 32
"""Activations are rounded to 8 bits in groups of this many, each with its own step (its largest magnitude / 127)."""

OUTLIERS = 3
"""In a row. docs/log.md has what more and fewer do: with three the error of logits is about half of that with none."""

Scale = Literal["f16", "f32"]


@dataclass(frozen=True, slots=True)
class Quantised:
    """Integers of `bits` (4: 0 to 15; 8: -128 to 127) with a scale for each `group` of 32 or 16 inputs."""

    bits: Literal[4, 8]
    scale: Scale
    minimum: bool = False
    zero: int = 0
    group: Literal[16, 32] = 32

    @property
    def name(self) -> str:
        form = "min" if self.minimum else f"zero{self.zero}"
        return f"q{self.bits}_{form}_{self.scale}_{self.group}"

    @property
    def scale_bytes(self) -> int:
        return 2 if self.scale == "f16" else 4

    @property
    def scales(self) -> int:
        """Scales of one output in one group of activations."""
        return ACTIVATION_GROUP // self.group

    def group_bytes(self, outputs: int) -> int:
        """Bytes that one group of activations meets, for so many outputs."""
        planes = self.scales * (2 if self.minimum else 1)
        return outputs * (ACTIVATION_GROUP * self.bits // 8 + planes * self.scale_bytes)


@dataclass(frozen=True, slots=True)
class Floats:
    """Weights as floating-point numbers, computed in float32 in ascending order of the inputs."""

    kind: Literal["f32", "f16", "bf16"]

    @property
    def name(self) -> str:
        return self.kind

    @property
    def bytes(self) -> int:
        return 4 if self.kind == "f32" else 2


Format = Quantised | Floats

Q4_MIN_F16 = Quantised(4, "f16", minimum=True)
Q4_ZERO_F16 = Quantised(4, "f16", zero=8)
Q4_MIN_F32 = Quantised(4, "f32", minimum=True)
Q8_F16 = Quantised(8, "f16")
Q8_F32 = Quantised(8, "f32")
Q8_MIN_F16 = Quantised(8, "f16", minimum=True)
Q8_MIN_F32 = Quantised(8, "f32", minimum=True)
Q8_F32_16 = Quantised(8, "f32", group=16)
F32, F16, BF16 = Floats("f32"), Floats("f16"), Floats("bf16")

FORMATS: tuple[Format, ...] = (
    Q4_MIN_F16,
    Q4_ZERO_F16,
    Q4_MIN_F32,
    Q8_F16,
    Q8_F32,
    Q8_MIN_F16,
    Q8_MIN_F32,
    Q8_F32_16,
    F32,
    F16,
    BF16,
)
"""All formats that have kernels."""
