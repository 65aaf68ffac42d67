"""Memory that machine code works on: aligned arrays, and words that both sides address by name."""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from chairlift.execute.cpu.words import LINE, WORD


def aligned(count: int, dtype: DTypeLike) -> NDArray[Any]:
    """An array that begins a cache line. It is left unwritten: the system commits a page when it is first used."""
    kind = np.dtype(dtype)
    raw = np.empty(count * kind.itemsize + LINE, dtype=np.uint8)
    start = -raw.ctypes.data % LINE
    return raw[start : start + count * kind.itemsize].view(kind)


def zeros(count: int, dtype: DTypeLike) -> NDArray[Any]:
    array = aligned(count, dtype)
    array[:] = 0
    return array


class Words:
    """64-bit words with names, at a fixed address."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._index = {name: place for place, name in enumerate(names)}
        self.array = zeros(max(len(names), LINE // WORD), np.int64)

    @property
    def address(self) -> int:
        return self.array.ctypes.data

    def at(self, name: str) -> int:
        """The address of a word."""
        return self.address + WORD * self._index[name]

    def set(self, **values: int) -> None:
        for name, value in values.items():
            self.array[self._index[name]] = value


def float_word(value: float) -> int:
    """A float32 as the low half of a word."""
    return int(np.float32(value).view(np.uint32))


def double_word(value: float) -> int:
    """A float64 as a word."""
    return int(np.float64(value).view(np.int64))
