"""Reads a model's tensors into packed weights.

Knows names and what belongs side by side; knows nothing of block formats or instructions.
"""

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from chairlift.core.errors import ModelError
from chairlift.execute.cpu.arena import Widths
from chairlift.execute.cpu.isa import Shape
from chairlift.execute.cpu.memory import aligned
from chairlift.execute.cpu.packing import (
    ROW_PAD,
    Matrix,
    decode,
    from_floats,
    pack,
    round_up,
    rounded_to_8_bits,
    stacked,
)
from chairlift.execute.cpu.program import LayerWeights, ModelWeights, Product
from chairlift.models.description import Description, Weights
from chairlift.models.gguf_model import GgufWeights

Quantization = Literal["auto", "int8", "none"]


class Loader:
    """Reads each tensor once, layer by layer."""

    def __init__(
        self,
        description: Description,
        weights: Weights,
        *,
        shape: Shape,
        quantization: Quantization,
        on_tensor: Callable[[int, int], None] | None = None,
    ) -> None:
        self._description, self._weights, self._shape, self._quantization = description, weights, shape, quantization
        self._layout = description.layout()
        self._widths = Widths.of(description)
        self._on_tensor = on_tensor
        self._done = 0

    def load(self) -> ModelWeights:
        description = self._description
        embed = self._matrix("embed")
        packed = pack(embed, self._shape)
        head = packed if description.tied else pack(self._matrix("head"), self._shape)
        norm = self._vector("norm", self._widths.hidden)
        layers = tuple(self._layer(index) for index in range(len(description.layers)))
        return ModelWeights(packed, (Product(head, 0, None),), norm, layers)

    def _layer(self, index: int) -> LayerWeights:
        description, widths, prefix = self._description, self._widths, f"layers.{index}."
        heads = {"q": description.heads, "k": description.kv_heads, "v": description.kv_heads}
        qkv = self._side_by_side(prefix, {"q": 0, "k": widths.key_at, "v": widths.value_at}, widths.qkv, heads)
        gate_up = self._side_by_side(prefix, {"gate": 0, "up": widths.up_at}, 2 * widths.up_at, {})
        o = self._side_by_side(prefix, {"o": 0}, widths.stream, {})
        down = self._side_by_side(prefix, {"down": 0}, widths.stream, {})
        vectors = {name: self._vector(prefix + name, width) for name, width in self._vectors()}
        return LayerWeights(qkv, o, gate_up, down, vectors)

    def _vectors(self) -> Iterator[tuple[str, int]]:
        yield from (("attn_norm", self._widths.hidden), ("mlp_norm", self._widths.hidden))
        if self._description.qk_norm:
            yield from (("q_norm", self._widths.head), ("k_norm", self._widths.head))
        if self._description.sandwich:
            yield from (("post_attn_norm", self._widths.hidden), ("post_mlp_norm", self._widths.hidden))

    def _side_by_side(self, prefix: str, columns: dict[str, int], width: int, heads: dict[str, int]) -> tuple[Product, ...]:
        """Matrices of one input: a single one if they are of one format, as one product is faster than several."""
        matrices = {name: self._headed(prefix + name, heads.get(name)) for name in columns}
        biases = {name: self._bias(prefix + name, width - columns[name], heads.get(name)) for name in columns}
        if len({matrix.format for matrix in matrices.values()}) > 1:
            return tuple(Product(pack(matrix, self._shape), columns[name], biases[name]) for name, matrix in matrices.items())
        bias: NDArray[Any] | None = None
        for name, part in biases.items():
            if part is not None:
                bias = aligned(width, np.float32) if bias is None else bias
                length = round_up(matrices[name].outputs, ROW_PAD)
                bias[columns[name] : columns[name] + length] = part[:length]
        return (Product(pack(stacked(list(matrices.values())), self._shape), 0, bias),)

    def _headed(self, name: str, heads: int | None) -> Matrix:
        """A matrix whose outputs (of q, k, v) or inputs (of o) are padded head by head."""
        head, padded = self._description.head_dim, self._widths.head
        if head == padded:
            return self._matrix(name)
        if heads is not None:
            values = self._float32(name).reshape(heads, head, -1)
            return self._of_floats(np.pad(values, ((0, 0), (0, padded - head), (0, 0))).reshape(heads * padded, -1))
        if name.endswith(".o"):
            values = self._float32(name)
            values = values.reshape(len(values), -1, head)
            return self._of_floats(np.pad(values, ((0, 0), (0, 0), (0, padded - head))).reshape(len(values), -1))
        return self._matrix(name)

    def _bias(self, name: str, width: int, heads: int | None) -> NDArray[Any] | None:
        if f"{name}_bias" not in self._layout:
            return None
        values = self._float32(f"{name}_bias")
        if heads is not None:
            extra = self._widths.head - self._description.head_dim
            values = np.pad(values.reshape(heads, -1), ((0, 0), (0, extra))).reshape(-1)
        return _padded(values, width)

    def _vector(self, name: str, width: int) -> NDArray[Any]:
        return _padded(self._float32(name), width)

    def _matrix(self, name: str) -> Matrix:
        weights = self._weights
        if self._quantization == "auto" and isinstance(weights, GgufWeights):
            stored = weights.names[name]
            matrix = decode(weights.file.raw(stored), weights.file.header.tensors[stored].type.name)
            heads = weights.rotary_heads.get(name.rpartition(".")[2])
            self._count()
            return matrix if heads is None else matrix.deinterleaved(heads)
        return self._of_floats(self._float32(name))

    def _of_floats(self, values: NDArray[np.float32]) -> Matrix:
        return rounded_to_8_bits(values) if self._quantization == "int8" else from_floats(values)

    def _float32(self, name: str) -> NDArray[np.float32]:
        tensor = self._weights.float32(name)
        if tensor.shape != self._layout[name]:
            raise ModelError(f"tensor {name} has shape {tensor.shape}, expected {self._layout[name]}")
        self._count()
        return tensor

    def _count(self) -> None:
        self._done += 1
        if self._on_tensor is not None:
            self._on_tensor(self._done, len(self._layout))


def _padded(values: NDArray[np.float32], width: int) -> NDArray[Any]:
    array = aligned(width, np.float32)
    array[: len(values)] = values
    return array
