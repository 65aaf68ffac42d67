"""Matrix products: every format on every instruction set gives the bits of one formula, on random and on extreme numbers."""

import ctypes
import ctypes.util

import numpy as np
import pytest
from native_kernels import EMULATED, HOST_ISAS, Bench, kernels
from numpy.typing import NDArray

from chairlift.execute.cpu.formats import FORMATS, OUTLIERS, Floats, Format, Quantised
from chairlift.execute.cpu.isa import SHAPES, Isa
from chairlift.execute.cpu.memory import aligned
from chairlift.execute.cpu.packing import Matrix, pack

OUTPUTS, INPUTS, ROWS = 64, 96, 5
GROUPS = INPUTS // 32
BLOCK = np.dtype([("x", "i1", 32), ("step", "f4"), ("scaled", "f4"), ("sum", "i4"), ("half", "i4")])
OUTLIER = np.dtype([("group", "i4"), ("place", "i4"), ("rest", "f4"), ("nothing", "i4")])
ROW = np.dtype([("blocks", BLOCK, GROUPS), ("outliers", OUTLIER, OUTLIERS)])
VARIANTS = [(isa, False) for isa in HOST_ISAS] + [(isa, True) for isa in EMULATED]
_libm = ctypes.CDLL(ctypes.util.find_library("m"))
_libm.fmaf.restype = ctypes.c_float
_libm.fmaf.argtypes = [ctypes.c_float] * 3
fma = np.vectorize(_libm.fmaf, otypes=[np.float32])


def activations(seed: int, *, extreme: bool = False) -> NDArray[np.void]:
    """Rounded activations [rows] as the kernels read them."""
    random = np.random.default_rng(seed)
    rows = aligned(ROWS * ROW.itemsize, np.uint8).view(ROW)
    blocks, outliers = rows["blocks"], rows["outliers"]
    blocks["x"] = (
        random.choice([-127, 127], (*blocks.shape, 32)) if extreme else random.integers(-127, 128, (*blocks.shape, 32))
    )
    if extreme:
        blocks["x"][0] = 127
        blocks["x"][1] = -127
    blocks["step"] = random.random(blocks.shape)
    blocks["sum"] = blocks["x"].sum(axis=-1, dtype=np.int32)
    blocks["half"] = blocks["x"][..., :16].sum(axis=-1, dtype=np.int32)
    blocks["scaled"] = blocks["step"] * blocks["sum"].astype(np.float32)
    outliers["group"] = random.integers(0, GROUPS, outliers.shape)
    outliers["place"] = random.integers(0, 32, outliers.shape)
    outliers["rest"] = 100 * random.standard_normal(outliers.shape)
    outliers["rest"][-1, 1:] = 0  # a row may have fewer
    return rows


