"""Memory that machine code works on: aligned arrays, and words that both sides address by name."""

import mmap
import struct
import sys
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from chairlift.execute.cpu.words import LINE, WORD

_FLOAT, _DOUBLE, _WHOLE = struct.Struct("=f"), struct.Struct("=d"), struct.Struct("=q")
HUGE_PAGE = 2 << 20
HUGE_FROM = 8 << 20
"""Arrays from this size on get pages of their own."""


def aligned(count: int, dtype: DTypeLike) -> NDArray[Any]:
    """An array of zeros that begins a cache line. The system commits a page when it is first written to.

    Large ones ask for huge pages: kernels jump between places that are as far apart as pages, and each page must be looked up.
    """
    kind = np.dtype(dtype)
    size = count * kind.itemsize
    if size < HUGE_FROM:
        return _offset(np.zeros(size + LINE, dtype=np.uint8), size, LINE).view(kind)
    region = mmap.mmap(-1, size + HUGE_PAGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        region.madvise(mmap.MADV_HUGEPAGE)
    return _offset(np.frombuffer(region, dtype=np.uint8), size, HUGE_PAGE).view(kind)


def _offset(raw: NDArray[np.uint8], size: int, alignment: int) -> NDArray[np.uint8]:
    start = -raw.ctypes.data % alignment
    return raw[start : start + size]


class Words:
    """64-bit words with names, at a fixed address."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._index = {name: place for place, name in enumerate(names)}
        self._array = aligned(max(len(names), LINE // WORD), np.int64)
        self._view = memoryview(self._array.data)
        self.address = self._array.ctypes.data

    def at(self, name: str) -> int:
        """The address of a word."""
        return self.address + WORD * self._index[name]

    def get(self, name: str) -> int:
        return self._view[self._index[name]]

    def set(self, **values: int) -> None:
        for name, value in values.items():
            self._view[self._index[name]] = value


def float_word(value: float) -> int:
    """A float32 as the low half of a word."""
    return int.from_bytes(_FLOAT.pack(value), sys.byteorder)


def double_word(value: float) -> int:
    """A float64 as a word."""
    return _WHOLE.unpack(_DOUBLE.pack(value))[0]
