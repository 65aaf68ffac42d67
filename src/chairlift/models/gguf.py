"""Reads the GGUF container (versions 2 and 3, little-endian): metadata, the index of tensors, and single tensors as float32.

Knows the file format and its block formats; knows nothing of architectures. Specification: ggml's `docs/gguf.md`. A file is not
trusted: everything is measured against its size before it is believed, and whatever is wrong is a ModelError of one line.
"""

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from chairlift.core.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_TENSORS = 100_000
MAX_KEYS = 100_000
MAX_NAME = 1 << 16
MAX_STRING = 1 << 26
MAX_ARRAY = 1 << 24
MAX_NESTING = 4
MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 1 << 16
DEFAULT_ALIGNMENT = 32

_STRING, _ARRAY, _BOOL = 8, 9, 7
_NUMBERS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "|u1", 10: "<u8", 11: "<i8", 12: "<f8"}


class CutHeader(ModelError):
    """The bytes end before the header does. Whoever reads a file piece by piece takes it as a request for more."""


class Buffer(Protocol):
    """Bytes or a mapped file: a slice of it is bytes."""

    def __getitem__(self, where: slice, /) -> bytes: ...
    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class TensorType:
    """A way of storing numbers: blocks of `elements` numbers that take `bytes` bytes. `code` is ggml's number for it."""

    name: str
    code: int
    elements: int
    bytes: int


TENSOR_TYPES: Mapping[int, TensorType] = MappingProxyType(
    {
        kind.code: kind
        for kind in (
            TensorType("F32", 0, 1, 4),
            TensorType("F16", 1, 1, 2),
            TensorType("Q4_0", 2, 32, 18),
            TensorType("Q4_1", 3, 32, 20),
            TensorType("Q5_0", 6, 32, 22),
            TensorType("Q5_1", 7, 32, 24),
            TensorType("Q8_0", 8, 32, 34),
            TensorType("Q4_K", 12, 256, 144),
            TensorType("Q5_K", 13, 256, 176),
            TensorType("Q6_K", 14, 256, 210),
            TensorType("BF16", 30, 1, 2),
        )
    }
)
"""The tensor types that can be read, by ggml's code."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where a tensor lies. `shape` is row-major (the last dimension is contiguous); `offset` counts from the file's start."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Header:
    """All that a GGUF file says before its data. `data_start` is where the tensors begin, in bytes from the file's start."""

    version: int
    metadata: Mapping[str, object]
    tensors: Mapping[str, Tensor]
    data_start: int


@dataclass(frozen=True)
class GgufFile:
    """An open GGUF file. Tensors are read when they are asked for."""

    path: Path
    header: Header
    buffer: mmap.mmap

    def raw(self, name: str, first: int = 0, end: int | None = None) -> NDArray[np.uint8]:
        """The stored bytes of a tensor's rows, copied: (rows, bytes of a row), where a row is the last dimension."""
        tensor = self.header.tensors[name]
        row = tensor.shape[-1] // tensor.type.elements * tensor.type.bytes
        stop = tensor.size if end is None else end * row
        data = self.buffer[tensor.offset + first * row : tensor.offset + stop]
        return np.frombuffer(data, dtype=np.uint8).reshape(-1, row)

    def float32(self, name: str) -> NDArray[np.float32]:
        """The tensor as float32 of its shape, dequantised if need be. It is always a copy, and writable."""
        tensor = self.header.tensors[name]
        return dequantize(self.raw(name), tensor.type).reshape(tensor.shape)

    def close(self) -> None:
        self.buffer.close()


def dequantize(rows: NDArray[np.uint8], kind: TensorType) -> NDArray[np.float32]:
    """Rows of stored bytes as rows of float32 numbers."""
    if kind.name == "F32":
        return rows.view("<f4").astype(np.float32)
    if kind.name == "F16":
        return rows.view("<f2").astype(np.float32)
    if kind.name == "BF16":
        return (rows.view("<u2").astype(np.uint32) << 16).view(np.float32)
    # Imported here because a model that is only looked at, or that is not quantised, does not need it.
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize as dequantize_blocks

    with np.errstate(all="ignore"):  # a broken file may hold scales that are not numbers: they are passed on as they are
        return dequantize_blocks(rows, GGMLQuantizationType(kind.code))