def matrix_of(form: Format, seed: int, *, extreme: bool = False) -> Matrix:
    random = np.random.default_rng(seed)
    shape = (OUTPUTS, INPUTS)
    if isinstance(form, Floats):
        values = random.standard_normal(shape).astype(np.float32)
        stored = {"f32": values, "f16": values.astype(np.float16), "bf16": (values.view(np.uint32) >> 16).astype(np.uint16)}
        return Matrix(form, stored[form.kind])
    low, high = (0, 15) if form.bits == 4 else (-128, 127)
    numbers = random.choice([low, high], shape) if extreme else random.integers(low, high + 1, shape)
    if extreme:
        numbers[0], numbers[1] = low, high
    scale = np.float16 if form.scale == "f16" else np.float32
    scales = random.standard_normal((OUTPUTS, INPUTS // form.group)).astype(scale)
    minima = random.standard_normal((OUTPUTS, INPUTS // 32)).astype(scale) if form.minimum else None
    return Matrix(form, numbers.astype(np.uint8 if form.bits == 4 else np.int8), scales, minima)


def expected(matrix: Matrix, rows: NDArray[np.void]) -> NDArray[np.float32]:
    """The formula of `formats`, one rounding after another."""
    form, blocks = matrix.format, rows["blocks"]
    assert isinstance(form, Quantised)
    assert matrix.scales is not None
    total = np.zeros((ROWS, OUTPUTS), dtype=np.float32)
    parts = 32 // form.group
    for g in range(INPUTS // 32):
        for part in range(parts):
            inside = slice(part * form.group, (part + 1) * form.group)
            weights = matrix.numbers[:, g * 32 : g * 32 + 32][:, inside].astype(np.int32) - form.zero
            dots = (blocks["x"][:, g, inside].astype(np.int32) @ weights.T).astype(np.float32)
            scaled = dots * matrix.scales[:, g * parts + part].astype(np.float32)
            total = fma(scaled, blocks["step"][:, g, None], total)
        if matrix.minima is not None:
            total = fma(matrix.minima[:, g].astype(np.float32), blocks["scaled"][:, g, None], total)
    for m, row in enumerate(rows["outliers"]):
        for outlier in row:
            if outlier["rest"] != 0:
                k = outlier["group"] * 32 + outlier["place"]
                total[m] = fma(weights_of(matrix, k), outlier["rest"], total[m])
    return total


def weights_of(matrix: Matrix, k: int) -> NDArray[np.float32]:
    """The weights [outputs] of one input."""
    form = matrix.format
    assert isinstance(form, Quantised)
    assert matrix.scales is not None
    integers = (matrix.numbers[:, k].astype(np.int32) - form.zero).astype(np.float32)
    scales = matrix.scales[:, k // form.group].astype(np.float32)
    return integers * scales if matrix.minima is None else fma(integers, scales, matrix.minima[:, k // 32].astype(np.float32))


def product(
    isa: Isa, matrix: Matrix, inputs: NDArray, *, emulate: bool = False, rows: int = ROWS, bias: NDArray | None = None
) -> NDArray[np.float32]:
    packed = pack(matrix, SHAPES[isa])
    out = aligned(rows * OUTPUTS, np.float32).reshape(rows, OUTPUTS)
    Bench(kernels(isa, emulate=emulate)).run(
        f"gemm_{matrix.format.name}",
        "gemm",
        count=rows,
        input=inputs,
        weights=packed.address,
        groups=packed.groups,
        strips=OUTPUTS // SHAPES[isa].strip,
        chunk=1,
        out=out,
        stride=OUTPUTS,
        bias=0 if bias is None else bias,
    )
    return out


QUANTISED = [form for form in FORMATS if isinstance(form, Quantised)]


def named(value: Format) -> str:
    return value.name


@pytest.mark.parametrize("form", QUANTISED, ids=named)
@pytest.mark.parametrize(("isa", "emulate"), VARIANTS)
@pytest.mark.parametrize("extreme", [False, True], ids=["random", "extreme"])
def test_products_have_the_bits_of_the_formula(form: Quantised, isa: Isa, emulate: bool, extreme: bool) -> None:
    matrix, blocks = matrix_of(form, 3, extreme=extreme), activations(4, extreme=extreme)
    assert np.array_equal(product(isa, matrix, blocks, emulate=emulate), expected(matrix, blocks))


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(("isa", "emulate"), VARIANTS)
def test_float_products_add_up_in_the_order_of_the_inputs(kind: str, isa: Isa, emulate: bool) -> None:
    matrix = matrix_of(Floats(kind), 5)  # pyright: ignore[reportArgumentType]
    values = aligned(ROWS * INPUTS, np.float32).reshape(ROWS, INPUTS)
    values[:] = np.random.default_rng(6).standard_normal(values.shape)
    numbers = matrix.numbers
    weights = (numbers.astype(np.uint32) << 16).view(np.float32) if kind == "bf16" else numbers.astype(np.float32)
    total = np.zeros((ROWS, OUTPUTS), dtype=np.float32)
    for k in range(INPUTS):
        total = fma(values[:, k, None], weights[:, k], total)
    assert np.array_equal(product(isa, matrix, values, emulate=emulate), total)


@pytest.mark.parametrize("rows", range(1, 12))
@pytest.mark.parametrize("form", FORMATS, ids=named)
def test_a_row_does_not_depend_on_how_many_there_are(form: Format, rows: int) -> None:
    matrix = matrix_of(form, 7)
    if isinstance(form, Floats):
        inputs = aligned(11 * INPUTS, np.float32).reshape(11, INPUTS)
        inputs[:] = np.random.default_rng(8).standard_normal(inputs.shape)
    else:
        inputs = np.concatenate([activations(seed) for seed in (8, 9, 10)])[:11].copy()
    isa = HOST_ISAS[0]
    together = product(isa, matrix, inputs, rows=rows)
    alone = np.concatenate([product(isa, matrix, inputs[row : row + 1].copy(), rows=1) for row in range(rows)])
    assert np.array_equal(together, alone)


def test_a_bias_is_added_after_all_groups() -> None:
    matrix, blocks = matrix_of(FORMATS[0], 3), activations(4)
    bias = aligned(OUTPUTS, np.float32)
    bias[:] = np.arange(OUTPUTS)
    isa = HOST_ISAS[0]
    blocks["outliers"]["rest"] = 0
    assert np.array_equal(product(isa, matrix, blocks, bias=bias), product(isa, matrix, blocks) + bias)
