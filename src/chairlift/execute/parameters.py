"""A model's tensors in float32, held in memory by the names of `Description.layout`.

Knows names and shapes; knows neither files nor what the tensors are for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chairlift.core.errors import ModelError
from chairlift.models.description import Description, Weights


@dataclass(frozen=True, slots=True)
class Parameters:
    """Tensors by name. Several executors may share one, as nothing writes to it."""

    tensors: Mapping[str, NDArray[np.float32]]

    @classmethod
    def read(
        cls, description: Description, weights: Weights, *, on_tensor: Callable[[int, int], None] | None = None
    ) -> "Parameters":
        """Reads every tensor of the layout once. `on_tensor(done, total)` is called after each.

        ModelError if a tensor has not the shape that the description gives it.
        """
        layout = description.layout()
        tensors: dict[str, NDArray[np.float32]] = {}
        for name, shape in layout.items():
            tensor = weights.float32(name)
            if tensor.shape != shape:
                raise ModelError(f"tensor {name} has shape {tensor.shape}, expected {shape}")
            tensors[name] = tensor
            if on_tensor is not None:
                on_tensor(len(tensors), len(layout))
        return cls(tensors)

    def layer(self, index: int) -> dict[str, NDArray[np.float32]]:
        """The tensors of one layer, by their names within it."""
        prefix = f"layers.{index}."
        return {name.removeprefix(prefix): tensor for name, tensor in self.tensors.items() if name.startswith(prefix)}