def open_gguf(path: Path) -> GgufFile:
    """Maps a file and reads its header. ModelError says in one line what is wrong with it."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size == 0:
                raise ModelError(f"{path}: the file is empty")
            buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        return GgufFile(path, read_header(buffer, size=size), buffer)
    except ModelError as error:
        buffer.close()
        raise ModelError(f"{path}: {error}") from None


def read_header(buffer: Buffer, *, size: int) -> Header:
    """Reads the header of a file of `size` bytes that begins with `buffer`, and checks that every tensor lies within it.

    Raises CutHeader if the buffer ends too early, another ModelError if the header makes no sense.
    """
    cursor = _Cursor(buffer)
    version, tensor_count, key_count = _read_counts(cursor)
    metadata: dict[str, object] = {}
    for _ in range(key_count):
        key = cursor.name()
        if key in metadata:
            raise ModelError(f"metadata key {key!r} stands there twice")
        metadata[key] = _read_value(cursor, cursor.u32(), depth=0)
    entries = [_read_tensor(cursor) for _ in range(tensor_count)]
    alignment = _alignment(metadata)
    data_start = -(-cursor.position // alignment) * alignment
    tensors = _place(entries, data_start=data_start, alignment=alignment, size=size)
    return Header(version, MappingProxyType(metadata), MappingProxyType(tensors), data_start)


class _Cursor:
    """A position in the bytes. All reads go forward and fail at the end."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.position = 0
        self.end = len(buffer)

    def take(self, count: int) -> bytes:
        start, self.position = self.position, self.position + count
        if self.position > self.end:
            raise CutHeader(f"the file is cut: it ends in the middle of its header, after {self.end:,} bytes")
        return self.buffer[start : self.position]

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def string(self, limit: int = MAX_STRING) -> bytes:
        length = self.u64()
        if length > limit:
            raise ModelError(f"a text of {length:,} bytes in the header: the limit is {limit:,}")
        return self.take(length)

    def name(self) -> str:
        try:
            return self.string(MAX_NAME).decode()
        except UnicodeDecodeError:
            raise ModelError("a name in the header is not UTF-8") from None

    def strings(self, count: int) -> list[str]:
        """The hot loop: a vocabulary has hundreds of thousands of texts, so it does without the methods above."""
        buffer, position, end, texts = self.buffer, self.position, self.end, list[str]()
        for _ in range(count):
            start = position + 8
            position = start + int.from_bytes(buffer[position:start], "little")
            if position > end or start > end:
                break
            texts.append(str(buffer[start:position], "utf-8"))
        if len(texts) < count:
            self.take(self.end + 1)
        self.position = position
        return texts


def _read_counts(cursor: _Cursor) -> tuple[int, int, int]:
    if cursor.buffer[:4] != MAGIC[: cursor.end] or cursor.end < 4:
        raise ModelError("not a GGUF file")
    cursor.take(4)
    version = cursor.u32()
    if version and version & 0xFFFF == 0:
        raise ModelError("a big-endian GGUF file: only little-endian ones are supported")
    if version not in VERSIONS:
        raise ModelError(f"GGUF version {version} is not supported: only {' and '.join(map(str, VERSIONS))} are")
    tensors, keys = cursor.u64(), cursor.u64()
    for what, count, limit in (("tensors", tensors, MAX_TENSORS), ("metadata keys", keys, MAX_KEYS)):
        if count > limit:
            raise ModelError(f"a header with {count:,} {what}: the limit is {limit:,}")
    return version, tensors, keys


def _read_value(cursor: _Cursor, kind: int, *, depth: int) -> object:
    if kind == _STRING:
        # Free text such as an author's name is no reason to refuse a model, so bad bytes are replaced here.
        return cursor.string().decode(errors="replace")
    if kind == _ARRAY:
        return _read_array(cursor, depth=depth + 1)
    numbers = _number_type(kind)
    value = np.frombuffer(cursor.take(numbers.itemsize), dtype=numbers)[0].item()
    return bool(value) if kind == _BOOL else value


