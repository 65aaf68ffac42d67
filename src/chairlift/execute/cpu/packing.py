"""Weights on their way from a file to the kernels: decoded, rounded if another form is wanted, laid out in strips.

Knows ggml's block formats (read off its `ggml-quants` and the GGUF specification) and the layout that `kernels.dots` and
`kernels.gemm` read. A matrix is (outputs, inputs); inputs are padded to groups of 32, outputs to `ROW_PAD`, both with zeros.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chairlift.execute.cpu.formats import (
    ACTIVATION_GROUP,
    BF16,
    F16,
    F32,
    Q4_MIN_F16,
    Q4_MIN_F32,
    Q4_ZERO_F16,
    Q8_F16,
    Q8_F32,
    Q8_F32_16,
    Q8_MIN_F16,
    Q8_MIN_F32,
    Floats,
    Format,
    Quantised,
)
from chairlift.execute.cpu.isa import Shape
from chairlift.execute.cpu.memory import aligned

Array = NDArray[Any]
ROW_PAD = 64
"""Outputs are padded to a multiple of this, which all strips divide, so that matrices can stand side by side."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix in a numeric form of `formats`. `numbers` [outputs, inputs] are the integers (4-bit ones in a byte each) or,
    for floats, the stored numbers (bf16 as 16-bit integers); `scales` and `minima` are [outputs, groups].
    """

    format: Format
    numbers: Array
    scales: Array | None = None
    minima: Array | None = None

    @property
    def outputs(self) -> int:
        return self.numbers.shape[0]

    @property
    def inputs(self) -> int:
        return self.numbers.shape[1]

    def map(self, change: Callable[[Array], Array]) -> "Matrix":
        """The same change of the outputs made to all parts."""
        scales, minima = (None if part is None else change(part) for part in (self.scales, self.minima))
        return Matrix(self.format, change(self.numbers), scales, minima)

    def deinterleaved(self, heads: int) -> "Matrix":
        """Rows of rotary pairs side by side, put into the two halves of each head."""
        order = np.arange(self.outputs).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
        return self.map(lambda part: part[order])

    def with_outputs(self, count: int) -> "Matrix":
        """Padded with outputs of zeros."""
        extra = count - self.outputs
        return self if extra == 0 else self.map(lambda part: np.pad(part, ((0, extra), (0, 0))))

    def with_wider_heads(self, head: int, padded: int) -> "Matrix":
        """The outputs of each head padded with zeros."""
        room = ((0, 0), (0, padded - head), (0, 0))
        return self.map(lambda part: np.pad(part.reshape(-1, head, part.shape[1]), room).reshape(-1, part.shape[1]))

    def with_wider_heads_of_inputs(self, heads: int, head: int, padded: int) -> "Matrix":
        """The inputs of each head padded with zeros. Only for floats, as groups would no longer be in line."""
        assert isinstance(self.format, Floats)
        narrow = self.numbers[:, : heads * head].reshape(self.outputs, heads, head)
        wide = np.pad(narrow, ((0, 0), (0, 0), (0, padded - head)))
        return Matrix(self.format, _pad_inputs(wide.reshape(self.outputs, -1)))


def round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


# ── from one form to another ──────────────────────────────────────────────────────────────────────────────────────────────

WIDENED: Mapping[Format, Quantised] = MappingProxyType(
    {Q4_ZERO_F16: Q8_F16, Q4_MIN_F16: Q8_MIN_F16, Q4_MIN_F32: Q8_MIN_F32},
)
"""The forms of 8 bits that mean the same as forms of 4 bits."""

LEVELS = (13.5, 14.25, 15.0, 15.75)
"""Steps that the range of a group is cut into before 4-bit integers are fitted to it: the best of these is taken."""
MOST_4_BIT = 15


def converted(matrix: Matrix, form: Format) -> Matrix:
    """The matrix in another form: rounded, unless `form` can hold all that it means."""
    if matrix.format == form:
        return matrix
    if WIDENED.get(matrix.format) == form:
        zero = matrix.format.zero if isinstance(matrix.format, Quantised) else 0
        return Matrix(form, matrix.numbers.view(np.int8) - np.int8(zero), matrix.scales, matrix.minima)
    return _FROM_FLOATS[form](floats(matrix))


def floats(matrix: Matrix) -> NDArray[np.float32]:
    """The weights [outputs, inputs] that a matrix stands for."""
    if matrix.format == BF16:
        return (matrix.numbers.astype(np.uint32) << 16).view(np.float32)
    if isinstance(matrix.format, Floats):
        return matrix.numbers.astype(np.float32, copy=False)
    assert matrix.scales is not None
    groups = matrix.numbers.reshape(matrix.outputs, -1, matrix.format.group).astype(np.float32)
    with np.errstate(all="ignore"):  # a broken file may hold scales that are not numbers: they are passed on as they are
        values = (groups - np.float32(matrix.format.zero)) * matrix.scales.astype(np.float32)[:, :, None]
        if matrix.minima is not None:
            values += matrix.minima.astype(np.float32)[:, :, None]
    return values.reshape(matrix.outputs, -1)


def from_floats(values: NDArray[np.float32]) -> Matrix:
    return Matrix(F32, _pad_inputs(values))


def rounded_to_8_bits(values: NDArray[np.float32]) -> Matrix:
    """Each group of 32 by its largest magnitude / 127, to nearest even. A group with broken numbers keeps a broken step."""
    values = _pad_inputs(values)
    groups = values.reshape(len(values), -1, ACTIVATION_GROUP)
    steps = np.abs(groups).max(axis=2) / np.float32(127)
    usable = np.isfinite(steps) & (steps > 0)
    scaled = np.where(usable[:, :, None], groups, 0) / np.where(usable, steps, 1)[:, :, None]
    integers = np.rint(scaled).astype(np.int8)
    return Matrix(Q8_F32, integers.reshape(values.shape), steps.astype(np.float32))


def rounded_to_4_bits(values: NDArray[np.float32]) -> Matrix:
    """Each group of 32 as `scale * q + minimum`, with little squared error: the search of ggml's K types, made shorter.

    The range is cut into a few more or fewer steps than there are integers; for each the line through the integers that gives
    the least squares is taken, with scale and minimum as float16; the best line wins. A group with broken numbers keeps a
    broken scale.
    """
    values = _pad_inputs(values)
    groups = values.reshape(len(values), -1, ACTIVATION_GROUP)
    broken: Array = ~np.isfinite(groups).all(axis=2)
    groups = np.where(broken[:, :, None], np.float32(0), groups)
    low, spread = groups.min(axis=2), np.ptp(groups, axis=2)
    best = _Fit.nearest(groups, *_line(groups, np.zeros_like(groups)))
    for levels in LEVELS:
        guess = _nearest_integers(groups, spread / np.float32(levels), low)
        best = best.or_better(_Fit.nearest(groups, *_line(groups, guess)))
    scales = np.where(broken, np.float16(np.nan), best.scales)
    return Matrix(Q4_MIN_F16, best.integers.astype(np.uint8).reshape(values.shape), scales, best.minima)


@dataclass(frozen=True, slots=True)
class _Fit:
    """4-bit integers [outputs, groups, 32] with scales, minima and squared errors [outputs, groups]."""

    integers: Array
    scales: Array
    minima: Array
    errors: Array

    @classmethod
    def nearest(cls, groups: NDArray[np.float32], scales: NDArray[np.float16], minima: NDArray[np.float16]) -> "_Fit":
        step, start = scales.astype(np.float32), minima.astype(np.float32)
        integers = _nearest_integers(groups, step, start)
        off = integers * step[:, :, None] + start[:, :, None] - groups
        return cls(integers, scales, minima, np.einsum("ijk,ijk->ij", off, off))

    def or_better(self, other: "_Fit") -> "_Fit":
        better = other.errors < self.errors
        return _Fit(
            np.where(better[:, :, None], other.integers, self.integers),
            np.where(better, other.scales, self.scales),
            np.where(better, other.minima, self.minima),
            np.where(better, other.errors, self.errors),
        )


def _nearest_integers(groups: Array, step: Array, start: Array) -> Array:
    inverse = np.divide(1, step, out=np.zeros_like(step), where=step > 0)
    return np.clip(np.rint((groups - start[:, :, None]) * inverse[:, :, None]), 0, MOST_4_BIT)


def _line(groups: Array, integers: Array) -> tuple[NDArray[np.float16], NDArray[np.float16]]:
    """Scales and minima of the least squared error for these integers."""
    count = np.float32(groups.shape[2])
    sum_x, sum_q = groups.sum(axis=2), integers.sum(axis=2)
    sum_qq, sum_xq = np.einsum("ijk,ijk->ij", integers, integers), np.einsum("ijk,ijk->ij", groups, integers)
    below = count * sum_qq - sum_q * sum_q
    slope = np.divide(count * sum_xq - sum_q * sum_x, below, out=np.zeros_like(below), where=below > 0)
    with np.errstate(over="ignore"):  # larger than halves can be: the row will have broken logits, and says so
        return slope.astype(np.float16), ((sum_x - slope * sum_q) / count).astype(np.float16)


_FROM_FLOATS: Mapping[Format, Callable[[NDArray[np.float32]], Matrix]] = MappingProxyType(
    {F32: from_floats, Q8_F32: rounded_to_8_bits, Q4_MIN_F16: rounded_to_4_bits},
)


def _pad_inputs(values: Array) -> Array:
    extra = -values.shape[1] % ACTIVATION_GROUP
    return np.pad(values, ((0, 0), (0, extra))) if extra else values


# ── out of a GGUF file ────────────────────────────────────────────────────────────────────────────────────────────────────


def decode(rows: NDArray[np.uint8], kind: str) -> Matrix:
    """Stored rows (outputs, bytes of a row) of a ggml type, as they are: nothing is rounded."""
    matrix = _DECODERS[kind](rows)
    if isinstance(matrix.format, Floats):
        return Matrix(matrix.format, _pad_inputs(matrix.numbers))
    return matrix


def _blocks(rows: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    return rows.reshape(len(rows), -1, size)


def _halves(blocks: NDArray[np.uint8], at: int) -> NDArray[np.float16]:
    return np.ascontiguousarray(blocks[:, :, at : at + 2]).view("<f2")[:, :, 0].astype(np.float16, copy=False)


def _nibbles(packed: NDArray[np.uint8]) -> Array:
    """Low halves of all bytes, then the high halves."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _flat(integers: Array) -> Array:
    return integers.reshape(len(integers), -1)


