"""How much memory the executor will take, worked out from the shapes and types of the tensors.

Knows what is allocated by `loading`, `kv`, `arena`, `pool` and `rotation`; allocates nothing.
"""

from chairlift.execute.cpu.arena import Arena, Widths, scratch_bytes
from chairlift.execute.cpu.batch import MAX_PARTIALS, pad_blocks
from chairlift.execute.cpu.operations import KV_BYTES
from chairlift.execute.cpu.options import Choice
from chairlift.execute.cpu.outline import FLOAT_BYTES, Outline
from chairlift.execute.cpu.rotation import FIRST_POSITIONS
from chairlift.execute.footprint import Footprint
from chairlift.models.description import Description, Weights

SCALE_BYTES = {"int8": 4}
"""What keys and values of one head take beside their elements: a float32 where they are rounded."""


def footprint(
    description: Description, weights: Weights, choice: Choice, *, block_size: int, max_tokens: int, max_rows: int
) -> Footprint:
    """The bytes of weights and of a token's keys and values are exact; those of the rest include turns for a full context."""
    outline = Outline(description, weights, choice.quantization)
    token_bytes = kv_bytes(description, choice.kv)
    arena = Arena.bytes_of(description, outline.widths, tokens=max_tokens, rows=max_rows, partials=MAX_PARTIALS)
    pads = pad_blocks(max_tokens, block_size) * block_size * token_bytes
    scratch = choice.threads * scratch_bytes(description, outline.widths)
    return Footprint(outline.bytes, token_bytes, arena + pads + scratch + _turns(description))


def kv_bytes(description: Description, kind: str) -> int:
    """Keys and values of one token in all layers."""
    head = Widths.of(description).head * KV_BYTES[kind] + SCALE_BYTES.get(kind, 0)
    return 2 * len(description.layers) * description.kv_heads * head


def _turns(description: Description) -> int:
    """Tables of turns double as contexts grow, so that at most twice the context is there."""
    positions = max(FIRST_POSITIONS, 2 * description.context)
    return len({layer.rope for layer in description.layers}) * positions * description.head_dim * FLOAT_BYTES