def _read_array(cursor: _Cursor, *, depth: int) -> list[object]:
    kind, count = cursor.u32(), cursor.u64()
    if depth > MAX_NESTING:
        raise ModelError(f"metadata arrays nested more than {MAX_NESTING} deep")
    if count > MAX_ARRAY:
        raise ModelError(f"a metadata array of {count:,} values: the limit is {MAX_ARRAY:,}")
    if kind == _STRING:
        try:
            return list(cursor.strings(count))
        except UnicodeDecodeError:
            raise ModelError("a list of texts in the header is not UTF-8") from None
    if kind == _ARRAY:
        return [_read_array(cursor, depth=depth + 1) for _ in range(count)]
    numbers = _number_type(kind)
    values = np.frombuffer(cursor.take(count * numbers.itemsize), dtype=numbers)
    return (values.astype(bool) if kind == _BOOL else values).tolist()


def _number_type(kind: int) -> np.dtype[np.generic]:
    if kind not in _NUMBERS:
        raise ModelError(f"metadata value type {kind} is unknown")
    return np.dtype(_NUMBERS[kind])


def _read_tensor(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """One entry of the index: name, row-major shape, type code, offset within the data."""
    name = cursor.name()
    dimensions = cursor.u32()
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise ModelError(f"tensor {name!r} has {dimensions} dimensions: 1 to {MAX_DIMENSIONS} are possible")
    shape = tuple(cursor.u64() for _ in range(dimensions))[::-1]
    return name, shape, cursor.u32(), cursor.u64()


def _alignment(metadata: Mapping[str, object]) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(value, int) or not 1 <= value <= MAX_ALIGNMENT or value & (value - 1):
        raise ModelError(f"general.alignment must be a power of two up to {MAX_ALIGNMENT:,}, not {value!r:.40}")
    return value


def _place(
    entries: list[tuple[str, tuple[int, ...], int, int]], *, data_start: int, alignment: int, size: int
) -> dict[str, Tensor]:
    """The index with absolute offsets, after checking that tensors are readable, apart from each other and inside the file."""
    tensors: dict[str, Tensor] = {}
    for name, shape, code, offset in entries:
        if name in tensors:
            raise ModelError(f"tensor {name!r} stands there twice")
        if offset % alignment:
            raise ModelError(f"tensor {name!r} begins at {offset:,}, which is no multiple of the alignment {alignment}")
        kind = _tensor_type(name, code)
        tensors[name] = Tensor(name, shape, kind, data_start + offset, _stored_size(name, shape, kind))
    end = data_start
    for tensor in sorted(tensors.values(), key=lambda tensor: tensor.offset):
        if tensor.offset < end:
            raise ModelError(f"tensor {tensor.name!r} overlaps the one before it")
        end = tensor.offset + tensor.size
        if end > size:
            raise ModelError(f"the file is cut: tensor {tensor.name!r} needs {end:,} bytes, the file has {size:,}")
    return tensors


def _tensor_type(name: str, code: int) -> TensorType:
    kind = TENSOR_TYPES.get(code)
    if kind is not None:
        return kind
    from gguf.constants import GGMLQuantizationType

    known = {member.value: member.name for member in GGMLQuantizationType}
    supported = ", ".join(kind.name for kind in TENSOR_TYPES.values())
    raise ModelError(f"tensor {name!r} is of type {known.get(code, code)}, which is not supported: only {supported} are")


def _stored_size(name: str, shape: tuple[int, ...], kind: TensorType) -> int:
    if 0 in shape:
        raise ModelError(f"tensor {name!r} has an empty dimension: {shape}")
    if shape[-1] % kind.elements:
        raise ModelError(f"tensor {name!r} has rows of {shape[-1]:,}, which is no multiple of {kind.name}'s {kind.elements}")
    size = kind.bytes * (shape[-1] // kind.elements)
    for length in shape[:-1]:
        size *= length
    return size
