"""Integer products of weights and activations, one way for each instruction set; all give the same exact sums.

Knows how bytes of a group lie in registers; knows nothing of scales. In memory four consecutive inputs of one output lie side
by side, and `lanes` outputs make a vector; 4-bit weights have two such steps in the low and the high halves of their bytes.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from llvmlite import ir

from chairlift.execute.cpu.kernels.emit import I8, I16, I32, Function, Value, Variable, vector

STEP = 4
"""Inputs that one instruction multiplies for each output."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Where the operands of one group are: packed weights, and for every row its 8-bit activations and their sum."""

    weights: Value
    rows: Sequence[Value]
    vectors: int
    bits: int
    zero: int


class Dots(Protocol):
    """`products` gives [row][vector] of `lanes` 32-bit sums of (q - zero) * x over the inputs of steps `first` to `last`.

    `sums` are the rows' integer sums of x over the same inputs.
    """

    lanes: int

    def products(self, f: Function, tile: Tile, first: int, last: int, sums: Sequence[Value]) -> list[list[Value]]: ...


def _weight_bytes(tile: Tile, lanes: int, step: int, j: int) -> int:
    """Where the bytes of a step lie; with 4 bits two steps share theirs."""
    row = step // 2 if tile.bits == 4 else step
    return (row * tile.vectors + j) * lanes * STEP


def _activations(f: Function, row: Value, step: int, lanes: int) -> Value:
    """Four activations of a row, in every lane."""
    return f.load(I32, row + STEP * step).splat(lanes)


