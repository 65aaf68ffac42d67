"""Attention over the cache, paged or contiguous: one algorithm for every position, whether of a prompt or of an answer.

For one query: chunks of 64 positions, counted from absolute position 0, each with its largest score, in ascending order within
a segment of 1,024; segments one after another in ascending order ("online softmax", Milakov and Gimelshein, 2018). How many
queries go together, who computes a segment, and what else is in the batch changes no bit of it.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from chairlift.execute.cpu.kernels import numbers
from chairlift.execute.cpu.kernels.emit import F32, I32, I64, Function, Module, Value, vector
from chairlift.execute.cpu.kernels.gemm import Target
from chairlift.execute.cpu.kernels.work import Operands, claimed
from chairlift.execute.cpu.operations import KV_BYTES
from chairlift.execute.cpu.words import LINE, WORK_ITEM

LANES = 16
"""Positions whose keys lie side by side."""
CHUNK = 64
SEGMENT = 1024
MAX_ROWS = 32
"""Queries that go together, all heads counted."""
MAX_HEAD = 512
"""Elements of a head."""

_V = vector(F32, LANES)
_NEVER = -3.0e38
"""A score that is less than all real ones, and whose differences do not overflow."""

# Scratch of a thread, in bytes.
SCORES_AT = 0
LARGEST_AT = SCORES_AT + MAX_ROWS * CHUNK * 4
WEIGHTS_AT = LARGEST_AT + MAX_ROWS * 4
MIXED_AT = WEIGHTS_AT + MAX_ROWS * LANES * 4
TOTAL_LARGEST_AT = MIXED_AT + MAX_ROWS * MAX_HEAD * 4
TOTAL_WEIGHT_AT = TOTAL_LARGEST_AT + MAX_ROWS * 4
TOTAL_MIXED_AT = TOTAL_WEIGHT_AT + MAX_ROWS * 4
QUERIES_AT = TOTAL_MIXED_AT + MAX_ROWS * MAX_HEAD * 4
PLACES_AT = QUERIES_AT + MAX_ROWS * 8
_LIST = (CHUNK // LANES) * 8
SCRATCH_BYTES = PLACES_AT + 2 * _LIST


class _Item:
    """A piece of work, numbered over all heads, and where its operands are."""

    def __init__(self, f: Function, op: Operands, number: Value) -> None:
        address, head = op.state("work") + (number // op.kv_heads) * (8 * len(WORK_ITEM)), number % op.kv_heads
        for name in WORK_ITEM:
            setattr(self, name, f.load(I64, address + 8 * WORK_ITEM.index(name)))
        self.head = head
        self.rows = self.tokens * op.queries_a_key
        self.last = self.position + self.tokens - 1
        self.block_table = op.state("tables") + self.table * 4

    token: Value
    position: Value
    tokens: Value
    table: Value
    first: Value
    segments: Value
    partial: Value
    parts: Value


class Way(Protocol):
    """How it is known where positions lie. The 16 of a place lie side by side; places of a head are counted in the cache."""

    def find(self, f: Function, op: Operands, item: _Item, chunk: Value, half: int) -> None:
        """Leaves in the scratch where the places of a chunk are that begins at this position.

        The first half is for the chunk that is computed, the second for the one whose keys are asked for meanwhile.
        """
        ...

    def numbers(self, f: Function, scratch: Value, half: int = 0) -> Callable[[Value], Value]:
        """The numbers of the chunk's places, by what was left."""
        ...


