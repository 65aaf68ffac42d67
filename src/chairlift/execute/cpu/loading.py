"""Reads a model's tensors into packed weights, piece by piece, several pieces at a time.

Knows names and what belongs side by side; knows nothing of block formats or instructions. No more of a file is held at once
than the pieces in work; tensors that are in no file come whole.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chairlift.core.errors import ModelError
from chairlift.execute.cpu.isa import Shape
from chairlift.execute.cpu.memory import aligned
from chairlift.execute.cpu.options import Quantization
from chairlift.execute.cpu.outline import Outline
from chairlift.execute.cpu.packing import (
    ROW_PAD,
    Matrix,
    Packed,
    allocate,
    converted,
    decode,
    from_floats,
    lay,
    round_up,
)
from chairlift.execute.cpu.program import LayerWeights, ModelWeights, Product
from chairlift.models.description import Description, StoredWeights, Weights

PIECE = 1 << 20
"""Weights that are read, put into their form and laid out in one go."""
PIECES_AHEAD = 2
"""Pieces of each thread that wait or are in work."""


@dataclass(frozen=True, slots=True)
class _Job:
    """Work that may be done beside all other such work, and how many weights it reads."""

    weights: int
    run: Callable[[], None]


class Loader:
    """Reads each tensor once. What comes of it does not depend on `threads`."""

    def __init__(
        self,
        description: Description,
        weights: Weights,
        *,
        shape: Shape,
        quantization: Quantization,
        threads: int = 1,
        piece: int = PIECE,
        on_tensor: Callable[[int, int], None] | None = None,
    ) -> None:
        """`on_tensor(done, total)` is called before the first matrix is read and whenever more is done, in numbers."""
        self._description, self._weights, self._shape = description, weights, shape
        self._threads, self._piece = threads, piece
        self._layout = description.layout()
        self._outline = Outline(description, weights, quantization)
        self._on_tensor = on_tensor
        self._jobs: list[_Job] = []

    def load(self) -> ModelWeights:
        """ModelError if a tensor has not the shape that the description gives it."""
        widths = self._outline.widths
        (embed,) = self._side_by_side({"embed": 0})
        head = embed if self._description.tied else self._side_by_side({"head": 0})[0]
        norm = self._vector("norm", widths.hidden)
        layers = tuple(self._layer(f"layers.{index}.") for index in range(len(self._description.layers)))
        self._work()
        return ModelWeights(embed.packed, (head,), norm, layers)

    def _layer(self, prefix: str) -> LayerWeights:
        widths = self._outline.widths
        qkv = self._side_by_side({f"{prefix}q": 0, f"{prefix}k": widths.key_at, f"{prefix}v": widths.value_at})
        o = self._side_by_side({f"{prefix}o": 0})
        gate_up = self._side_by_side({f"{prefix}gate": 0, f"{prefix}up": widths.up_at})
        down = self._side_by_side({f"{prefix}down": 0})
        norms = [name for name in self._layout if name.startswith(prefix) and name.endswith("norm")]
        vectors = {name.removeprefix(prefix): self._vector(name, self._outline.vector(name)) for name in norms}
        return LayerWeights(qkv, o, gate_up, down, vectors)

    def _side_by_side(self, columns: dict[str, int]) -> tuple[Product, ...]:
        """Matrices of one input: a single one if they are of one form, as one product is faster than several."""
        slots = {name: self._outline.matrix(name) for name in columns}
        if len({slot.form for slot in slots.values()}) > 1:
            return tuple(self._product([name], column) for name, column in columns.items())
        return (self._product(list(columns), 0),)

    def _product(self, names: list[str], column: int) -> Product:
        """One matrix, of the outputs of all these."""
        slots = [self._outline.matrix(name) for name in names]
        heights = [round_up(slot.outputs, ROW_PAD) for slot in slots]
        packed = allocate(slots[0].form, sum(heights), slots[0].inputs)
        bias = aligned(packed.outputs, np.float32) if f"{names[0]}_bias" in self._layout else None
        first = 0
        for name, height in zip(names, heights, strict=True):
            self._jobs += self._jobs_of(name, packed, first)
            if bias is not None:
                bias[first : first + height] = self._bias(f"{name}_bias", height)
            first += height
        return Product(packed, column, bias)

    def _bias(self, name: str, length: int) -> NDArray[Any]:
        values = self._float32(name)
        if self._is_headed(name.removesuffix("_bias")):
            head, padded = self._description.head_dim, self._outline.widths.head
            values = np.pad(values.reshape(-1, head), ((0, 0), (0, padded - head))).reshape(-1)
        return _padded(values, length)

    def _vector(self, name: str, length: int) -> NDArray[Any]:
        return _padded(self._float32(name), length)

    def _float32(self, name: str) -> NDArray[np.float32]:
        tensor = self._weights.float32(name)
        if tensor.shape != self._layout[name]:
            raise ModelError(f"tensor {name} has shape {tensor.shape}, expected {self._layout[name]}")
        return tensor

    # ── matrices, in pieces ───────────────────────────────────────────────────────────────────────────────────────────────

    def _jobs_of(self, name: str, packed: Packed, first: int) -> Iterator[_Job]:
        """All that fills the outputs of `packed` from `first` on."""
        weights, pieces = self._weights, list(self._pieces(name, first))
        if not isinstance(weights, StoredWeights):
            yield _Job(prod(self._layout[name]), lambda: self._lay_whole(name, packed, pieces))
            return
        for begin, end, at in pieces:

            def run(begin: int = begin, end: int = end, at: int = at) -> None:
                matrix = decode(weights.raw(name, begin, end), weights.kind(name))
                if weights.interleaved(name):
                    matrix = matrix.deinterleaved((end - begin) // self._description.head_dim)
                self._lay(name, matrix, packed, at)

            yield _Job((end - begin) * self._layout[name][1], run)

    def _pieces(self, name: str, first: int) -> Iterator[tuple[int, int, int]]:
        """Ranges of outputs, and where each is laid. They are cut where strips and heads begin."""
        outputs, inputs = self._layout[name]
        head, padded = self._description.head_dim, self._outline.widths.head
        if not self._is_headed(name):
            head = padded = 1
        # So many heads end where a strip does.
        step = head * (ROW_PAD // gcd(padded, ROW_PAD))
        step *= max(1, self._piece // (step * inputs))
        for begin in range(0, outputs, step):
            yield begin, min(outputs, begin + step), first + begin // head * padded

    def _lay_whole(self, name: str, packed: Packed, pieces: Iterable[tuple[int, int, int]]) -> None:
        values = self._float32(name)
        for begin, end, at in pieces:
            self._lay(name, from_floats(values[begin:end]), packed, at)

    def _lay(self, name: str, matrix: Matrix, packed: Packed, at: int) -> None:
        description, padded = self._description, self._outline.widths.head
        if padded != description.head_dim and self._is_headed(name):
            matrix = matrix.with_wider_heads(description.head_dim, padded)
        elif padded != description.head_dim and name.endswith(".o"):
            stored = converted(matrix, self._outline.stored(name))
            matrix = stored.with_wider_heads_of_inputs(description.heads, description.head_dim, padded)
        lay(converted(matrix, packed.format), packed, self._shape, first=at)

    def _is_headed(self, name: str) -> bool:
        """Whether its outputs are heads."""
        return name.rpartition(".")[2] in ("q", "k", "v")

    # ── work ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _work(self) -> None:
        done, total = 0, sum(job.weights for job in self._jobs)
        self._tell(done, total)
        with ThreadPoolExecutor(self._threads, thread_name_prefix="chairlift-load") as pool:
            for count in _in_order(pool, self._jobs, ahead=PIECES_AHEAD * self._threads):
                done += count
                self._tell(done, total)
        self._jobs = []

    def _tell(self, done: int, total: int) -> None:
        if self._on_tensor is not None:
            self._on_tensor(done, total)


def _in_order(pool: ThreadPoolExecutor, jobs: Iterable[_Job], *, ahead: int) -> Iterator[int]:
    """Does the jobs and yields what each has read. Few are handed over ahead of time, so that little is left if one fails."""
    waiting: deque[tuple[_Job, Future[None]]] = deque()
    for job in jobs:
        waiting.append((job, pool.submit(job.run)))
        if len(waiting) >= ahead:
            yield _finished(*waiting.popleft())
    while waiting:
        yield _finished(*waiting.popleft())


def _finished(job: _Job, future: "Future[None]") -> int:
    future.result()
    return job.weights


def _padded(values: NDArray[np.float32], width: int) -> NDArray[Any]:
    array = aligned(width, np.float32)
    array[: len(values)] = values
    return array
