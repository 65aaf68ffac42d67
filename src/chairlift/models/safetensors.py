"""Tensors in safetensors files, one or several: where each lies, and reading it as float32. Knows nothing of models.

The `safetensors` library checks a file's header and lists its tensors; the bytes are read here, as the library cannot hand out
BF16 through NumPy.
"""

import json
import math
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from chairlift.core.errors import ModelError
from chairlift.models.fields import Fields

DTYPES: Mapping[str, str] = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""The supported types, and how their numbers look to NumPy (which has no BF16)."""

LENGTH_BYTES = 8
"""A file begins with the length of its header in so many bytes; the header itself is JSON."""

MAX_HEADER_BYTES = 100_000_000
"""The library's own limit."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies: its file's mapped bytes, and its offset there."""

    buffer: mmap.mmap
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class TensorFiles:
    """Open safetensors files and all their tensors by name."""

    tensors: Mapping[str, StoredTensor]
    buffers: Sequence[mmap.mmap]

    def raw(self, name: str, first: int, end: int) -> NDArray[np.uint8]:
        """The stored bytes of rows of a matrix, copied: (rows, bytes of a row)."""
        tensor = self.tensors[name]
        row = tensor.shape[-1] * np.dtype(DTYPES[tensor.dtype]).itemsize
        data = tensor.buffer[tensor.offset + first * row : tensor.offset + end * row]
        return np.frombuffer(data, dtype=np.uint8).reshape(end - first, row)

    def float32(self, name: str) -> NDArray[np.float32]:
        """The tensor as float32; always a copy, and writable."""
        tensor = self.tensors[name]
        numbers = np.dtype(DTYPES[tensor.dtype])
        data = tensor.buffer[tensor.offset : tensor.offset + tensor.elements * numbers.itemsize]
        values = np.frombuffer(data, dtype=numbers).reshape(tensor.shape)
        if tensor.dtype == "BF16":
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(np.float32)

    def close(self) -> None:
        for buffer in self.buffers:
            buffer.close()


def open_safetensors(paths: Sequence[Path]) -> TensorFiles:
    """Maps the files and reads their headers. ModelError names the file and what is wrong with it."""
    tensors: dict[str, StoredTensor] = {}
    buffers: list[mmap.mmap] = []
    files = TensorFiles(tensors, buffers)
    try:
        for path in paths:
            _add(path, tensors, buffers)
    except ModelError:
        files.close()
        raise
    return files


def header_end(start: bytes) -> int:
    """Where the header of a file ends that begins with these 8 bytes. ModelError if that cannot be."""
    length = int.from_bytes(start[:LENGTH_BYTES], "little")
    if len(start) < LENGTH_BYTES or length > MAX_HEADER_BYTES:
        raise ModelError("not a whole safetensors file")
    return LENGTH_BYTES + length


def header_shapes(data: bytes) -> dict[str, tuple[int, ...]]:
    """The shapes of a file's tensors, by no more than its beginning. ModelError if one is of a type that is not supported."""
    try:
        header = json.loads(data[LENGTH_BYTES : header_end(data)])
    except (ValueError, RecursionError):
        raise ModelError("not a whole safetensors file") from None
    tensors = Fields({"header": header}, "safetensors").group("header")
    shapes: dict[str, tuple[int, ...]] = {}
    for name in tensors.values:
        if name == "__metadata__":
            continue
        _check_dtype(name, tensors.group(name).text("dtype"))
        shapes[name] = tensors.group(name).integers("shape")
    return shapes


def _check_dtype(name: str, dtype: str) -> None:
    if dtype not in DTYPES:
        raise ModelError(f"tensor {name!r:.80} is of type {dtype:.40}: only {', '.join(DTYPES)} are supported")


def _add(path: Path, tensors: dict[str, StoredTensor], buffers: list[mmap.mmap]) -> None:
    try:
        listed = _list(path)
        with path.open("rb") as file:
            buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None
    except SafetensorError as error:
        raise ModelError(f"{path}: not a whole safetensors file: {error}") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from None
    buffers.append(buffer)
    offset = LENGTH_BYTES + int.from_bytes(buffer[:LENGTH_BYTES], "little")
    for name, dtype, shape in listed:
        if name in tensors:
            raise ModelError(f"{path}: tensor {name!r} stands in another file as well")
        tensors[name] = StoredTensor(buffer, dtype, shape, offset)
        offset += tensors[name].elements * np.dtype(DTYPES[dtype]).itemsize


def _list(path: Path) -> list[tuple[str, str, tuple[int, ...]]]:
    """Name, type and shape of each tensor in the order of the data, which has no holes: the library has checked that."""
    listed: list[tuple[str, str, tuple[int, ...]]] = []
    with safe_open(path, framework="np") as file:  # pyright: ignore[reportGeneralTypeIssues, reportUnknownVariableType]
        for name in file.offset_keys():
            part = file.get_slice(name)
            dtype = str(part.get_dtype())
            _check_dtype(name, dtype)
            listed.append((name, dtype, tuple(part.get_shape())))
    return listed
