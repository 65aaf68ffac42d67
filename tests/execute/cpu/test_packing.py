"""Decoding of stored weights against the gguf package, and the ways out of floats."""

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from stored_weights import FLOATS, QUANTISED, stored_blocks, stored_floats

from chairlift.execute.cpu.formats import FORMATS, Floats, Format, Quantised
from chairlift.execute.cpu.isa import SHAPES, Shape
from chairlift.execute.cpu.packing import (
    ROW_PAD,
    STORED,
    WIDENED,
    Matrix,
    allocate,
    converted,
    decode,
    floats,
    from_floats,
    lay,
    pack,
    packed_bytes,
    rounded_to_4_bits,
    rounded_to_8_bits,
)

ROWS, INPUTS = 7, 512


def stored(kind: str, seed: int = 1) -> NDArray[np.uint8]:
    return stored_blocks(kind, ROWS, INPUTS, seed)


def meaning(matrix: Matrix) -> NDArray[np.float64]:
    """The weights that a matrix stands for."""
    assert isinstance(matrix.format, Quantised)
    assert matrix.scales is not None
    groups = matrix.numbers.reshape(matrix.outputs, -1, matrix.format.group).astype(np.float64) - matrix.format.zero
    values = groups * matrix.scales.astype(np.float64)[:, :, None]
    if matrix.minima is not None:
        values = values + matrix.minima.astype(np.float64)[:, :, None]
    return values.reshape(matrix.outputs, -1)


