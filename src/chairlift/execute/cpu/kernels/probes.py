"""What the processor can do at best: reading memory, and multiplying bytes that are in registers already.

Knows one loop for each; knows nothing of models. Both leave sums behind, so that nothing can be optimised away, and so that it
can be checked that all of it was done.
"""

from typing import Any, Protocol

from chairlift.execute.cpu.isa import CHAINS
from chairlift.execute.cpu.kernels.dots import STEP, Avx2, Vnni
from chairlift.execute.cpu.kernels.emit import I8, I16, I32, I64, Function, Module, Value, Variable, vector
from chairlift.execute.cpu.kernels.gemm import PREFETCH_AHEAD, Target
from chairlift.execute.cpu.kernels.work import Operands, claimed
from chairlift.execute.cpu.words import LINE, PROBE_SLABS, PROBE_STEPS

LANES = LINE // 4
LINES = 8
"""Cache lines to one turn of the reading loop."""


def add_read(module: Module) -> str:
    """Adds up each piece of `bytes` bytes as 32-bit integers, which wrap around: one sum for every piece."""
    f = module.function("probe_read", [I64, I64, I64], public=True)
    op = Operands(f, "probe_read")
    kind = vector(I32, LANES)
    with claimed(f, op, f.load(I64, op.count)) as piece:
        sums = [f.var(f.number(kind, 0)) for _ in range(LINES)]
        start = op.data + piece * op.bytes
        with f.loop(start, start + op.bytes, LINES * LINE) as at:
            for line, total in enumerate(sums):
                f.prefetch(at + (PREFETCH_AHEAD + LINE * line))
                total.value = total.value + f.load(kind, at + LINE * line)
        whole = sums[0].value
        for total in sums[1:]:
            whole = whole + total.value
        f.store(f.fold(whole, lambda a, b: a + b), op.sums + piece * 4)
    f.ret()
    return "probe_read"


def add_dot(module: Module, target: Target) -> str:
    """Sums of products of unsigned bytes (weights, below 16) with signed ones, for all pairs of the chains.

    Weights are [chains.weights, bytes of a vector], inputs [PROBE_SLABS, chains.inputs, PROBE_STEPS, bytes of a vector]. Turn
    after turn takes the next slab. Every piece leaves [chains.weights, chains.inputs, lanes] 32-bit sums, which wrap around.
    """
    f = module.function("probe_dot", [I64, I64, I64], public=True)
    op = Operands(f, "probe_dot")
    chains, lanes = CHAINS[target.isa], target.shape.lanes
    size = lanes * STEP
    dots = _dots(target)
    with claimed(f, op, f.load(I64, op.count)) as piece:
        weights = [f.load(vector(I8, size), op.weights + size * w) for w in range(chains.weights)]
        totals = [[f.var(f.number(vector(I32, lanes), 0)) for _ in range(chains.inputs)] for _ in weights]
        with f.loop(0, op.turns) as turn:
            slab = op.inputs + (turn % PROBE_SLABS) * (chains.inputs * PROBE_STEPS * size)
            dots.add(f, totals, weights, slab)
        out = op.sums + piece * (chains.weights * chains.inputs * lanes * 4)
        for w, row in enumerate(totals):
            for x, total in enumerate(row):
                f.store(total.value, out + (w * chains.inputs + x) * lanes * 4)
    f.ret()
    return "probe_dot"


class _Dots(Protocol):
    """Adds the products of all weights with the vectors of a slab."""

    def add(self, f: Function, totals: list[list[Variable]], weights: list[Value], slab: Value) -> None: ...


def _dots(target: Target) -> _Dots:
    if isinstance(target.dots, Vnni):
        return _VnniDots(target.shape.lanes)
    return _PairDots() if isinstance(target.dots, Avx2) else _PlainDots(target.shape.lanes)


def _input(f: Function, slab: Value, x: int, step: int | Value, size: int) -> Value:
    return f.load(vector(I8, size), slab + step * size + x * PROBE_STEPS * size)


class _VnniDots:
    """One instruction for the product, the sum of four and the addition."""

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes

    def add(self, f: Function, totals: list[list[Variable]], weights: list[Value], slab: Value) -> None:
        kind = vector(I32, self._lanes)
        for step in range(PROBE_STEPS):
            for x in range(len(totals[0])):
                value = _input(f, slab, x, f.whole(step), self._lanes * STEP)
                for weight, row in zip(weights, totals, strict=True):
                    name = f"llvm.x86.avx512.vpdpbusd.{self._lanes * 32}"
                    row[x].value = f.intrinsic(name, kind, row[x].value, weight, value)


class _PairDots:
    """Pairs are added up in 16 bits, where eight steps of weights below 16 have room, then widened, as with 4-bit weights."""

    def add(self, f: Function, totals: list[list[Variable]], weights: list[Value], slab: Value) -> None:
        words, sums = vector(I16, 16), vector(I32, 8)
        pairs = [[f.var(f.number(words, 0)) for _ in row] for row in totals]
        with f.loop(0, PROBE_STEPS, 2) as step:
            for part in range(2):
                for x in range(len(totals[0])):
                    value = _input(f, slab, x, step + part, 32)
                    for weight, row in zip(weights, pairs, strict=True):
                        row[x].value = row[x].value + f.intrinsic("llvm.x86.avx2.pmadd.ub.sw", words, weight, value)
        ones = f.number(words, 1)
        for row, narrow in zip(totals, pairs, strict=True):
            for total, pair in zip(row, narrow, strict=True):
                total.value = total.value + f.intrinsic("llvm.x86.avx2.pmadd.wd", sums, pair.value, ones)


class _PlainDots:
    """Byte by byte, as the portable products are."""

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes

    def add(self, f: Function, totals: list[list[Variable]], weights: list[Value], slab: Value) -> None:
        with f.loop(0, PROBE_STEPS) as step:
            for x in range(len(totals[0])):
                value = _input(f, slab, x, step, self._lanes * STEP)
                for weight, row in zip(weights, totals, strict=True):
                    for byte in range(STEP):
                        row[x].value = row[x].value + self._signed(weight, byte) * self._signed(value, byte)

    def _signed(self, packed: Value, byte: int) -> Value:
        words: Any = vector(I32, self._lanes)
        return (packed.bits(words) << (24 - 8 * byte)) >> 24
