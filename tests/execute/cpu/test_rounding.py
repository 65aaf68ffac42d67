"""Activations rounded to 8 bits: outliers are cut down where it does most good, and nothing is lost of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from native_kernels import HOST_ISAS, Bench, kernels
from numpy.typing import NDArray

from chairlift.execute.cpu.formats import OUTLIERS
from chairlift.execute.cpu.memory import aligned

GROUP = 32
BLOCK = np.dtype([("x", "i1", GROUP), ("step", "f4"), ("scaled", "f4"), ("sum", "i4"), ("half", "i4")])
OUTLIER = np.dtype([("group", "i4"), ("place", "i4"), ("rest", "f4"), ("nothing", "i4")])


def rounded(values: NDArray[np.float32]) -> NDArray[np.void]:
    """Rows [blocks, outliers] out of the machine code."""
    rows, width = values.shape
    kind = np.dtype([("blocks", BLOCK, width // GROUP), ("outliers", OUTLIER, OUTLIERS)])
    inputs, out = aligned(values.size, np.float32), aligned(rows * kind.itemsize, np.uint8)
    inputs[:] = values.reshape(-1)
    Bench(kernels(HOST_ISAS[0])).run("quantise", "quantise", count=rows, input=inputs, stride=width, width=width, blocks=out)
    return out.view(kind)


def twin(row: NDArray[np.float32]) -> tuple[NDArray[np.float32], list[tuple[int, int, np.float32]]]:
    """What is to be rounded, and what was cut off: written as plainly as possible."""
    row = row.reshape(-1, GROUP).copy()
    ordered = np.sort(np.abs(row), axis=1)
    largest, second = ordered[:, -1], np.array([max([*size[size < size[-1]], 0]) for size in ordered], dtype=np.float32)
    gains = largest * largest - second * second
    cut: list[tuple[int, int, np.float32]] = []
    for _ in range(OUTLIERS):
        group = int(np.argmax(gains))
        if gains[group] <= 0:
            break
        place = int(np.argmax(np.abs(row[group])))
        value, rest = row[group, place], np.copysign(second[group], row[group, place])
        row[group, place] = rest
        cut.append((group, place, value - rest))
        gains[group] = 0
    return row, cut


def rows_of(seed: int, groups: int, spread: float) -> NDArray[np.float32]:
    random = np.random.default_rng(seed)
    values = random.standard_normal((3, groups * GROUP)) * np.exp(spread * random.standard_normal((3, groups * GROUP)))
    return values.astype(np.float32)


@given(seed=st.integers(0, 1000), groups=st.integers(1, 8), spread=st.sampled_from([0.0, 1.0, 3.0]))
def test_outliers_and_steps_are_those_of_the_twin(seed: int, groups: int, spread: float) -> None:
    values = rows_of(seed, groups, spread)
    for made, row in zip(rounded(values), values, strict=True):
        kept, cut = twin(row)
        found = [(int(o["group"]), int(o["place"]), o["rest"]) for o in made["outliers"] if o["rest"] != 0]
        assert found == cut
        steps = np.abs(kept).max(axis=1) / np.float32(127)
        assert np.array_equal(made["blocks"]["step"], steps)
        assert np.abs(made["blocks"]["x"] * steps[:, None] - kept).max() <= steps.max() * 0.501


@pytest.mark.parametrize("value", [0.0, 1.0, -2.5])
def test_equal_activations_have_no_outliers(value: float) -> None:
    made = rounded(np.full((1, 64), value, dtype=np.float32))
    assert not made["outliers"]["rest"].any() or value != 0
    kept = made["blocks"]["x"] * made["blocks"]["step"][..., None]
    total = kept.reshape(1, -1)
    for outlier in made["outliers"][0]:
        total[0, outlier["group"] * GROUP + outlier["place"]] += outlier["rest"]
    np.testing.assert_allclose(total, value, rtol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_broken_number_breaks_its_row_and_no_other(value: float) -> None:
    values = rows_of(1, 4, 1.0)
    values[1, 40] = value
    made = rounded(values)
    whole = [np.isfinite(row["blocks"]["step"]).all() and np.isfinite(row["outliers"]["rest"]).all() for row in made]
    assert whole == [True, False, True]
