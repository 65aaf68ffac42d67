"""The forward pass, once for all architectures that a description can tell. Knows layers; rows are known to attention alone.

Several ranks may compute it together, each with its share of heads, columns and ids: what attention and MLP add to the residual
stream is then a sum over all of them, and the stream itself is the same on every rank.
"""

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from chairlift.execute import rotary
from chairlift.execute.torch.attention.backends import Attention
from chairlift.execute.torch.batch import Batch
from chairlift.execute.torch.device import Device
from chairlift.execute.torch.ops import Ops, QKNorm
from chairlift.execute.torch.parallel.group import ALONE, Group
from chairlift.execute.torch.parallel.shards import Share
from chairlift.execute.torch.weights import LayerWeights, ModelWeights
from chairlift.models.description import Description, Layer, Rope

Turns = tuple[Tensor, Tensor]


class Decoder:
    """Tokens to states to logits. `kv` [layers, blocks, 2, block_size, kv_heads of the rank, head_dim] is its caller's."""

    def __init__(
        self,
        share: Share,
        weights: ModelWeights,
        *,
        turns: Mapping[Rope, Turns],
        kv: Tensor,
        ops: Ops,
        attention: Attention,
        group: Group = ALONE,
    ) -> None:
        self._share, self._description, self._weights, self._group = share, share.description, weights, group
        self._turns, self._kv, self._ops, self._attention = turns, kv, ops, attention

    def hidden(self, batch: Batch) -> Tensor:
        """The normalised states [rows that draw, hidden] of their last tokens. Keys and values of all tokens are stored."""
        description, ops = self._description, self._ops
        self._attention.plan(batch)
        stream = self._group.sum(self._share.embedded(self._weights.embed, batch.tokens)) * description.embedding_scale
        out: Tensor | None = None
        for index, (layer, weights) in enumerate(zip(description.layers, self._weights.layers, strict=True)):
            if out is None:
                normed = ops.norm(stream, weights.attn_norm, description.norm_eps)
            else:
                normed, stream = ops.add_norm(out, stream, weights.attn_norm, description.norm_eps)
            out = self._attend(index, layer, weights, normed, batch)
            normed, stream = ops.add_norm(out, stream, weights.mlp_norm, description.norm_eps)
            out = self._mlp(weights, normed)
        assert out is not None, "a model without layers"
        return ops.add_norm(out[batch.last], stream[batch.last], self._weights.norm, description.norm_eps)[0]

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """float32 [rows, vocab] of states [rows, hidden]; in `out` if it is given."""
        own = F.linear(hidden, self._weights.head)
        logits = self._group.gather(own, self._share.vocab_widths)
        return logits.float() if out is None else out.copy_(logits)

    def _attend(self, index: int, layer: Layer, weights: LayerWeights, normed: Tensor, batch: Batch) -> Tensor:
        """What attention adds to the residual stream [tokens, hidden]."""
        description = self._description
        qkv = F.linear(normed, weights.qkv, weights.qkv_bias)
        cos, sin = self._turns[layer.rope]
        queries = self._ops.rotate_store(
            qkv,
            batch.positions,
            cos,
            sin,
            batch.slots,
            self._kv[index],
            description.heads,
            description.kv_heads,
            norms=self._qk_norms(weights),
        )
        mixed = self._attention.run(index, queries, self._kv[index], layer.window)
        out = self._group.sum(F.linear(mixed.flatten(1), weights.o, weights.o_bias))
        return out if weights.post_attn_norm is None else self._ops.norm(out, weights.post_attn_norm, description.norm_eps)

    def _mlp(self, weights: LayerWeights, normed: Tensor) -> Tensor:
        """What the MLP adds to the residual stream [tokens, hidden]."""
        gate_up = F.linear(normed, weights.gate_up, weights.gate_up_bias)
        gated = self._ops.gate(gate_up, self._description.activation)
        out = self._group.sum(F.linear(gated, weights.down, weights.down_bias))
        return out if weights.post_mlp_norm is None else self._ops.norm(out, weights.post_mlp_norm, self._description.norm_eps)

    def _qk_norms(self, weights: LayerWeights) -> QKNorm | None:
        if weights.q_norm is None or weights.k_norm is None:
            return None
        return QKNorm(weights.q_norm, weights.k_norm, self._description.norm_eps)


def turns(description: Description, *, positions: int, device: Device) -> dict[Rope, Turns]:
    """Cosines and sines float32 [positions, head_dim / 2] of every rotary variant of the model."""
    ropes = dict.fromkeys(layer.rope for layer in description.layers)
    return {rope: _table(rope, description.head_dim, positions, device) for rope in ropes}


def _table(rope: Rope, head_dim: int, positions: int, device: Device) -> Turns:
    turn = rotary.turn(rope, head_dim, np.arange(positions, dtype=np.int64))
    cos, sin = (torch.from_numpy(part[:, 0]).to(device.on) for part in turn)
    return cos, sin
