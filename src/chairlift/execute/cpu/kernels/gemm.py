"""Matrix products: activations by packed weights, strip by strip. The formula is that of `formats`.

Knows tiles and the order of sums; where weights come from is the business of packing.
"""

from dataclasses import dataclass

from chairlift.execute.cpu.formats import ACTIVATION_GROUP, OUTLIERS, Floats, Format, Quantised
from chairlift.execute.cpu.isa import Isa, Shape
from chairlift.execute.cpu.kernels import numbers
from chairlift.execute.cpu.kernels.dots import STEP, Dots, Tile
from chairlift.execute.cpu.kernels.emit import F32, I32, I64, Function, Module, Value, Variable, vector
from chairlift.execute.cpu.kernels.work import Operands, claimed
from chairlift.execute.cpu.words import LINE

BLOCK = 48
"""Bytes of a group of activations: 32 8-bit integers, the step, step * sum, the sum, and the sum of the first half."""
OUTLIER_BYTES = 16
"""A row of activations ends with one more block, of outliers: the group, the place in it, what was cut off, and nothing."""
OUTLIER_PLACE_AT, OUTLIER_REST_AT = 4, 8
assert OUTLIERS * OUTLIER_BYTES <= BLOCK
STEP_AT, SCALED_SUM_AT, SUM_AT, HALF_SUM_AT = 32, 36, 40, 44

ROW_BLOCK = 64
"""Rows that a strip meets before the next strip: their activations stay in the second-level cache."""
PREFETCH_AHEAD = 3072
"""Bytes of weights that are asked for ahead of their use."""
UNROLL = 4
"""Inputs of a float product to one turn of the loop; packing pads to a multiple."""


@dataclass(frozen=True, slots=True)
class Target:
    """What the machine code is made for. `native_halves`: the processor converts half-precision numbers itself.

    `pause` and `clock` are LLVM's names for the hint that a loop only waits, and for a counter of time; None if there is none.
    """

    isa: Isa
    shape: Shape
    dots: Dots
    native_halves: bool
    pause: str | None
    clock: str | None