class Portable:
    """Plain vector arithmetic, byte by byte: right everywhere, fast nowhere. The test twin of the others."""

    def __init__(self, lanes: int = 8, *, unsigned: bool = False) -> None:
        self.lanes = lanes
        self._unsigned = unsigned

    def products(self, f: Function, tile: Tile, first: int, last: int, sums: Sequence[Value]) -> list[list[Value]]:
        offset = tile.zero + (128 if self._unsigned and tile.bits == 8 else 0)
        starts = [(total * -offset).splat(self.lanes) for total in sums]
        totals = [[f.var(start) for _ in range(tile.vectors)] for start in starts]
        together = 2 if tile.bits == 4 else 1
        row_bytes = tile.vectors * self.lanes * STEP
        with f.loop(first // together, last // together) as packed:
            weights = tile.weights + packed * row_bytes
            xs = [row + packed * (STEP * together) for row in tile.rows]
            for j in range(tile.vectors):
                words = f.load(vector(I32, self.lanes), weights + self.lanes * STEP * j)
                for step in range(together):
                    for byte in range(STEP):
                        weight = self._weight(words, tile.bits, step, byte)
                        for m, at in enumerate(xs):
                            x = f.load(I8, at + (STEP * step + byte)).to(I32).splat(self.lanes)
                            totals[m][j].value = totals[m][j].value + weight * x
        return [[total.value for total in row] for row in totals]

    def _weight(self, words: Value, bits: int, step: int, byte: int) -> Value:
        if bits == 4:
            return words.unsigned_shift(8 * byte + 4 * step) & 15
        if self._unsigned:
            return words.unsigned_shift(8 * byte) & 255
        return (words << (24 - 8 * byte)) >> 24


class Avx2:
    """256-bit integers without dot products: byte pairs are multiplied into 16 bits, where nothing can overflow."""

    lanes = 8

    def products(self, f: Function, tile: Tile, first: int, last: int, sums: Sequence[Value]) -> list[list[Value]]:
        return (self._nibbles if tile.bits == 4 else self._bytes)(f, tile, first, last, sums)

    def _nibbles(self, f: Function, tile: Tile, first: int, last: int, sums: Sequence[Value]) -> list[list[Value]]:
        """Eight steps of 2 * 15 * 127 stay below 2^15, so sums are widened once a group."""
        totals = _zeros(f, tile, _W16)
        with self._steps(f, tile, first // 2, last // 2, 2 * STEP) as (packed, rows):
            for part in range(2):
                shifted = [p.bits(_W16).unsigned_shift(4).bits(_B32) if part else p for p in packed]
                weights = [p & 15 for p in shifted]
                for m, row in enumerate(rows):
                    x = _activations(f, row, part, self.lanes).bits(_B32)
                    for j, weight in enumerate(weights):
                        totals[m][j].value = totals[m][j].value + _pairs(f, weight, x)
        ones = f.number(_W16, 1)
        return [
            [_less(_fours(f, total.value, ones), sums[m], tile.zero, self.lanes) for total in row]
            for m, row in enumerate(totals)
        ]

    def _bytes(self, f: Function, tile: Tile, first: int, last: int, sums: Sequence[Value]) -> list[list[Value]]:
        """The sign of the weight is moved to the activation: 2 * 128 * 127 stays below 2^15, but only once."""
        totals = _zeros(f, tile, _D8)
        ones = f.number(_W16, 1)
        with self._steps(f, tile, first, last, STEP) as (weights, rows):
            sizes = [_absolute(f, weight) for weight in weights]
            for m, row in enumerate(rows):
                x = _activations(f, row, 0, self.lanes).bits(_B32)
                for j, (weight, size) in enumerate(zip(weights, sizes, strict=True)):
                    signed = f.intrinsic("llvm.x86.avx2.psign.b", _B32, x, weight)
                    totals[m][j].value = totals[m][j].value + _fours(f, _pairs(f, size, signed), ones)
        return [[_less(total.value, sums[m], tile.zero, self.lanes) for total in row] for m, row in enumerate(totals)]

    @contextmanager
    def _steps(self, f: Function, tile: Tile, first: int, last: int, inputs: int) -> Iterator[tuple[list[Value], list[Value]]]:
        """The vectors of weights and the rows' places for each packed step of so many inputs.

        A loop at run time: written out, LLVM would order it so that registers run out and most operands go through memory.
        """
        size = tile.vectors * self.lanes * STEP
        with f.loop(first, last) as step:
            at = tile.weights + step * size
            weights = [f.load(_B32, at + self.lanes * STEP * j, align=32) for j in range(tile.vectors)]
            yield weights, [row + step * inputs for row in tile.rows]


class Vnni:
    """Dot products of unsigned with signed bytes, in 512 or 256 bits. 8-bit weights are stored plus 128."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes

    def products(self, f: Function, tile: Tile, first: int, last: int, sums: Sequence[Value]) -> list[list[Value]]:
        offset = tile.zero + (128 if tile.bits == 8 else 0)
        kind = vector(I8, self.lanes * STEP)
        totals = [[(sums[m] * -offset).splat(self.lanes)] * tile.vectors for m in range(len(tile.rows))]
        for step in range(first, last):
            weights = [self._weight(f, tile, step, j, kind) for j in range(tile.vectors)]
            for m, row in enumerate(tile.rows):
                x = _activations(f, row, step, self.lanes).bits(kind)
                for j, weight in enumerate(weights):
                    totals[m][j] = self._accumulate(f, totals[m][j], weight, x)
        return totals

    def _weight(self, f: Function, tile: Tile, step: int, j: int, kind: Any) -> Value:
        packed = f.load(kind, tile.weights + _weight_bytes(tile, self.lanes, step, j), align=self.lanes * STEP)
        if tile.bits == 8:
            return packed
        if step % 2:
            packed = packed.bits(vector(I16, self.lanes * STEP // 2)).unsigned_shift(4).bits(kind)
        return packed & 15

    def _accumulate(self, f: Function, total: Value, weight: Value, x: Value) -> Value:
        name = f"llvm.x86.avx512.vpdpbusd.{self.lanes * 32}"
        return f.intrinsic(name, total.type, total, weight, x)


_B32, _W16, _D8 = vector(I8, 32), vector(I16, 16), vector(I32, 8)


def _pairs(f: Function, unsigned: Value, signed: Value) -> Value:
    return f.intrinsic("llvm.x86.avx2.pmadd.ub.sw", _W16, unsigned, signed)


def _fours(f: Function, pairs: Value, ones: Value) -> Value:
    return f.intrinsic("llvm.x86.avx2.pmadd.wd", _D8, pairs, ones)


def _absolute(f: Function, x: Value) -> Value:
    """-128 becomes 128, read as an unsigned number."""
    return f.intrinsic("llvm.abs.v32i8", _B32, x, Value(f, ir.Constant(ir.IntType(1), 0)))


def _zeros(f: Function, tile: Tile, kind: Any) -> list[list[Variable]]:
    return [[f.var(f.number(kind, 0)) for _ in range(tile.vectors)] for _ in tile.rows]


def _less(total: Value, row_sum: Value, zero: int, lanes: int) -> Value:
    return total - (row_sum * zero).splat(lanes) if zero else total
