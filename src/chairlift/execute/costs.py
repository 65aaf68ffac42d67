"""What a step of a model costs, out of its description. Knows shapes; how many bytes weights take is told by each executor."""

import math

from chairlift.core.costs import LayerCost, ModelCost
from chairlift.models.description import Description

MATRICES = frozenset({"q", "k", "v", "o", "gate", "up", "down"})


def model_cost(
    description: Description, *, body_bytes: int, head_bytes: int, token_bytes: int, position_bytes: int
) -> ModelCost:
    """`position_bytes` are keys and values of one position in one layer."""
    layout = description.layout()
    matrices = sum(math.prod(shape) for name, shape in layout.items() if name.rpartition(".")[2] in MATRICES)
    attention = 4 * description.heads * description.head_dim  # a multiply-add with the key, and one with the value
    return ModelCost(
        body_bytes=body_bytes,
        head_bytes=head_bytes,
        token_bytes=token_bytes,
        token_operations=2 * matrices,
        draw_operations=2 * description.vocab * description.hidden,
        layers=tuple(LayerCost(position_bytes, attention, layer.window) for layer in description.layers),
    )
