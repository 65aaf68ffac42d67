"""Compiled kernels for tests, and a bench that runs a single instruction on arrays.

Object files are kept where commands keep theirs, so that only a change of the kernels compiles anything.
"""

import os
from array import array
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chairlift.compose import KERNELS
from chairlift.execute.cpu import native, words
from chairlift.execute.cpu.isa import SHAPES, Isa, available
from chairlift.execute.cpu.memory import Words, aligned
from chairlift.models.fetch import cache_dir

OBJECTS = cache_dir(os.environ) / KERNELS
HOST = native.Host.detect()
HOST_ISAS: tuple[Isa, ...] = available(HOST.features)
EMULATED: tuple[Isa, ...] = tuple(isa for isa in SHAPES if isa not in HOST_ISAS)
"""Instruction sets that this processor lacks: their layouts and tiles run here with their dot products written out."""


@cache
def kernels(isa: Isa, *, emulate: bool = False) -> native.Native:
    if not emulate:
        return native.load(isa, HOST, cache=OBJECTS)
    store, name = native.ObjectStore(OBJECTS), native.key(isa, HOST) + "-emulated"
    code = store.read(name)
    if code is None:
        code = native.compile_code(isa, HOST, emulate=True)
        store.write(name, code)
    return native.link(code, HOST)


class Bench:
    """Runs one instruction on this thread. Arrays among the operands stand for their addresses."""

    def __init__(self, code: native.Native, *, scratch_bytes: int = 1 << 22) -> None:
        self._code = code
        self._scratch = aligned(scratch_bytes, np.uint8)

    def run(self, name: str, kind: str, *, count: int, state: dict[str, Any] | None = None, **operands: Any) -> None:
        shared, row = Words(words.STATE), Words(words.OPERANDS[kind])
        shared.set(tokens=count, **{key: _word(value) for key, value in (state or {}).items()})
        counter = aligned(8, np.int64)
        row.set(count=shared.at("tokens"), counter=counter.ctypes.data)
        row.set(**{key: _word(value) for key, value in operands.items()})
        self._code.entry(name, 3)(row.address, shared.address, self._scratch.ctypes.data)


def _word(value: "int | NDArray[Any] | array[int]") -> int:
    if isinstance(value, array):
        return value.buffer_info()[0]
    return value if isinstance(value, int) else value.ctypes.data
