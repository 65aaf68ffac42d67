"""A rank's part of a model's tensors on its device, merged as the decoder reads them. Knows names and shapes, no arithmetic."""

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from chairlift.execute.torch.device import Device
from chairlift.execute.torch.parallel.shards import Share
from chairlift.models.description import Weights
from chairlift.models.rows import rows


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Matrices are [outputs, inputs] in the type that is computed in, norms are float32.

    `qkv` [(heads + 2 kv_heads) * head_dim, hidden] is queries, keys and values, `gate_up` [2 * mlp, hidden] is the gate and
    what it is multiplied with. What the model does not have is None, and so are biases that another rank adds.
    """

    attn_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Tensor
    o_bias: Tensor | None
    post_attn_norm: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None
    post_mlp_norm: Tensor | None

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for field in fields(self) if (tensor := getattr(self, field.name)) is not None)


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """`embed` and `head` have the rows of this rank's ids. `head` is the very tensor `embed` where they are tied."""

    embed: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Tensor


def read(
    share: Share,
    weights: Weights,
    *,
    device: Device,
    dtype: torch.dtype,
    on_tensor: Callable[[int, int], None] | None = None,
) -> ModelWeights:
    """Reads every tensor of the share once, some rows at a time: no more than these are ever in the machine's memory.

    `on_tensor(done, total)` is called after each. ModelError if one has not the shape that the description gives it.
    """
    reader = _Reader(share, weights, device, dtype, on_tensor)
    embed = reader.joined("embed")
    layers = tuple(reader.layer(f"layers.{index}.") for index in range(len(share.whole.layers)))
    return ModelWeights(embed, layers, reader.joined("norm"), embed if share.whole.tied else reader.joined("head"))


class _Reader:
    def __init__(
        self,
        share: Share,
        weights: Weights,
        device: Device,
        dtype: torch.dtype,
        on_tensor: Callable[[int, int], None] | None,
    ) -> None:
        self._share, self._layout = share, share.layout
        self._weights, self._device, self._dtype, self._on_tensor = weights, device, dtype, on_tensor
        self._done = 0

    def layer(self, prefix: str) -> LayerWeights:
        def some(*names: str) -> Tensor | None:
            names = tuple(prefix + name for name in names)
            return self.joined(*names) if names[0] in self._layout else None

        def all_of(*names: str) -> Tensor:
            return self.joined(*(prefix + name for name in names))

        return LayerWeights(
            attn_norm=all_of("attn_norm"),
            qkv=all_of("q", "k", "v"),
            qkv_bias=some("q_bias", "k_bias", "v_bias"),
            q_norm=some("q_norm"),
            k_norm=some("k_norm"),
            o=all_of("o"),
            o_bias=some("o_bias"),
            post_attn_norm=some("post_attn_norm"),
            mlp_norm=all_of("mlp_norm"),
            gate_up=all_of("gate", "up"),
            gate_up_bias=some("gate_bias", "up_bias"),
            down=all_of("down"),
            down_bias=some("down_bias"),
            post_mlp_norm=some("post_mlp_norm"),
        )

    def joined(self, *names: str) -> Tensor:
        """This rank's parts of these tensors below each other."""
        shapes = [self._layout[name] for name in names]
        kind = torch.float32 if names[0].endswith("norm") else self._dtype
        joined = torch.empty((sum(shape[0] for shape in shapes), *shapes[0][1:]), dtype=kind, device=self._device.on)
        for name, target in zip(names, joined.split([shape[0] for shape in shapes]), strict=True):
            self._fill(target, name)
            self._tell()
        return joined

    def _fill(self, target: Tensor, name: str) -> None:
        part = self._share.part(name)
        first, end = (part.first, part.end) if part.axis == 0 else (0, len(target))
        columns = slice(part.first, part.end) if part.axis == 1 else slice(None)
        for at, read in rows(self._share.whole, self._weights, name, first=first, end=end):
            values = read[:, columns] if part.axis == 1 else read
            place = target[at - first : at - first + len(read)]
            place.copy_(torch.from_numpy(np.require(values, requirements="W")))

    def _tell(self) -> None:
        self._done += 1
        if self._on_tensor is not None:
            self._on_tensor(self._done, len(self._layout))
