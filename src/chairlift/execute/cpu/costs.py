"""What a step reads, from weights as they are packed. Knows sizes; knows nothing of instructions."""

from collections.abc import Iterable

from chairlift.core.costs import ModelCost
from chairlift.execute.costs import model_cost
from chairlift.execute.cpu.kv import KVCache
from chairlift.execute.cpu.program import ModelWeights, Product
from chairlift.models.description import Description


def packed_cost(description: Description, weights: ModelWeights, kv: KVCache) -> ModelCost:
    body = weights.norm.nbytes
    for layer in weights.layers:
        body += _bytes((*layer.qkv, *layer.o, *layer.gate_up, *layer.down))
        body += sum(vector.nbytes for vector in layer.vectors.values())
    return model_cost(
        description,
        body_bytes=body,
        head_bytes=_bytes(weights.head),
        token_bytes=weights.embed.data.nbytes // weights.embed.outputs,
        position_bytes=kv.position_bytes,
    )


def _bytes(products: Iterable[Product]) -> int:
    return sum(product.packed.data.nbytes + (0 if product.bias is None else product.bias.nbytes) for product in products)