def _fifth_bits(blocks: NDArray[np.uint8], at: int) -> Array:
    return np.unpackbits(blocks[:, :, at : at + 4], axis=-1, bitorder="little") << 4


def _q4_0(rows: NDArray[np.uint8]) -> Matrix:
    blocks = _blocks(rows, 18)
    return Matrix(Q4_ZERO_F16, _flat(_nibbles(blocks[:, :, 2:])), _halves(blocks, 0))


def _q4_1(rows: NDArray[np.uint8]) -> Matrix:
    blocks = _blocks(rows, 20)
    return Matrix(Q4_MIN_F16, _flat(_nibbles(blocks[:, :, 4:])), _halves(blocks, 0), _halves(blocks, 2))


def _q5_0(rows: NDArray[np.uint8]) -> Matrix:
    blocks = _blocks(rows, 22)
    integers = (_nibbles(blocks[:, :, 6:]) | _fifth_bits(blocks, 2)).view(np.int8) - np.int8(16)
    return Matrix(Q8_F16, _flat(integers), _halves(blocks, 0))


def _q5_1(rows: NDArray[np.uint8]) -> Matrix:
    blocks = _blocks(rows, 24)
    integers = (_nibbles(blocks[:, :, 8:]) | _fifth_bits(blocks, 4)).view(np.int8)
    return Matrix(Q8_MIN_F16, _flat(integers), _halves(blocks, 0), _halves(blocks, 2))