def add_gemm(module: Module, target: Target, form: Format) -> str:
    """The instruction for one format; its name."""
    sizes = range(1, (target.shape.rows if isinstance(form, Quantised) else target.shape.float_rows) + 1)
    tiles = {rows: _tile(module, target, form, rows) for rows in sizes}
    outliers = _outliers(module, target, form) if isinstance(form, Quantised) else None
    name = f"gemm_{form.name}"
    f = module.function(name, [I64, I64, I64], public=True)
    op = Operands(f, "gemm")
    rows, strips, chunk = f.load(I64, op.count), op.strips, op.chunk
    row_blocks = (rows + (ROW_BLOCK - 1)) // ROW_BLOCK
    chunks = (strips + (chunk - 1)) // chunk
    ld, strip_bytes = _row_bytes(form, op.groups), _strip_bytes(target, form, op.groups)
    with claimed(f, op, row_blocks * chunks) as item:
        first_row = (item // chunks) * ROW_BLOCK
        last_row = f.signed_min(first_row + ROW_BLOCK, rows)
        first_strip = (item % chunks) * chunk
        with f.loop(first_strip, f.signed_min(first_strip + chunk, strips)) as strip:
            weights = op.weights + strip * strip_bytes
            column = strip * (4 * target.shape.strip)
            row = f.var(first_row)
            most = max(tiles)
            with f.repeat(lambda: row.value + most <= last_row):
                _call(f, tiles[most], op, row.value, ld, weights, column)
                row.value = row.value + most
            left = last_row - row.value
            for count in range(1, most):
                with f.when(left.equals(count)):
                    _call(f, tiles[count], op, row.value, ld, weights, column)
            if outliers is not None:
                with f.loop(first_row, last_row) as each:
                    at = op.input + each * ld + op.groups * BLOCK
                    f.call(outliers.ir, at, weights, op.out + each * (op.stride * 4) + column)
    f.ret()
    return name


def _row_bytes(form: Format, groups: Value) -> Value:
    return (groups + 1) * BLOCK if isinstance(form, Quantised) else groups * (4 * UNROLL)


def _strip_bytes(target: Target, form: Format, groups: Value) -> Value:
    if isinstance(form, Quantised):
        return groups * form.group_bytes(target.shape.strip)
    return groups * (UNROLL * target.shape.strip * form.bytes)


def _call(f: Function, tile: Function, op: Operands, row: Value, ld: Value, weights: Value, column: Value) -> None:
    out = op.out + row * (op.stride * 4) + column
    bias = f.select(op.bias.equals(0), op.bias, op.bias + column)
    f.call(tile.ir, op.input + row * ld, ld, weights, op.groups, out, op.stride * 4, bias)


def _tile(module: Module, target: Target, form: Format, rows: int) -> Function:
    """`rows` tokens by one strip: (input, bytes of a row, weights, groups, out, bytes of a row of it, bias or 0)."""
    f = module.function(f"tile_{form.name}_{rows}", [I64] * 7)
    x, ld, weights, groups, out, ld_out, bias = f.arguments
    lanes, vectors = target.shape.lanes, target.shape.vectors
    zero = f.number(vector(F32, lanes), 0.0)
    sums = [[f.var(zero) for _ in range(vectors)] for _ in range(rows)]
    if isinstance(form, Quantised):
        _groups(f, target, form, rows, x, ld, weights, groups, sums)
    else:
        _floats(f, target, form, rows, x, ld, weights, groups, sums)
    with f.when(bias.differs(0)):
        for j in range(vectors):
            extra = f.load(vector(F32, lanes), bias + 4 * lanes * j)
            for row in sums:
                row[j].value = row[j].value + extra
    for m, row in enumerate(sums):
        for j, total in enumerate(row):
            f.store(total.value, out + ld_out * m + 4 * lanes * j)
    f.ret()
    return f


def _groups(
    f: Function,
    target: Target,
    form: Quantised,
    rows: int,
    x: Value,
    ld: Value,
    weights: Value,
    groups: Value,
    sums: list[list[Variable]],
) -> None:
    lanes, vectors = target.shape.lanes, target.shape.vectors
    size = form.group_bytes(lanes * vectors)
    integers = lanes * vectors * ACTIVATION_GROUP * form.bits // 8
    plane = lanes * vectors * form.scale_bytes
    starts = [x + ld * m for m in range(rows)]
    with f.loop(0, groups) as g:
        at = weights + g * size
        _prefetch(f, at + PREFETCH_AHEAD, size)
        blocks = [start + g * BLOCK for start in starts]
        steps = [f.load(F32, block + STEP_AT).splat(lanes) for block in blocks]
        for part in range(form.scales):
            tile = Tile(at, blocks, vectors, form.bits, form.zero)
            edge = 8 // form.scales
            products = target.dots.products(f, tile, part * edge, (part + 1) * edge, _part_sums(f, blocks, form, part))
            scales = [_scale(f, target, form, at + (integers + plane * part), j) for j in range(vectors)]
            for m in range(rows):
                for j in range(vectors):
                    scaled = products[m][j].to(F32) * scales[j]
                    sums[m][j].value = f.fma(scaled, steps[m], sums[m][j].value)
        if form.minimum:
            minima = [_scale(f, target, form, at + (integers + plane * form.scales), j) for j in range(vectors)]
            for m, block in enumerate(blocks):
                scaled_sum = f.load(F32, block + SCALED_SUM_AT).splat(lanes)
                for j in range(vectors):
                    sums[m][j].value = f.fma(minima[j], scaled_sum, sums[m][j].value)


def _outliers(module: Module, target: Target, form: Quantised) -> Function:
    """Adds what was cut off a row's outliers, times the weights that meet them: (outliers, weights of the strip, out)."""
    f = module.function(f"outliers_{form.name}", [I64] * 3)
    outliers, weights, out = f.arguments
    lanes, vectors = target.shape.lanes, target.shape.vectors
    kind = vector(F32, lanes)
    with f.loop(0, OUTLIERS) as number:
        at = outliers + number * OUTLIER_BYTES
        rest = f.load(F32, at + OUTLIER_REST_AT)
        with f.when(rest.equals(0.0) ^ True):
            group = f.load(I32, at).to(I64)
            place = f.load(I32, at + OUTLIER_PLACE_AT).to(I64)
            start = weights + group * form.group_bytes(lanes * vectors)
            for j in range(vectors):
                where = out + 4 * lanes * j
                weight = _weight(f, target, form, start, place, j)
                f.store(f.fma(weight, rest.splat(lanes), f.load(kind, where)), where)
    f.ret()
    return f


def _weight(f: Function, target: Target, form: Quantised, group: Value, place: Value, j: int) -> Value:
    """The weights of a vector of outputs for one input, the `place`-th of a group: float32."""
    lanes, vectors = target.shape.lanes, target.shape.vectors
    step, byte = place // STEP, place % STEP
    row = step // 2 if form.bits == 4 else step
    words = f.load(vector(I32, lanes), group + (row * vectors + j) * (lanes * STEP))
    if form.bits == 4:
        integers = words.unsigned_shift((byte * 8 + step % 2 * 4).to(I32).splat(lanes)) & 15
    elif target.shape.flip:
        integers = (words.unsigned_shift((byte * 8).to(I32).splat(lanes)) & 255) - 128
    else:
        integers = (words << (byte * -8 + 24).to(I32).splat(lanes)) >> 24
    plane = lanes * vectors * form.scale_bytes
    planes = group + (lanes * vectors * ACTIVATION_GROUP * form.bits // 8)
    scale = _scale(f, target, form, planes + place // form.group * plane, j)
    number = (integers - form.zero).to(F32)
    if not form.minimum:
        return number * scale
    return f.fma(number, scale, _scale(f, target, form, planes + form.scales * plane, j))


def _prefetch(f: Function, address: Value, size: int) -> None:
    """The processor's own prefetching ends at every page, which is but a few groups; this goes on, into the next strip too."""
    for line in range(0, size, LINE):
        f.prefetch(address + line)


def _part_sums(f: Function, blocks: list[Value], form: Quantised, part: int) -> list[Value]:
    if form.scales == 1:
        return [f.load(I32, block + SUM_AT) for block in blocks]
    halves = [f.load(I32, block + HALF_SUM_AT) for block in blocks]
    if part == 0:
        return halves
    return [f.load(I32, block + SUM_AT) - half for block, half in zip(blocks, halves, strict=True)]


def _scale(f: Function, target: Target, form: Quantised, at: Value, j: int) -> Value:
    lanes = target.shape.lanes
    return numbers.load_float(f, form.scale, lanes, at + lanes * j * form.scale_bytes, native=target.native_halves)


def _floats(
    f: Function,
    target: Target,
    form: Floats,
    rows: int,
    x: Value,
    ld: Value,
    weights: Value,
    groups: Value,
    sums: list[list[Variable]],
) -> None:
    lanes, vectors = target.shape.lanes, target.shape.vectors
    size = form.bytes * lanes
    starts = [x + ld * m for m in range(rows)]
    with f.loop(0, groups) as g:
        at = weights + g * (UNROLL * vectors * size)
        _prefetch(f, at + PREFETCH_AHEAD, UNROLL * vectors * size)
        inputs = [start + g * (4 * UNROLL) for start in starts]
        for k in range(UNROLL):
            row = [
                numbers.load_float(f, form.kind, lanes, at + (k * vectors + j) * size, native=target.native_halves)
                for j in range(vectors)
            ]
            for m, start in enumerate(inputs):
                value = f.load(F32, start + 4 * k).splat(lanes)
                for j in range(vectors):
                    sums[m][j].value = f.fma(value, row[j], sums[m][j].value)
