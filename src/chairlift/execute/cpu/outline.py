"""What becomes of a model's tensors in memory: numeric forms and sizes, before any tensor is read.

Knows the choice of a form for every type of file; knows nothing of layouts and instructions.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from chairlift.execute.cpu.arena import Widths
from chairlift.execute.cpu.formats import F32, Q4_MIN_F16, Q8_F32, Floats, Format, Quantised
from chairlift.execute.cpu.options import Quantization
from chairlift.execute.cpu.packing import ROW_PAD, STORED, WIDENED, packed_bytes, round_up
from chairlift.models.description import Description, StoredWeights, Weights

FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Slot:
    """A matrix in the form in which it is computed, with its heads padded."""

    form: Format
    outputs: int
    inputs: int

    @property
    def bytes(self) -> int:
        return packed_bytes(self.form, self.outputs, self.inputs)


def computed_as(stored: Format, quantization: Quantization) -> Format:
    """The form in which a matrix is computed that the file holds in the form `stored`."""
    if quantization == "none":
        return stored if isinstance(stored, Floats) else F32
    if quantization == "int4":
        return stored if isinstance(stored, Quantised) and stored.bits == Q4_MIN_F16.bits else Q4_MIN_F16
    if isinstance(stored, Floats):
        return Q8_F32
    return WIDENED.get(stored, stored) if quantization == "int8" else stored


class Outline:
    """The tensors of one model, by the names of the layout."""

    def __init__(self, description: Description, weights: Weights, quantization: Quantization) -> None:
        self._description, self._weights = description, weights
        self._quantization: Quantization = quantization
        self._layout = description.layout()
        self.widths = Widths.of(description)

    def matrix(self, name: str) -> Slot:
        outputs, inputs = self._layout[name]
        head, padded = self._description.head_dim, self.widths.head
        match name.rpartition(".")[2]:
            case "q" | "k" | "v":
                outputs = outputs // head * padded
            case "o":
                inputs = inputs // head * padded
        return Slot(computed_as(self.stored(name), self._quantization), outputs, inputs)

    def stored(self, name: str) -> Format:
        """The form that is read. Weights that are in no file are floats; so is what must be cut into other groups."""
        form = STORED[self._weights.kind(name)] if isinstance(self._weights, StoredWeights) else F32
        regrouped = name.endswith(".o") and self.widths.head != self._description.head_dim
        return F32 if regrouped and isinstance(form, Quantised) else form

    def vector(self, name: str) -> int:
        """The padded length of a norm or of a bias."""
        widths, description = self.widths, self._description
        match name.rpartition(".")[2]:
            case "q_norm" | "k_norm":
                return widths.head
            case "q_bias" | "k_bias" | "v_bias":
                return round_up(math.prod(self._layout[name]) // description.head_dim * widths.head, ROW_PAD)
            case bias if bias.endswith("_bias"):
                return round_up(math.prod(self._layout[name]), ROW_PAD)
            case _:
                return widths.hidden

    @property
    def bytes(self) -> int:
        """What all weights take in memory, padding included."""
        matrices = sum(self.matrix(name).bytes for name in self._names(rank=2))
        return matrices + FLOAT_BYTES * sum(self.vector(name) for name in self._names(rank=1))

    def _names(self, *, rank: int) -> Iterator[str]:
        return (name for name, shape in self._layout.items() if len(shape) == rank)
