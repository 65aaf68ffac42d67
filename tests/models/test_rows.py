"""Tensors some rows at a time: the same numbers as the whole."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from stored_weights import FLOATS, QUANTISED, StoredTensors
from tiny_decoders import PLAIN, ArrayWeights, random_weights

from chairlift.core.errors import ModelError
from chairlift.models.gguf_model import deinterleave
from chairlift.models.rows import rows

WIDE = replace(PLAIN, hidden=256, heads=8, kv_heads=4)
NAME, HEADS = "layers.0.q", 8
ROW_BYTES = 4 * WIDE.hidden


class Interleaved(StoredTensors):
    """As files of the `llama` architecture are."""

    def interleaved(self, name: str) -> bool:
        return True

    def float32(self, name: str) -> NDArray[np.float32]:
        return deinterleave(super().float32(name), heads=HEADS)


@pytest.mark.parametrize("kind", [*FLOATS, *QUANTISED])
def test_pieces_are_those_of_the_whole(kind: str) -> None:
    weights = StoredTensors(WIDE, kind, {})
    pieces = list(rows(WIDE, weights, NAME, first=12, end=36, piece_bytes=5 * ROW_BYTES))
    assert [at for at, _ in pieces] == [12, 17, 22, 27, 32]
    np.testing.assert_array_equal(np.concatenate([piece for _, piece in pieces]), weights.float32(NAME)[12:36])


def test_a_row_that_is_larger_than_a_piece_is_one() -> None:
    pieces = list(rows(WIDE, StoredTensors(WIDE, "F32", {}), NAME, first=3, end=6, piece_bytes=1))
    assert [(at, len(piece)) for at, piece in pieces] == [(3, 1), (4, 1), (5, 1)]


@pytest.mark.parametrize("piece_bytes", [1, 13 * ROW_BYTES, 1 << 20])
def test_heads_are_not_torn_where_their_rows_are_put_back_in_order(piece_bytes: int) -> None:
    weights = Interleaved(WIDE, "BF16", {})
    pieces = rows(WIDE, weights, NAME, first=12, end=36, piece_bytes=piece_bytes)
    np.testing.assert_array_equal(np.concatenate([piece for _, piece in pieces]), weights.float32(NAME)[12:36])


def test_what_can_only_be_had_whole_is_one_piece() -> None:
    weights = random_weights(WIDE)
    [(at, piece)] = rows(WIDE, weights, NAME, first=6, end=18, piece_bytes=1)
    assert at == 6
    np.testing.assert_array_equal(piece, weights.float32(NAME)[6:18])


def test_a_tensor_of_another_shape_is_named() -> None:
    weights = ArrayWeights({NAME: np.ones((3, 256), dtype=np.float32)})
    with pytest.raises(ModelError, match=r"tensor layers\.0\.q has shape \(3, 256\), expected \(48, 256\)"):
        list(rows(WIDE, weights, NAME, first=0, end=48))