class Paged:
    """Through the row's table of blocks: a list of four numbers for each chunk."""

    def find(self, f: Function, op: Operands, item: _Item, chunk: Value, half: int) -> None:
        """What lies behind the last position is a second name of it: nothing there is used."""
        with f.loop(0, CHUNK // LANES) as place:
            position = f.signed_min(chunk + place * LANES, item.last)
            block = f.load(I32, item.block_table + (position // op.block_size) * 4).to(I64)
            sub = block * (op.block_size // LANES) + (position % op.block_size) // LANES
            f.store(sub * op.kv_heads + item.head, op.scratch + PLACES_AT + half * _LIST + place * 8)

    def numbers(self, f: Function, scratch: Value, half: int = 0) -> Callable[[Value], Value]:
        return lambda place: f.load(I64, scratch + PLACES_AT + half * _LIST + place * 8)


class Contiguous:
    """By the first block of the row's run, and nothing else: the first number, and the distance from one to the next."""

    def find(self, f: Function, op: Operands, item: _Item, chunk: Value, half: int) -> None:
        """Behind the last position may be another's run, or nothing at all: only what asks ahead of time looks there."""
        place = item.table * (op.block_size // LANES) + chunk // LANES
        f.store(place * op.kv_heads + item.head, op.scratch + PLACES_AT + half * _LIST)
        f.store(op.kv_heads, op.scratch + PLACES_AT + half * _LIST + 8)

    def numbers(self, f: Function, scratch: Value, half: int = 0) -> Callable[[Value], Value]:
        at = scratch + PLACES_AT + half * _LIST
        first, distance = f.load(I64, at), f.load(I64, at + 8)
        return lambda place: first + place * distance


def add_attention(module: Module, target: Target, kinds: Sequence[str], way: Way) -> list[str]:
    """The instruction for each kind of cache; their names."""
    weigh, join, rescale = _weigh(module), _join(module), _rescale(module, way)
    return [_attend(module, target, way, kv, weigh, join, rescale if kv == "int8" else None) for kv in kinds]


def _attend(
    module: Module, target: Target, way: Way, kv: str, weigh: Function, join: Function, rescale: Function | None
) -> str:
    scores = {rows: _scores(module, target, way, kv, rows) for rows in range(1, target.shape.float_rows + 1)}
    mix = {rows: _mix(module, target, way, kv, rows) for rows in range(1, target.shape.float_rows + 1)}
    name = f"attend_{kv}"
    f = module.function(name, [I64, I64, I64], public=True)
    op = Operands(f, "attend")
    items = f.load(I64, op.count) * op.kv_heads
    with claimed(f, op, items) as number:
        item = _Item(f, op, number)
        # Most likely this thread's next one: its first keys are asked for at the end of this one.
        coming = _Item(f, op, f.signed_min(number + op.state("threads"), items - 1))
        _find_queries(f, op, item)
        _clear_totals(f, op, item)
        first = f.signed_max(item.first, _lowest(f, op, item) // SEGMENT)
        with f.loop(first, item.first + item.segments) as segment:
            _segment(f, op, way, item, coming, segment, scores, mix, weigh, rescale)
            with f.loop(0, item.rows) as row:
                largest, weights, mixed = _parts(op.scratch, row)
                f.store(f.fold(f.load(_V, weights), lambda a, b: a + b), weights)
                f.call(join.ir, largest, weights, mixed, *_totals(op.scratch, row), op.padded)
        with f.either(item.partial < 0) as (whole, part):
            with whole:
                _finish(f, op, item)
            with part:
                _share(f, op, item, join)
    f.ret()
    return name


def _share(f: Function, op: Operands, item: _Item, join: Function) -> None:
    """Leaves a segment for whoever is the last: that thread joins them all, in ascending order."""
    with f.loop(0, item.rows) as row:
        largest, weight, mixed = _totals(op.scratch, row)
        kept_largest, kept_weight, kept_mixed = _shared(op, item, item.first, row)
        f.store(f.load(F32, largest), kept_largest)
        f.store(f.load(F32, weight), kept_weight)
        with f.loop(0, op.padded, LANES) as d:
            f.store(f.load(_V, mixed + d * 4), kept_mixed + d * 4)
    arrived = _slot(op, item, f.whole(0))
    with f.when((f.fetch_add(arrived, f.whole(1)) + 1).equals(item.parts)):
        f.store(f.whole(0), arrived)
        _clear_totals(f, op, item)
        with f.loop(0, item.parts) as segment, f.loop(0, item.rows) as row:
            f.call(join.ir, *_shared(op, item, segment, row), *_totals(op.scratch, row), op.padded)
        _finish(f, op, item)


def _slot(op: Operands, item: _Item, segment: Value) -> Value:
    """Where a segment of this head is left: a cache line for the counter of those that have come, then the rows."""
    number = (item.partial + segment) * op.kv_heads + item.head
    return op.state("partials") + number * (op.queries_a_key * (op.padded + LANES) * 4 + LINE)


def _shared(op: Operands, item: _Item, segment: Value, row: Value) -> tuple[Value, Value, Value]:
    at = _slot(op, item, segment) + LINE + row * ((op.padded + LANES) * 4)
    return at, at + 4, at + 4 * LANES


def _parts(scratch: Value, row: Value) -> tuple[Value, Value, Value]:
    return scratch + LARGEST_AT + row * 4, scratch + WEIGHTS_AT + row * (4 * LANES), scratch + MIXED_AT + row * (4 * MAX_HEAD)


def _totals(scratch: Value, row: Value) -> tuple[Value, Value, Value]:
    return (
        scratch + TOTAL_LARGEST_AT + row * 4,
        scratch + TOTAL_WEIGHT_AT + row * 4,
        scratch + TOTAL_MIXED_AT + row * (4 * MAX_HEAD),
    )


def _find_queries(f: Function, op: Operands, item: _Item) -> None:
    """Rows are the query heads of the first token, then those of the next one."""
    group = op.queries_a_key
    with f.loop(0, item.rows) as row:
        token, head = item.token + row // group, item.head * group + row % group
        address = op.queries + (token * op.stride + head * op.padded) * 4
        f.store(address, op.scratch + QUERIES_AT + row * 8)


def _clear_totals(f: Function, op: Operands, item: _Item) -> None:
    with f.loop(0, item.rows) as row:
        largest, weight, mixed = _totals(op.scratch, row)
        _clear(f, largest, mixed, op.padded)
        f.store(f.number(F32, 0.0), weight)


def _clear(f: Function, largest: Value, mixed: Value, padded: Value) -> None:
    f.store(f.number(F32, _NEVER), largest)
    with f.loop(0, padded, LANES) as d:
        f.store(f.number(_V, 0.0), mixed + d * 4)


def _segment(
    f: Function,
    op: Operands,
    way: Way,
    item: _Item,
    coming: _Item,
    segment: Value,
    scores: dict[int, Function],
    mix: dict[int, Function],
    weigh: Function,
    rescale: Function | None,
) -> None:
    """One segment for all rows, into the rows' parts."""
    with f.loop(0, item.rows) as row:
        largest, weights, mixed = _parts(op.scratch, row)
        _clear(f, largest, mixed, op.padded)
        f.store(f.number(_V, 0.0), weights)
    begin = segment * SEGMENT
    end = f.signed_min(begin + SEGMENT, item.last + 1)
    lowest = f.signed_max(_lowest(f, op, item), begin)
    with f.loop((lowest // CHUNK) * CHUNK, end, CHUNK) as chunk:
        count = f.signed_min(end - chunk, f.whole(CHUNK))
        places = (count + (LANES - 1)) // LANES
        way.find(f, op, item, chunk, 0)
        with f.either(chunk + CHUNK <= item.last) as (more, done):
            with more:
                way.find(f, op, item, chunk + CHUNK, 1)
            with done:
                way.find(f, op, coming, _first_chunk(f, op, coming), 1)
        _by_rows(f, op, item, scores, places)
        with f.loop(0, item.rows) as row:
            here = item.position + row // op.queries_a_key
            low = f.select(op.window.equals(0), f.whole(0), here - op.window + 1) - chunk
            at = op.scratch + SCORES_AT + row * (4 * CHUNK)
            f.call(weigh.ir, at, places, low, here - chunk, *_parts(op.scratch, row), op.padded)
            if rescale is not None:
                f.call(rescale.ir, at, places, op.scratch, op.value_scales)
        _by_rows(f, op, item, mix, count)


def _lowest(f: Function, op: Operands, item: _Item) -> Value:
    """The first position that the first query sees."""
    behind = f.select(op.window.equals(0), f.whole(0), item.position - op.window + 1)
    return f.signed_max(behind, f.whole(0))


def _first_chunk(f: Function, op: Operands, item: _Item) -> Value:
    lowest = f.signed_max(_lowest(f, op, item), item.first * SEGMENT)
    return (lowest // CHUNK) * CHUNK


def _by_rows(f: Function, op: Operands, item: _Item, kernels: dict[int, Function], extent: Value) -> None:
    most = max(kernels)
    row = f.var(f.whole(0))

    def call(count: int) -> None:
        f.call(kernels[count].ir, op.scratch, row.value, extent, op.keys, op.values, op.key_scales, op.padded)

    with f.repeat(lambda: row.value + most <= item.rows):
        call(most)
        row.value = row.value + most
    left = item.rows - row.value
    for count in range(1, most):
        with f.when(left.equals(count)):
            call(count)


_KERNEL = [I64] * 7


def _scores(module: Module, target: Target, way: Way, kv: str, rows: int) -> Function:
    """Products of `rows` queries with the keys of each place, element by element in ascending order."""
    f = module.function(f"scores_{kv}_{rows}", _KERNEL)
    scratch, row, places, keys, values, scales, padded = f.arguments
    size = KV_BYTES[kv]
    numbered = way.numbers(f, scratch)
    queries = [f.load(I64, scratch + QUERIES_AT + (row + m) * 8) for m in range(rows)]
    with f.loop(0, places) as place:
        number = numbered(place)
        start = number * (padded * (LANES * size))
        at = keys + start
        sums = [f.var(f.number(_V, 0.0)) for _ in range(rows)]
        with f.loop(0, padded, 4) as d:
            for i in range(0, 4, 4 // size):
                f.prefetch(values + start + (d + i) * (LANES * size))
            for i in range(4):
                key = numbers.load_float(f, kv, LANES, at + (d + i) * (LANES * size), native=target.native_halves)
                for query, total in zip(queries, sums, strict=True):
                    total.value = f.fma(f.load(F32, query + (d + i) * 4).splat(LANES), key, total.value)
        for m, total in enumerate(sums):
            score = total.value * f.load(_V, scales + number * (4 * LANES)) if kv == "int8" else total.value
            f.store(score, scratch + SCORES_AT + (row + m) * (4 * CHUNK) + place * (4 * LANES))
    f.ret()
    return f


def _weigh(module: Module) -> Function:
    """Turns a row's scores of a chunk into weights and rescales what it has so far: online softmax.

    (scores, places, first lane seen, last lane seen, largest, weights, mixed, padded)
    """
    f = module.function("weigh", [I64] * 8)
    scores, places, low, high, largest_at, weights_at, mixed, padded = f.arguments
    lanes = f.numbers(vector(I32, LANES), range(LANES))
    never = f.number(_V, _NEVER)
    best = f.var(never)
    with f.loop(0, places) as place:
        at = scores + place * (4 * LANES)
        position = lanes + (place * LANES).to(I32).splat(LANES)
        seen_low, seen_high = low.to(I32).splat(LANES), high.to(I32).splat(LANES)
        score = f.load(_V, at)
        score = f.select(position >= seen_low, f.select(position <= seen_high, score, never), never)
        f.store(score, at)
        best.value = f.larger(best.value, score)
    before = f.load(F32, largest_at)
    chunk_best = f.fold(best.value, f.larger)
    after = f.larger(before, chunk_best)
    f.store(after, largest_at)
    total = f.var(f.load(_V, weights_at))
    with f.when(before.differs(after)):
        factor = numbers.exp(f, before - after)
        total.value = total.value * factor.splat(LANES)
        with f.loop(0, padded, LANES) as d:
            f.store(f.load(_V, mixed + d * 4) * factor.splat(LANES), mixed + d * 4)
    with f.loop(0, places) as place:
        at = scores + place * (4 * LANES)
        score = f.load(_V, at)
        weight = f.select(score.equals(never), f.number(_V, 0.0), numbers.exp(f, score - after.splat(LANES)))
        f.store(weight, at)
        total.value = total.value + weight
    f.store(total.value, weights_at)
    f.ret()
    return f


def _rescale(module: Module, way: Way) -> Function:
    """Multiplies a row's weights of a chunk by the steps of the values: (weights, places, scratch, steps)."""
    f = module.function("rescale", [I64] * 4)
    weights, places, scratch, scales = f.arguments
    numbered = way.numbers(f, scratch)
    with f.loop(0, places) as place:
        at = weights + place * (4 * LANES)
        f.store(f.load(_V, at) * f.load(_V, scales + numbered(place) * (4 * LANES)), at)
    f.ret()
    return f


def _mix(module: Module, target: Target, way: Way, kv: str, rows: int) -> Function:
    """Adds the values of a chunk by their weights, position by position in ascending order. `count` positions are read."""
    f = module.function(f"mix_{kv}_{rows}", _KERNEL)
    scratch, row, count, keys, values, _, padded = f.arguments
    size = KV_BYTES[kv]
    place_bytes = padded * (LANES * size)
    weights = [scratch + SCORES_AT + (row + m) * (4 * CHUNK) for m in range(rows)]
    mixed = [scratch + MIXED_AT + (row + m) * (4 * MAX_HEAD) for m in range(rows)]
    numbered, coming = way.numbers(f, scratch), way.numbers(f, scratch, half=1)
    with f.loop(0, padded, LANES) as d:
        sums = [f.var(f.load(_V, at + d * 4)) for at in mixed]
        with f.loop(0, count, LANES) as first:
            start = values + numbered(first // LANES) * place_bytes + d * size
            ahead = keys + coming(first // LANES) * place_bytes + d * size
            with f.loop(0, f.signed_min(count - first, f.whole(LANES))) as position:
                f.prefetch(ahead + position * padded * size)
                value = numbers.load_float(f, kv, LANES, start + position * padded * size, native=target.native_halves)
                for weight, total in zip(weights, sums, strict=True):
                    share = f.load(F32, weight + (first + position) * 4).splat(LANES)
                    total.value = f.fma(share, value, total.value)
        for at, total in zip(mixed, sums, strict=True):
            f.store(total.value, at + d * 4)
    f.ret()
    return f


def _join(module: Module) -> Function:
    """Adds a segment to what came before it: (largest, weight, mixed, the same of the total, padded)."""
    f = module.function("join", [I64] * 7)
    largest_at, weight_at, mixed, total_largest_at, total_weight_at, total_mixed, padded = f.arguments
    weight = f.load(F32, weight_at)
    here, before = f.load(F32, largest_at), f.load(F32, total_largest_at)
    after = f.larger(before, here)
    old, new = numbers.exp(f, before - after), numbers.exp(f, here - after)
    f.store(after, total_largest_at)
    f.store(f.fma(weight, new, f.load(F32, total_weight_at) * old), total_weight_at)
    with f.loop(0, padded, LANES) as d:
        at = total_mixed + d * 4
        f.store(f.fma(f.load(_V, mixed + d * 4), new.splat(LANES), f.load(_V, at) * old.splat(LANES)), at)
    f.ret()
    return f


def _finish(f: Function, op: Operands, item: _Item) -> None:
    """Divides by the sum of the weights and hands the rows on."""
    group = op.queries_a_key
    with f.loop(0, item.rows) as row:
        token, head = item.token + row // group, item.head * group + row % group
        out = op.out + (token * op.out_stride + head * op.padded) * 4
        _, weight_at, mixed = _totals(op.scratch, row)
        weight = f.load(F32, weight_at).splat(LANES)
        with f.loop(0, op.padded, LANES) as d:
            f.store(f.load(_V, mixed + d * 4) / weight, out + d * 4)
