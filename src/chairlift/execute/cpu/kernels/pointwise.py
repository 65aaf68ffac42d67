"""Everything between matrix products, row by row: embedding, norms, rotation, activation, rounding to 8 bits.

Knows one row at a time. Sums run in 16 partial sums that are folded by halves, whatever the instruction set.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from chairlift.execute.cpu.formats import ACTIVATION_GROUP, OUTLIERS, Floats, Format, Quantised
from chairlift.execute.cpu.kernels import numbers
from chairlift.execute.cpu.kernels.emit import F32, I8, I32, I64, Function, Module, Value, vector
from chairlift.execute.cpu.kernels.gemm import (
    BLOCK,
    HALF_SUM_AT,
    OUTLIER_BYTES,
    OUTLIER_PLACE_AT,
    OUTLIER_REST_AT,
    SCALED_SUM_AT,
    STEP_AT,
    SUM_AT,
    UNROLL,
    Target,
)
from chairlift.execute.cpu.kernels.work import Operands, claimed
from chairlift.execute.cpu.operations import KV_BYTES

LANES = 16
_F16S, _I16S = vector(F32, LANES), vector(I32, LANES)
LARGEST_HALF = 65_504.0
_TINY = 1e-30
"""Groups whose largest activation is below this are rounded to nothing: their steps would not be normal numbers."""


def _real(word: Value) -> Value:
    """The float32 in the low half of a word."""
    return word.to(I32).bits(F32)


def quantise(f: Function, parts: Sequence[Value], block: Value) -> None:
    """Rounds 32 activations (two vectors) to 8 bits and stores them with their step and sums.

    What is not a finite number makes the step infinite or not a number, and so every product of the group.
    """
    sizes = [part.bits(_I16S) & 0x7FFFFFFF for part in parts]
    largest = f.fold(f.unsigned_max(*sizes), f.unsigned_max).bits(F32)
    step, factor = _step(f, largest)
    whole = [_nearest(part * factor.splat(LANES)) for part in parts]
    for index, part in enumerate(whole):
        f.store(part.to(I8), block + LANES * index)
    half, other = (f.fold(part, lambda a, b: a + b) for part in whole)
    total = half + other
    f.store(step, block + STEP_AT)
    f.store(step * total.to(F32), block + SCALED_SUM_AT)
    f.store(total, block + SUM_AT)
    f.store(half, block + HALF_SUM_AT)


def _step(f: Function, largest: Value) -> tuple[Value, Value]:
    """The step of 8-bit numbers whose largest magnitude this is, and the factor that turns numbers into steps."""
    usable = largest >= _TINY
    broken = largest.bits(I32) > 0x7F7FFFFF
    nothing = f.number(F32, 0.0)
    step = f.select(broken, largest, f.select(usable, largest / 127.0, nothing))
    return step, f.select(usable, 127.0 / largest, nothing)


def _nearest(scaled: Value) -> Value:
    """Whole numbers from -127 to 127, sign-extended out of the low byte so that anything else is cut to a byte as well."""
    return ((scaled + numbers.ROUND_TO_EVEN).bits(_I16S) << 24) >> 24


@contextmanager
def _pairs(f: Function, width: Value) -> Iterator[Value]:
    """Steps through a row in groups of 32 elements."""
    with f.loop(0, width, ACTIVATION_GROUP) as column:
        yield column


def _load_pair(f: Function, address: Value) -> list[Value]:
    return [f.load(_F16S, address + 4 * LANES * index) for index in range(2)]


def _store_pair(f: Function, parts: Sequence[Value], address: Value) -> None:
    for index, part in enumerate(parts):
        f.store(part, address + 4 * LANES * index)


class _Finished:
    """Where the activations of a row go: rounded, as they are, or both. Those to be rounded wait in the scratch, as the whole
    row must be there before its outliers are known.
    """

    def __init__(self, f: Function, op: Operands, row: Value, width: Value, finish: Function) -> None:
        self._f, self._op, self._row, self._width, self._finish = f, op, row, width, finish
        self._waiting = _waiting_row(op.scratch, width)

    def put(self, parts: Sequence[Value], column: Value) -> None:
        f, op = self._f, self._op
        with f.when(op.blocks.differs(0)):
            _store_pair(f, parts, self._waiting + column * 4)
        with f.when(op.floats.differs(0)):
            _store_pair(f, parts, op.floats + self._row * (op.floats_stride * 4) + column * 4)

    def end(self) -> None:
        f, op = self._f, self._op
        with f.when(op.blocks.differs(0)):
            blocks = op.blocks + self._row * _blocks_bytes(self._width)
            f.call(self._finish.ir, op.scratch, self._width, blocks)


def _blocks_bytes(width: Value) -> Value:
    return (width // ACTIVATION_GROUP + 1) * BLOCK


# A row that is to be rounded: for every group what an outlier less would gain, the largest magnitude but one, then the row.


def _waiting_row(scratch: Value, width: Value) -> Value:
    return scratch + width // ACTIVATION_GROUP * 8


def add_round_row(module: Module) -> Function:
    """(scratch, width, blocks): rounds the row that waits in the scratch, its outliers cut down (`formats`)."""
    f = module.function("round_row", [I64, I64, I64])
    scratch, width, blocks = f.arguments
    groups, row = width // ACTIVATION_GROUP, _waiting_row(scratch, width)
    with f.loop(0, groups) as g:
        sizes = [part.bits(_I16S) & 0x7FFFFFFF for part in _load_pair(f, row + g * (4 * ACTIVATION_GROUP))]
        largest = f.fold(f.unsigned_max(*sizes), f.unsigned_max)
        others = [f.select(size.equals(largest.splat(LANES)), f.number(_I16S, 0), size) for size in sizes]
        first, second = (x.bits(F32) for x in (largest, f.fold(f.unsigned_max(*others), f.unsigned_max)))
        f.store(first * first - second * second, scratch + g * 4)
        f.store(second, scratch + (groups + g) * 4)
    for number in range(OUTLIERS):
        _cut_one(f, scratch, groups, row, blocks + groups * BLOCK + number * OUTLIER_BYTES)
    with f.loop(0, groups) as g:
        quantise(f, _load_pair(f, row + g * (4 * ACTIVATION_GROUP)), blocks + g * BLOCK)
    f.ret()
    return f


def _cut_one(f: Function, scratch: Value, groups: Value, row: Value, record: Value) -> None:
    """Cuts down the largest activation of the group that gains most, the first of equal ones, and notes what was cut off."""
    best, group = f.var(f.number(F32, 0.0)), f.var(f.whole(0))
    with f.loop(0, groups) as g:
        gain = f.load(F32, scratch + g * 4)
        with f.when(gain > best.value):
            best.value = gain
            group.value = g
    f.store(f.number(F32, 0.0), record + OUTLIER_REST_AT)
    with f.when(best.value > 0.0):
        start = row + group.value * (4 * ACTIVATION_GROUP)
        size, place = f.var(f.number(I32, -1)), f.var(f.whole(0))
        with f.loop(0, ACTIVATION_GROUP) as k:
            here = f.load(I32, start + k * 4) & 0x7FFFFFFF
            with f.when(here > size.value):
                size.value = here
                place.value = k
        at = start + place.value * 4
        value, second = f.load(F32, at), f.load(F32, scratch + (groups + group.value) * 4)
        rest = f.select(value < 0.0, -second, second)
        f.store(rest, at)
        f.store(value - rest, record + OUTLIER_REST_AT)
        f.store(group.value.to(I32), record)
        f.store(place.value.to(I32), record + OUTLIER_PLACE_AT)
        f.store(f.number(F32, 0.0), scratch + group.value * 4)


def add_norm(module: Module, finish: Function) -> str:
    """x += add, or its norm if `add_norm` is given; then the norm of x, rounded.

    `select` is where the address of a list of rows stands, or 0 for all rows.
    """
    f = module.function("norm", [I64, I64, I64], public=True)
    op = Operands(f, "norm")
    with claimed(f, op, f.load(I64, op.count)) as row:
        source = f.var(row)
        with f.when(op.select.differs(0)):
            source.value = f.load(I64, f.load(I64, op.select) + row * 8)
        x = op.x + source.value * (op.stride * 4)
        with f.when(op.add.differs(0)):
            _add(f, op, x, op.add + source.value * (op.add_stride * 4))
        scale = _inverse_root(f, op, x).splat(LANES)
        finished = _Finished(f, op, row, op.padded, finish)
        with _pairs(f, op.padded) as column:
            weights = _load_pair(f, op.weight + column * 4)
            parts = [part * scale * weight for part, weight in zip(_load_pair(f, x + column * 4), weights, strict=True)]
            finished.put(parts, column)
        finished.end()
    f.ret()
    return "norm"


def _add(f: Function, op: Operands, x: Value, more: Value) -> None:
    with f.either(op.add_norm.equals(0)) as (plain, normed):
        with plain, _pairs(f, op.padded) as column:
            _add_pair(f, x + column * 4, _load_pair(f, more + column * 4))
        with normed:
            scale = _inverse_root(f, op, more).splat(LANES)
            with _pairs(f, op.padded) as column:
                weights = _load_pair(f, op.add_norm + column * 4)
                parts = _load_pair(f, more + column * 4)
                _add_pair(f, x + column * 4, [part * scale * weight for part, weight in zip(parts, weights, strict=True)])


def _add_pair(f: Function, x: Value, more: Sequence[Value]) -> None:
    for index, part in enumerate(more):
        at = x + 4 * LANES * index
        f.store(f.load(_F16S, at) + part, at)


def _inverse_root(f: Function, op: Operands, x: Value) -> Value:
    """1 over the root of the mean of the squares (Zhang and Sennrich, 2019)."""
    return _root(f, _squares(f, x, op.padded), op.width, op.epsilon)


def _squares(f: Function, x: Value, padded: Value) -> Value:
    total = f.var(f.number(_F16S, 0.0))
    with f.loop(0, padded, LANES) as column:
        part = f.load(_F16S, x + column * 4)
        total.value = f.fma(part, part, total.value)
    return f.fold(total.value, lambda a, b: a + b)


def _root(f: Function, squares: Value, width: Value, epsilon: Value) -> Value:
    return 1.0 / f.sqrt(squares / width.to(F32) + _real(epsilon))


def add_quantise(module: Module, finish: Function) -> str:
    """Rounds rows of float32 to 8 bits."""
    f = module.function("quantise", [I64, I64, I64], public=True)
    op = Operands(f, "quantise")
    with claimed(f, op, f.load(I64, op.count)) as row:
        x = op.input + row * (op.stride * 4)
        waiting = _waiting_row(op.scratch, op.width)
        with _pairs(f, op.width) as column:
            _store_pair(f, _load_pair(f, x + column * 4), waiting + column * 4)
        f.call(finish.ir, op.scratch, op.width, op.blocks + row * _blocks_bytes(op.width))
    f.ret()
    return "quantise"


ACTIVATIONS: dict[str, Callable[[Function, Value], Value]] = {
    "silu": numbers.silu,
    "gelu_tanh": numbers.gelu_tanh,
    "gelu": numbers.gelu,
}


def add_activate(module: Module, kind: str, finish: Function) -> str:
    """activation(gate) * up, rounded."""
    name = f"activate_{kind}"
    f = module.function(name, [I64, I64, I64], public=True)
    op = Operands(f, "activate")
    with claimed(f, op, f.load(I64, op.count)) as row:
        gate, up = (start + row * (op.stride * 4) for start in (op.gate, op.up))
        finished = _Finished(f, op, row, op.width, finish)
        with _pairs(f, op.width) as column:
            gates, ups = _load_pair(f, gate + column * 4), _load_pair(f, up + column * 4)
            finished.put([ACTIVATIONS[kind](f, a) * b for a, b in zip(gates, ups, strict=True)], column)
        finished.end()
    f.ret()
    return name


# ── embedding ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def add_embed(module: Module, target: Target, form: Format) -> str:
    """Rows of a packed matrix as float32, times the embedding scale: the same matrix often serves as the head."""
    name = f"embed_{form.name}"
    f = module.function(name, [I64, I64, I64], public=True)
    op = Operands(f, "embed")
    strip, lanes = target.shape.strip, target.shape.lanes
    scale = _real(op.scale)
    with claimed(f, op, f.load(I64, op.count)) as row:
        token = f.load(I64, op.state("token_ids") + row * 8)
        within = token % strip
        place = _Place(token // strip, within // lanes, within % lanes)
        out = op.out + row * (op.stride * 4)
        if isinstance(form, Quantised):
            _embed_quantised(f, target, form, op, place, out, scale)
        else:
            _embed_floats(f, target, form, op, place, out, scale)
    f.ret()
    return name


class _Place:
    """Where an output lies: strip, vector in the strip, lane in the vector."""

    def __init__(self, strip: Value, vector: Value, lane: Value) -> None:
        self.strip, self.vector, self.lane = strip, vector, lane


def _embed_quantised(
    f: Function, target: Target, form: Quantised, op: Operands, place: _Place, out: Value, scale: Value
) -> None:
    lanes, vectors, strip = target.shape.lanes, target.shape.vectors, target.shape.strip
    size = form.group_bytes(strip)
    integers = strip * ACTIVATION_GROUP * form.bits // 8
    channel = place.vector * lanes + place.lane
    with f.loop(0, op.groups) as g:
        at = op.weights + (place.strip * op.groups + g) * size
        planes = at + integers + channel * form.scale_bytes
        minimum = f.number(F32, 0.0)
        if form.minimum:
            minimum = _load_scale(f, form, planes + form.scales * strip * form.scale_bytes)
        for step in range(8):
            row = step // 2 if form.bits == 4 else step
            word = f.load(I32, at + ((place.vector + row * vectors) * lanes + place.lane) * 4)
            part = step * form.scales // 8
            factor = _load_scale(f, form, planes + part * strip * form.scale_bytes)
            for byte in range(4):
                integer = _integer(target, form, word, step, byte) - form.zero
                number = f.fma(integer.to(F32), factor, minimum) * scale
                f.store(number, out + (g * ACTIVATION_GROUP + (4 * step + byte)) * 4)


def _integer(target: Target, form: Quantised, word: Value, step: int, byte: int) -> Value:
    if form.bits == 4:
        return word.unsigned_shift(8 * byte + 4 * (step % 2)) & 15
    if target.shape.flip:
        return (word.unsigned_shift(8 * byte) & 255) - 128
    return (word << (24 - 8 * byte)) >> 24


def _load_scale(f: Function, form: Quantised, at: Value) -> Value:
    return numbers.load_float(f, form.scale, 1, at, native=False)


def _embed_floats(f: Function, target: Target, form: Floats, op: Operands, place: _Place, out: Value, scale: Value) -> None:
    lanes, strip = target.shape.lanes, target.shape.strip
    channel = place.vector * lanes + place.lane
    length = op.groups * UNROLL
    with f.loop(0, length) as k:
        at = op.weights + ((place.strip * length + k) * strip + channel) * form.bytes
        f.store(numbers.load_float(f, form.kind, 1, at, native=False) * scale, out + k * 4)


# ── rotation, and the way into the cache ──────────────────────────────────────────────────────────────────────────────────


def add_rotary(module: Module, target: Target, kv: str) -> str:
    """Norms and turns queries and keys; scales the queries in place, stores keys and values in the cache.

    A table of turns has for every position the cosines of all pairs, then their sines. Keys of 16 positions lie side by side
    (element by element), values one position after another.
    """
    name = f"rotary_{kv}"
    f = module.function(name, [I64, I64, I64], public=True)
    op = Operands(f, "rotary")
    half = op.head_dim // 2
    with claimed(f, op, f.load(I64, op.count)) as row:
        base = op.qkv + row * (op.stride * 4)
        turn = op.turns + f.load(I64, op.state("positions") + row * 8) * (op.head_dim * 4)
        slot = f.load(I64, op.state("slots") + row * 8)
        size = KV_BYTES[kv]
        with f.loop(0, op.heads) as head:
            at = base + head * (op.padded * 4)
            _head_norm(f, op, at, op.query_norm)
            _turn(f, at, turn, half, _real(op.scale))
        with f.loop(0, op.kv_heads) as head:
            at = base + (op.key_at + head * op.padded) * 4
            _head_norm(f, op, at, op.key_norm)
            _turn(f, at, turn, half, f.number(F32, 1.0))
            place, lane = (slot // LANES) * op.kv_heads + head, slot % LANES
            value = base + (op.value_at + head * op.padded) * 4
            if kv == "int8":
                step_at = (place * LANES + lane) * 4
                _to_integers(f, op, at, op.key_scales + step_at)
                _to_integers(f, op, value, op.value_scales + step_at)
            with f.loop(0, op.padded) as d:
                where = op.keys + (place * op.padded * LANES + d * LANES + lane) * size
                _store(f, kv, f.load(F32, at + d * 4), where, native=False)
            with f.loop(0, op.padded, LANES) as d:
                where = op.values + ((place * LANES + lane) * op.padded + d) * size
                _store(f, kv, f.load(_F16S, value + d * 4), where, native=target.native_halves)
    f.ret()
    return name


def _to_integers(f: Function, op: Operands, at: Value, step_at: Value) -> None:
    """Turns a head into whole numbers from -127 to 127 and stores the step that they are multiples of.

    What is not a finite number makes the step infinite or not a number, and so whatever is made of this head.
    """
    largest = f.var(f.number(_I16S, 0))
    with f.loop(0, op.padded, LANES) as d:
        largest.value = f.unsigned_max(largest.value, f.load(_I16S, at + d * 4) & 0x7FFFFFFF)
    step, factor = _step(f, f.fold(largest.value, f.unsigned_max).bits(F32))
    f.store(step, step_at)
    with f.loop(0, op.padded, LANES) as d:
        f.store(_nearest(f.load(_F16S, at + d * 4) * factor.splat(LANES)).to(F32), at + d * 4)


def _store(f: Function, kv: str, x: Value, where: Value, *, native: bool) -> None:
    """A finite number stays one: in half precision 65,504 is the largest."""
    if kv == "int8":
        f.store(x.to(I8), where)
        return
    if kv == "f16":
        most = f.number(x.type, LARGEST_HALF)
        cut = f.select(x > most, most, f.select(x < -most, -most, x))
        x = f.select(f.absolute(x) < math.inf, cut, x)
    numbers.store_float(f, kv, x, where, native=native)


def _head_norm(f: Function, op: Operands, at: Value, weight: Value) -> None:
    with f.when(weight.differs(0)):
        scale = _root(f, _squares(f, at, op.padded), op.head_dim, op.epsilon).splat(LANES)
        with f.loop(0, op.padded, LANES) as d:
            f.store(f.load(_F16S, at + d * 4) * scale * f.load(_F16S, weight + d * 4), at + d * 4)


def _turn(f: Function, at: Value, turn: Value, half: Value, scale: Value) -> None:
    """Turns the pairs (i, i + half) of a head, then scales it: eight pairs at a time, then one by one."""
    wide = half - half % 8
    for lanes, first, last in ((8, f.whole(0), wide), (1, wide, half)):
        kind = vector(F32, lanes)
        factor = scale.splat(lanes)
        with f.loop(first, last, lanes) as i:
            left, right = at + i * 4, at + (i + half) * 4
            a, b = f.load(kind, left), f.load(kind, right)
            cos, sin = f.load(kind, turn + i * 4), f.load(kind, turn + (i + half) * 4)
            f.store((a * cos - b * sin) * factor, left)
            f.store((b * cos + a * sin) * factor, right)
