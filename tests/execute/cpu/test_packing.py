"""Decoding of stored weights against the gguf package, and the ways out of floats."""

import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from chairlift.execute.cpu.formats import Quantised
from chairlift.execute.cpu.packing import Matrix, decode, from_floats, rounded_to_8_bits

KINDS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
ROWS, INPUTS = 7, 512


def stored(kind: str, seed: int = 1) -> NDArray[np.uint8]:
    """Random bytes, but for the exponents of scales, which stay moderate."""
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    data = np.random.default_rng(seed).integers(0, 256, (ROWS, INPUTS // block, size), dtype=np.uint8)
    halves = {"Q4_0": (0,), "Q5_0": (0,), "Q8_0": (0,), "Q6_K": (208,)}.get(kind, (0, 2))
    for at in halves:
        data[:, :, at + 1] = data[:, :, at + 1] & 0b10000011 | 0b00101000
    return data.reshape(ROWS, -1)


def meaning(matrix: Matrix) -> NDArray[np.float64]:
    """The weights that a matrix stands for."""
    assert isinstance(matrix.format, Quantised)
    assert matrix.scales is not None
    groups = matrix.numbers.reshape(matrix.outputs, -1, matrix.format.group).astype(np.float64) - matrix.format.zero
    values = groups * matrix.scales.astype(np.float64)[:, :, None]
    if matrix.minima is not None:
        values = values + matrix.minima.astype(np.float64)[:, :, None]
    return values.reshape(matrix.outputs, -1)


@pytest.mark.parametrize("kind", KINDS)
def test_decoded_weights_equal_those_of_the_gguf_package(kind: str) -> None:
    rows = stored(kind)
    expected = dequantize(rows, GGMLQuantizationType[kind])
    np.testing.assert_allclose(meaning(decode(rows, kind)), expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
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
