"""How much memory the executor will take, worked out from shapes. Knows what is allocated; allocates nothing."""

import math

from chairlift.cache.sizing import bytes_per_token
from chairlift.execute.footprint import Footprint
from chairlift.models.description import Description

DEVICE_SHARE = 0.9
"""Of the memory of a GPU that weights and a step leave: nobody else has a use for it, but allocators leave gaps."""

FLOAT32_BYTES, INT64_BYTES, INT32_BYTES = 4, 8, 4
SAMPLED_BYTES = 48
"""For every id of every row: logits, their scores in float64, and what sorting them takes."""


def footprint(
    description: Description, *, itemsize: int, max_tokens: int, max_rows: int, longest: int, block_size: int
) -> Footprint:
    """`itemsize` is that of the type that is computed in, `longest` the tokens of the longest row."""
    norms = sum(math.prod(shape) for name, shape in description.layout().items() if name.endswith("norm"))
    numbers = sum(math.prod(shape) for shape in description.layout().values())
    token_bytes = bytes_per_token(
        layers=len(description.layers), kv_heads=description.kv_heads, head_dim=description.head_dim, itemsize=itemsize
    )
    turns = len({layer.rope for layer in description.layers}) * max(longest, max_tokens) * description.head_dim * FLOAT32_BYTES
    buffers = 5 * max_tokens * INT64_BYTES + max_rows * (-(-longest // block_size) + 4) * INT32_BYTES
    work = (
        max_tokens * _activations(description, itemsize)
        + max_rows * description.vocab * (itemsize + SAMPLED_BYTES)
        + _gathered(description, itemsize, max_tokens=max_tokens, longest=longest)
        + turns
        + buffers
    )
    return Footprint((numbers - norms) * itemsize + norms * FLOAT32_BYTES, token_bytes, work)


def _activations(description: Description, itemsize: int) -> int:
    """Bytes of a token in a layer, while all of it is there: twice in float32 where the plain operations widen it."""
    heads = (description.heads + 2 * description.kv_heads) * description.head_dim
    widest = max(heads, 3 * description.mlp, description.hidden)
    return (4 * description.hidden + heads + 3 * description.mlp) * itemsize + 2 * widest * FLOAT32_BYTES


def _gathered(description: Description, itemsize: int, *, max_tokens: int, longest: int) -> int:
    """Keys and values of one row, once as they lie and once for every query head, and what masks and scores take."""
    elements = description.head_dim * (2 * description.kv_heads + 2 * description.heads)
    queries = min(max_tokens, longest)
    return longest * (elements * itemsize + queries * (1 + itemsize + FLOAT32_BYTES))