@pytest.mark.parametrize("kind", QUANTISED)
def test_decoded_weights_equal_those_of_the_gguf_package(kind: str) -> None:
    rows = stored(kind)
    expected = dequantize(rows, GGMLQuantizationType[kind])
    np.testing.assert_allclose(meaning(decode(rows, kind)), expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("kind", QUANTISED)
def test_integers_fit_their_bits(kind: str) -> None:
    matrix = decode(stored(kind), kind)
    assert isinstance(matrix.format, Quantised)
    low, high = (0, 15) if matrix.format.bits == 4 else (-128, 127)
    assert low <= matrix.numbers.min() <= matrix.numbers.max() <= high


@pytest.mark.parametrize(("kind", "dtype"), [("F32", "<f4"), ("F16", "<f2"), ("BF16", "<u2")])
def test_floats_stay_as_they_are(kind: str, dtype: str) -> None:
    numbers = np.arange(64).astype(dtype).reshape(2, 32)
    assert np.array_equal(decode(numbers.view(np.uint8), kind).numbers, numbers)


def test_rounding_to_8_bits_is_off_by_half_a_step_at_most() -> None:
    values = np.random.default_rng(2).standard_normal((5, 96)).astype(np.float32)
    off = np.abs(meaning(rounded_to_8_bits(values)) - values).reshape(5, 3, 32)
    assert (off <= np.abs(values).reshape(5, 3, 32).max(axis=2, keepdims=True) / 127 * 0.5001).all()


def test_a_group_of_zeros_stays_zero() -> None:
    assert not meaning(rounded_to_8_bits(np.zeros((2, 32), dtype=np.float32))).any()


def test_inputs_are_padded_with_zeros() -> None:
    padded = from_floats(np.ones((2, 24), dtype=np.float32))
    assert padded.numbers.shape == (2, 32)
    assert not padded.numbers[:, 24:].any()


def test_rows_of_rotary_pairs_are_put_into_halves() -> None:
    matrix = from_floats(np.arange(8, dtype=np.float32)[:, None] * np.ones(32, dtype=np.float32))
    assert matrix.deinterleaved(2).numbers[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


@pytest.mark.parametrize("kind", [*QUANTISED, *FLOATS])
def test_every_type_is_decoded_to_the_form_that_is_announced(kind: str) -> None:
    rows = stored(kind) if kind in QUANTISED else stored_floats(kind, ROWS, INPUTS)
    assert decode(rows, kind).format == STORED[kind]


@pytest.mark.parametrize("kind", QUANTISED)
def test_as_floats_weights_mean_the_same(kind: str) -> None:
    matrix = decode(stored(kind), kind)
    np.testing.assert_allclose(floats(matrix), meaning(matrix), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("kind", FLOATS)
def test_as_floats_stored_numbers_are_widened(kind: str) -> None:
    rows = stored_floats(kind, ROWS, INPUTS)
    assert np.array_equal(floats(decode(rows, kind)), dequantize(rows, GGMLQuantizationType[kind]))


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q4_K"])
def test_4_bits_are_widened_to_8_without_loss(kind: str) -> None:
    matrix = decode(stored(kind), kind)
    assert np.array_equal(meaning(converted(matrix, WIDENED[matrix.format])), meaning(matrix))


class TestRoundingTo4Bits:
    def test_it_is_better_than_cutting_the_range_into_15_steps(self) -> None:
        values = np.random.default_rng(3).standard_normal((64, 512)).astype(np.float32)
        assert squared_error(rounded_to_4_bits(values), values) < 0.9 * squared_error(plain_4_bits(values), values)

    @given(seed=st.integers(0, 1000), scale=st.sampled_from([1e-4, 1e-2, 1.0, 1e3]), shift=st.sampled_from([0.0, 1.0, -20.0]))
    def test_no_weight_is_off_by_much_more_than_half_a_step(self, seed: int, scale: float, shift: float) -> None:
        values = scale * (np.random.default_rng(seed).standard_normal((2, 64)) + shift).astype(np.float32)
        off = np.abs(meaning(rounded_to_4_bits(values)) - values).reshape(2, 2, 32).max(axis=2)
        halves = np.finfo(np.float16).eps * np.abs(values).reshape(2, 2, 32).max(axis=2) + 6e-8 * 16
        assert (off <= np.ptp(values.reshape(2, 2, 32), axis=2) / 13 + halves).all()

    def test_integers_fit_4_bits(self) -> None:
        numbers = rounded_to_4_bits(np.random.default_rng(4).standard_normal((3, 96)).astype(np.float32)).numbers
        assert (numbers.dtype, numbers.min(), numbers.max()) == (np.uint8, 0, 15)

    @pytest.mark.parametrize("value", [0.0, 0.25, -3.0])
    def test_equal_weights_stay_as_they_are(self, value: float) -> None:
        assert (meaning(rounded_to_4_bits(np.full((2, 32), value, dtype=np.float32))) == value).all()

    def test_4_bit_weights_stay_nearly_as_they_are(self) -> None:
        values = np.tile(np.arange(16, dtype=np.float32), (2, 2)) * np.float32(0.5) - 4
        assert squared_error(rounded_to_4_bits(values), values) == 0

    @pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
    def test_a_group_with_broken_numbers_stays_broken_and_the_others_whole(self, value: float) -> None:
        values = np.random.default_rng(5).standard_normal((1, 64)).astype(np.float32)
        expected = meaning(rounded_to_4_bits(values))
        values[0, 3] = value
        got = meaning(rounded_to_4_bits(values))
        assert np.isnan(got[0, :32]).all()
        assert np.array_equal(got[0, 32:], expected[0, 32:])


def plain_4_bits(values: NDArray[np.float32]) -> Matrix:
    """From the least to the largest of a group in 15 steps."""
    groups = values.reshape(len(values), -1, 32)
    low, steps = groups.min(axis=2).astype(np.float16), (np.ptp(groups, axis=2) / 15).astype(np.float16)
    integers = np.clip(np.rint((groups - low[:, :, None]) / steps[:, :, None]), 0, 15).astype(np.uint8)
    return Matrix(STORED["Q4_1"], integers.reshape(values.shape), steps, low)


def squared_error(matrix: Matrix, values: NDArray[np.float32]) -> float:
    return float(np.square(meaning(matrix) - values).sum())


def any_matrix(form: Format, outputs: int, inputs: int) -> Matrix:
    generator = np.random.default_rng(6)
    if isinstance(form, Floats):
        dtype = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}[form.kind]
        return Matrix(form, generator.integers(0, 99, (outputs, inputs)).astype(dtype))
    low, high, dtype = (0, 16, np.uint8) if form.bits == 4 else (-128, 128, np.int8)
    numbers = generator.integers(low, high, (outputs, inputs)).astype(dtype)
    kind = np.float16 if form.scale == "f16" else np.float32
    scales = generator.standard_normal((outputs, inputs // form.group)).astype(kind)
    return Matrix(form, numbers, scales, -scales if form.minimum else None)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_laid_in_pieces_a_matrix_is_that_laid_at_once(form: Format, shape: Shape) -> None:
    matrix = any_matrix(form, 2 * ROW_PAD + 5, 96)
    packed = allocate(form, matrix.outputs, matrix.inputs)
    for first in (2 * ROW_PAD, 0, ROW_PAD):
        lay(matrix.map(lambda part, at=first: part[at : at + ROW_PAD]), packed, shape, first=first)
    assert packed.data.tobytes() == pack(matrix, shape).data.tobytes()


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_the_size_of_a_packed_matrix_is_told_beforehand(form: Format) -> None:
    for outputs, inputs in ((1, 32), (64, 64), (130, 96)):
        assert packed_bytes(form, outputs, inputs) == allocate(form, outputs, inputs).data.nbytes


def test_heads_are_widened_on_both_sides() -> None:
    matrix = from_floats(np.ones((6, 32), dtype=np.float32)).with_wider_heads(3, 4)
    assert matrix.numbers[:, 0].tolist() == [1, 1, 1, 0, 1, 1, 1, 0]
    matrix = from_floats(np.ones((1, 6), dtype=np.float32)).with_wider_heads_of_inputs(2, 3, 4)
    assert matrix.numbers[0, :9].tolist() == [1, 1, 1, 0, 1, 1, 1, 0, 0]
