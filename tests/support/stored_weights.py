"""Weights as a file would hold them, of any type, without a file: random blocks with moderate scales."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from chairlift.models.description import Description

QUANTISED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
FLOATS = ("F32", "F16", "BF16")

_HALVES_AT = {"Q4_0": (0,), "Q5_0": (0,), "Q8_0": (0,), "Q6_K": (208,)}


def stored_blocks(kind: str, rows: int, inputs: int, seed: int = 1) -> NDArray[np.uint8]:
    """Rows of a quantised type. Random bytes, but for the exponents of scales, which stay moderate."""
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    data = np.random.default_rng(seed).integers(0, 256, (rows, inputs // block, size), dtype=np.uint8)
    for at in _HALVES_AT.get(kind, (0, 2)):
        data[:, :, at + 1] = data[:, :, at + 1] & 0b10000011 | 0b00101000
    return data.reshape(rows, -1)


def stored_floats(kind: str, rows: int, inputs: int, seed: int = 1) -> NDArray[np.uint8]:
    values = np.random.default_rng(seed).standard_normal((rows, inputs)).astype(np.float32)
    if kind == "BF16":
        return (values.view(np.uint32) >> 16).astype("<u2").view(np.uint8)
    return values.astype({"F32": "<f4", "F16": "<f2"}[kind]).view(np.uint8)


@dataclass(frozen=True)
class StoredTensors:
    """All matrices of one type, or of the types that `others` gives the last parts of their names. Vectors are ones."""

    description: Description
    main: str
    others: Mapping[str, str]

    def kind(self, name: str) -> str:
        return self.others.get(name.rpartition(".")[2], self.main)

    def raw(self, name: str, first: int, end: int) -> NDArray[np.uint8]:
        rows, inputs = self.description.layout()[name]
        make = stored_floats if self.kind(name) in FLOATS else stored_blocks
        return make(self.kind(name), rows, inputs, zlib.crc32(name.encode()))[first:end]

    def interleaved(self, name: str) -> bool:
        return False

    def float32(self, name: str) -> NDArray[np.float32]:
        shape = self.description.layout()[name]
        if len(shape) == 1:
            return np.ones(shape, dtype=np.float32)
        raw, kind = self.raw(name, 0, shape[0]), self.kind(name)
        return np.ascontiguousarray(dequantize(raw, GGMLQuantizationType[kind]), dtype=np.float32).reshape(shape)
