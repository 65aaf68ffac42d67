"""Tensors as float32, some rows at a time: what is large is never in memory as a whole, and only what is wanted is read.

Knows how weights can be read; knows nothing of what they are for.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from chairlift.core.errors import ModelError
from chairlift.models.description import Description, StoredWeights, Weights
from chairlift.models.gguf import TENSOR_TYPES, dequantize
from chairlift.models.gguf_model import deinterleave

PIECE_BYTES = 64 << 20
"""Of float32 numbers that are read at once."""

_BY_NAME = {kind.name: kind for kind in TENSOR_TYPES.values()}


def rows(
    description: Description, weights: Weights, name: str, *, first: int, end: int, piece_bytes: int = PIECE_BYTES
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Rows `first` to `end` of a tensor of the layout, piece by piece in their order: where each begins, and its rows.

    `first` and `end` are where heads begin in tensors that consist of heads. Weights that can only be had whole are one piece.
    ModelError if the tensor has not the shape that the description gives it.
    """
    shape = description.layout()[name]
    if not isinstance(weights, StoredWeights) or len(shape) == 1:
        whole = weights.float32(name)
        _check(name, whole.shape, shape)
        yield first, whole[first:end]
        return
    interleaved, kind = weights.interleaved(name), _BY_NAME[weights.kind(name)]
    unit = description.head_dim if interleaved else 1
    step = unit * max(1, piece_bytes // (4 * unit * shape[1]))
    for at in range(first, end, step):
        until = min(end, at + step)
        piece = dequantize(weights.raw(name, at, until), kind)
        _check(name, (shape[0], *piece.shape[1:]), shape)
        yield at, deinterleave(piece, heads=len(piece) // unit) if interleaved else piece


def _check(name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if found != wanted:
        raise ModelError(f"tensor {name} has shape {found}, expected {wanted}")