def _q8_0(rows: NDArray[np.uint8]) -> Matrix:
    blocks = _blocks(rows, 34)
    return Matrix(Q8_F16, _flat(blocks[:, :, 2:]).view(np.int8), _halves(blocks, 0))


def _six_bit_pairs(packed: NDArray[np.uint8]) -> tuple[Array, Array]:
    """The eight scales and eight minima of a super-block, 6 bits each, out of 12 bytes."""
    low, middle, high = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scales = np.concatenate([low & 63, (high & 15) | ((low >> 6) << 4)], axis=-1)
    minima = np.concatenate([middle & 63, (high >> 4) | ((middle >> 6) << 4)], axis=-1)
    return scales, minima


def _k_scales(blocks: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    scales, minima = _six_bit_pairs(blocks[:, :, 4:16])
    factor, offset = _halves(blocks, 0).astype(np.float32), _halves(blocks, 2).astype(np.float32)
    with np.errstate(all="ignore"):  # a broken file may hold scales that are not numbers: they are passed on as they are
        return _flat(factor[:, :, None] * scales), _flat(-offset[:, :, None] * minima)


def _q4_k(rows: NDArray[np.uint8]) -> Matrix:
    blocks = _blocks(rows, 144)
    scales, minima = _k_scales(blocks)
    quarters = blocks[:, :, 16:].reshape(*blocks.shape[:2], 4, 32)
    return Matrix(Q4_MIN_F32, _flat(_nibbles(quarters)), scales, minima)


def _q5_k(rows: NDArray[np.uint8]) -> Matrix:
    blocks = _blocks(rows, 176)
    scales, minima = _k_scales(blocks)
    low = _nibbles(blocks[:, :, 48:].reshape(*blocks.shape[:2], 4, 32)).reshape(*blocks.shape[:2], 8, 32)
    high = (blocks[:, :, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]) & 1
    return Matrix(Q8_MIN_F32, _flat((low | (high << 4)).view(np.int8)), scales, minima)


def _q6_k(rows: NDArray[np.uint8]) -> Matrix:
    blocks = _blocks(rows, 210)
    shape = blocks.shape[:2]
    low = blocks[:, :, :128].reshape(*shape, 2, 64)
    low = np.concatenate([low & 15, low >> 4], axis=-1).reshape(*shape, 2, 4, 32)
    high = blocks[:, :, 128:192].reshape(*shape, 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    integers = (low | (high << 4)).view(np.int8) - np.int8(32)
    with np.errstate(all="ignore"):
        scales = _halves(blocks, 208).astype(np.float32)[:, :, None] * blocks[:, :, 192:208].view(np.int8)
    return Matrix(Q8_F32_16, _flat(integers), _flat(scales))


def _stored(form: Floats, kind: str) -> Callable[[NDArray[np.uint8]], Matrix]:
    return lambda rows: Matrix(form, rows.view(kind))


STORED: Mapping[str, Format] = MappingProxyType(
    {
        "F32": F32,
        "F16": F16,
        "BF16": BF16,
        "Q4_0": Q4_ZERO_F16,
        "Q4_1": Q4_MIN_F16,
        "Q5_0": Q8_F16,
        "Q5_1": Q8_MIN_F16,
        "Q8_0": Q8_F16,
        "Q4_K": Q4_MIN_F32,
        "Q5_K": Q8_MIN_F32,
        "Q6_K": Q8_F32_16,
    }
)
"""The form that each type of file is decoded to."""

_DECODERS: Mapping[str, Callable[[NDArray[np.uint8]], Matrix]] = MappingProxyType(
    {
        "F32": _stored(F32, "<f4"),
        "F16": _stored(F16, "<f2"),
        "BF16": _stored(BF16, "<u2"),
        "Q4_0": _q4_0,
        "Q4_1": _q4_1,
        "Q5_0": _q5_0,
        "Q5_1": _q5_1,
        "Q8_0": _q8_0,
        "Q4_K": _q4_k,
        "Q5_K": _q5_k,
        "Q6_K": _q6_k,
    }
)


# ── into memory ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Packed:
    """A matrix as the kernels read it. `groups` counts what their inner loop turns over: 32 inputs, or 4 for floats."""

    format: Format
    data: NDArray[np.uint8]
    outputs: int
    inputs: int
    groups: int

    @property
    def address(self) -> int:
        return self.data.ctypes.data


def packed_bytes(form: Format, outputs: int, inputs: int) -> int:
    """What a matrix takes in memory, padding included. It is the same for all strips."""
    outputs, inputs = round_up(outputs, ROW_PAD), round_up(inputs, ACTIVATION_GROUP)
    if isinstance(form, Floats):
        return outputs * inputs * form.bytes
    return inputs // ACTIVATION_GROUP * form.group_bytes(outputs)


def allocate(form: Format, outputs: int, inputs: int) -> Packed:
    """Room for a matrix, all zeros: `lay` fills it."""
    data = aligned(packed_bytes(form, outputs, inputs), np.uint8)
    inputs = round_up(inputs, ACTIVATION_GROUP)
    groups = inputs // 4 if isinstance(form, Floats) else inputs // ACTIVATION_GROUP
    return Packed(form, data, round_up(outputs, ROW_PAD), inputs, groups)


def pack(matrix: Matrix, shape: Shape) -> Packed:
    """A whole matrix laid out for strips of `shape.strip` outputs."""
    packed = allocate(matrix.format, matrix.outputs, matrix.inputs)
    lay(matrix, packed, shape, first=0)
    return packed


def lay(matrix: Matrix, packed: Packed, shape: Shape, *, first: int) -> None:
    """Lays some outputs of a matrix, those from `first` on, where they belong. Whoever lays others may do so meanwhile."""
    assert first % ROW_PAD == 0
    assert (matrix.format, matrix.inputs) == (packed.format, packed.inputs)
    matrix = matrix.with_outputs(round_up(matrix.outputs, ROW_PAD))
    strips = packed.data.reshape(packed.outputs // shape.strip, -1)
    room = strips[first // shape.strip : (first + matrix.outputs) // shape.strip]
    if isinstance(matrix.format, Floats):
        _lay_floats(matrix, shape, room)
    else:
        _lay_quantised(matrix, matrix.format, shape, room)


def _lay_floats(matrix: Matrix, shape: Shape, room: NDArray[np.uint8]) -> None:
    laid = room.view(matrix.numbers.dtype).reshape(len(room), matrix.inputs, shape.strip)
    laid[:] = matrix.numbers.reshape(len(room), shape.strip, matrix.inputs).swapaxes(1, 2)


def _lay_quantised(matrix: Matrix, form: Quantised, shape: Shape, room: NDArray[np.uint8]) -> None:
    strips, groups = len(room), matrix.inputs // ACTIVATION_GROUP
    laid = room.reshape(strips, groups, form.group_bytes(shape.strip))
    integers = shape.strip * ACTIVATION_GROUP * form.bits // 8
    _lay_integers(matrix.numbers, form, shape, laid[:, :, :integers])
    at = integers
    for plane, parts in ((matrix.scales, form.scales), (matrix.minima, 1)):
        if plane is None:
            continue
        width = parts * shape.strip * form.scale_bytes
        by_part = plane.reshape(strips, shape.strip, groups, parts).transpose(0, 2, 3, 1)
        laid[:, :, at : at + width] = np.ascontiguousarray(by_part).view(np.uint8).reshape(strips, groups, width)
        at += width


def _lay_integers(numbers: Array, form: Quantised, shape: Shape, room: NDArray[np.uint8]) -> None:
    strips, groups = room.shape[:2]
    steps = numbers.view(np.uint8).reshape(strips, shape.vectors, shape.lanes, groups, 8, 4)
    by_step = steps.transpose(0, 3, 4, 1, 2, 5)
    if form.bits == 4:
        room.reshape(strips, groups, 4, shape.vectors, shape.lanes, 4)[:] = by_step[:, :, 0::2] | (by_step[:, :, 1::2] << 4)
        return
    target = room.reshape(strips, groups, 8, shape.vectors, shape.lanes, 4)
    target[:] = by_step
    if shape.flip:
        np.bitwise_xor(target, np.uint8(128), out=target)
