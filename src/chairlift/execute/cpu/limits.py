"""Measures what the machine can do: reading memory, and multiplying 8-bit integers, on the very threads that compute steps.

Knows a pool of threads and two instructions (`kernels.probes`); knows nothing of models.
"""

import statistics
from collections.abc import Callable

import numpy as np

from chairlift.core.costs import Limits
from chairlift.execute.cpu import words
from chairlift.execute.cpu.isa import CHAINS, SHAPES, Isa
from chairlift.execute.cpu.memory import Words, aligned
from chairlift.execute.cpu.operations import OPERATIONS
from chairlift.execute.cpu.pool import Pool

ARRAY_BYTES = 256 << 20
"""Much more than any cache keeps, so that all of it comes out of memory."""
PIECE_BYTES = 1 << 20
PIECE_OPERATIONS = 1 << 26
"""What a thread takes at once of each probe: long beside the taking, short beside the whole."""
PIECES_A_THREAD = 16
RUNS = 7


def measure(
    pool: Pool,
    *,
    isa: Isa,
    clock: Callable[[], float],
    array_bytes: int = ARRAY_BYTES,
    piece_operations: int = PIECE_OPERATIONS,
    runs: int = RUNS,
) -> Limits:
    """The median rates of some runs. Takes `array_bytes` of memory and about a second. Nothing else may be running."""
    read, multiply = ReadProbe(pool, array_bytes), DotProbe(pool, isa, piece_operations)
    return Limits(
        read_bytes_per_s=read.bytes / _median_s(read.run, clock, runs),
        int8_ops_per_s=multiply.operations / _median_s(multiply.run, clock, runs),
    )


def _median_s(run: Callable[[], None], clock: Callable[[], float], runs: int) -> float:
    times: list[float] = []
    for _ in range(runs + 1):
        began = clock()
        run()
        times.append(clock() - began)
    return statistics.median(times[1:])  # the first one wakes threads and clocks


class ReadProbe:
    """All threads together read an array once. `sums` has the sum of every piece, as 32-bit integers that wrap around."""

    def __init__(self, pool: Pool, size: int) -> None:
        pieces = max(1, size // PIECE_BYTES)
        self.bytes = pieces * PIECE_BYTES
        self.data = aligned(self.bytes // 4, np.int32)
        self.data[:] = np.arange(len(self.data), dtype=np.int32)  # pages that nobody has written to are all the same one
        self.sums = aligned(pieces, np.int32)
        self._program = _Program(
            pool, "probe_read", count=pieces, data=self.data.ctypes.data, bytes=PIECE_BYTES, sums=self.sums.ctypes.data
        )

    def run(self) -> None:
        self._program.run()


class DotProbe:
    """All threads together multiply what lies in their registers. The layouts are those of `kernels.probes`."""

    def __init__(self, pool: Pool, isa: Isa, piece_operations: int) -> None:
        chains, lanes = CHAINS[isa], SHAPES[isa].lanes
        size = 4 * lanes
        a_turn = 2 * chains.weights * chains.inputs * size * words.PROBE_STEPS
        self.turns = max(1, piece_operations // a_turn)
        pieces = PIECES_A_THREAD * pool.threads
        self.operations = pieces * self.turns * a_turn
        random = np.random.default_rng(0)
        self.weights = aligned(chains.weights * size, np.uint8).reshape(chains.weights, size)
        self.weights[:] = random.integers(0, 16, self.weights.shape)
        shape = (words.PROBE_SLABS, chains.inputs, words.PROBE_STEPS, size)
        self.inputs = aligned(int(np.prod(shape)), np.int8).reshape(shape)
        self.inputs[:] = random.integers(-127, 128, shape)
        self.sums = aligned(pieces * chains.weights * chains.inputs * lanes, np.int32).reshape(
            pieces, chains.weights, chains.inputs, lanes
        )
        self._program = _Program(
            pool,
            "probe_dot",
            count=pieces,
            weights=self.weights.ctypes.data,
            inputs=self.inputs.ctypes.data,
            turns=self.turns,
            sums=self.sums.ctypes.data,
        )

    def run(self) -> None:
        self._program.run()


class _Program:
    """A program of one instruction. The pool's own program is put back after every run."""

    def __init__(self, pool: Pool, name: str, *, count: int, **operands: int) -> None:
        self._pool = pool
        self._counter = aligned(words.LINE, np.uint8)
        self._count = Words(("count",))
        self._count.set(count=count)
        self._code = aligned(words.INSTRUCTION_WORDS, np.int64)
        row = {"opcode": OPERATIONS.index(name), "barrier": 1, "counter": self._counter.ctypes.data}
        for operand, value in (row | {"count": self._count.at("count")} | operands).items():
            self._code[words.OPERANDS[name].index(operand)] = value

    def run(self) -> None:
        state = self._pool.state
        before = {name: state.get(name) for name in ("program", "instructions")}
        state.set(program=self._code.ctypes.data, instructions=1)
        try:
            self._pool.run_on_all()
        finally:
            state.set(**before)
