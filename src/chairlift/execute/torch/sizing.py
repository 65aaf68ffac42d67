"""How much memory the executor will take, worked out from shapes. Knows what is allocated; allocates nothing."""

import math
from collections.abc import Sequence

from chairlift.cache.sizing import bytes_per_token
from chairlift.execute.footprint import Footprint
from chairlift.execute.torch.attention.backends import REFERENCE, workspace_bytes
from chairlift.execute.torch.attention.heads import Heads
from chairlift.execute.torch.options import Choice
from chairlift.execute.torch.parallel.shards import Share
from chairlift.models.description import Description

DEVICE_SHARE = 0.9
"""Of the memory of a GPU that weights and a step leave: nobody else has a use for it, but allocators leave gaps."""

FLOAT32_BYTES, INT64_BYTES, INT32_BYTES = 4, 8, 4
STAGED_BYTES = 64 << 20
"""Of blocks that are on their way to the machine's memory or back, if sequences are swapped."""
DRAWING_BYTES = {True: 32, False: 128}
"""For every id of every row: logits, before and after changes, and what drawing takes, by Triton's kernels or with sorts."""
GATHERED = 4
"""Times that logits exist while those of several ranks are put together: one's own, all as they come (twice), side by side."""

CAPTURING_BYTES = 64 << 20
"""What cuBLAS works in on the stream that captures, 32 MiB on Hopper, and the gaps in the pool. An estimate."""
GRAPH_BYTES = 4 << 20
"""Of a captured step: its launches and their arguments. An estimate."""

PIECE_BYTES = 2**20
"""Left to rounding: allocators give memory out in pieces."""


def footprint(
    description: Description,
    choice: Choice,
    *,
    max_tokens: int,
    max_rows: int,
    longest: int,
    block_size: int,
    swaps: bool = False,
    ranks: int = 1,
) -> Footprint:
    """`longest` are the tokens of the longest row. What is stored in the host, if it `swaps`, does not count.

    Of several `ranks` it is that of the first one, which no other exceeds. ConfigError if the model cannot be cut for them.
    """
    share = Share(description, size=ranks)
    vocab, description = description.vocab, share.description
    itemsize = choice.dtype.itemsize
    norms = sum(math.prod(shape) for name, shape in share.layout.items() if name.endswith("norm"))
    numbers = sum(math.prod(shape) for shape in share.layout.values())
    token_bytes = bytes_per_token(
        layers=len(description.layers), kv_heads=description.kv_heads, head_dim=description.head_dim, itemsize=itemsize
    )
    turns = len({layer.rope for layer in description.layers}) * longest * description.head_dim * FLOAT32_BYTES
    rows = max_rows + 1  # that of padding
    buffers = (4 * max_tokens + 2 * rows) * INT64_BYTES + rows * (-(-longest // block_size) + 3) * INT32_BYTES
    captured = choice.captured(min(max_rows, max_tokens))
    heads = Heads.of(description, block_size=block_size, dtype=choice.dtype)
    attention = workspace_bytes(choice.attention, heads=heads, device=choice.device, max_rows=rows, longest=longest)
    if choice.attention.name == REFERENCE:
        attention += _gathered(heads, queries=min(max_tokens, longest), longest=longest)
    work = (
        max_tokens * _activations(description, itemsize)
        + max_rows * (vocab * DRAWING_BYTES[choice.fused] + _logits_bytes(vocab, itemsize, ranks))
        + attention
        + turns
        + buffers
        + captured_bytes(description, captured, itemsize=itemsize, ranks=ranks)
        + swaps * STAGED_BYTES
        + (ranks > 1) * choice.device.link_bytes
        + PIECE_BYTES
    )
    return Footprint((numbers - norms) * itemsize + norms * FLOAT32_BYTES, token_bytes, work)


def captured_bytes(description: Description, sizes: Sequence[int], *, itemsize: int, ranks: int = 1) -> int:
    """What captured steps hold for good: their logits, and what the largest one works in, where the others work, too."""
    if not sizes:
        return 0
    rows = max(sizes)
    logits = rows * description.vocab * FLOAT32_BYTES
    pool = rows * (_activations(description, itemsize) + _logits_bytes(description.vocab, itemsize, ranks))
    return logits + pool + CAPTURING_BYTES + len(sizes) * GRAPH_BYTES


def _logits_bytes(vocab: int, itemsize: int, ranks: int) -> int:
    """Of one row, as the head gives them."""
    return vocab * itemsize * (1 if ranks == 1 else GATHERED)


def _activations(description: Description, itemsize: int) -> int:
    """Bytes of a token in a layer, while all of it is there, and what the plain operations widen to float32 on the way."""
    heads = (description.heads + 2 * description.kv_heads) * description.head_dim
    widest = max(4 * heads, 5 * description.mlp, 3 * description.hidden)
    return (4 * description.hidden + 2 * heads + 3 * description.mlp) * itemsize + widest * FLOAT32_BYTES


def _gathered(heads: Heads, *, queries: int, longest: int) -> int:
    """Keys and values of one row, twice as they lie and once for every query head; mask, scores and their shares."""
    elements = heads.head_dim * (4 * heads.kv_heads + 2 * heads.heads)
    scores = queries * (1 + heads.dtype.itemsize + 3 * heads.heads * FLOAT32_BYTES)
    return longest * (elements * heads.dtype.itemsize + scores)
