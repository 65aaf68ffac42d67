"""The memory that a step works in, made once for the largest step there can be.

Knows sizes; knows nothing of instructions. Everything starts as zeros where padding is read.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from chairlift.execute.cpu.memory import aligned
from chairlift.execute.cpu.packing import ROW_PAD, round_up
from chairlift.execute.cpu.words import LINE
from chairlift.models.description import Description

ACTIVATION_BLOCK = 48
"""Bytes of 32 rounded activations with their step and sums, or of a row's outliers (`kernels.gemm`)."""
HEAD_PAD = 16
SCRATCH_BYTES = 1 << 18
SCRATCH_BYTES_A_TOKEN = 20
SCRATCH_BYTES_AN_ACTIVATION = 5
"""What a thread keeps for itself: attention in progress, a row that is to be rounded, or logits, scores and weights of all ids
while it draws.
"""


def scratch_bytes(description: Description, widths: "Widths") -> int:
    most = max(SCRATCH_BYTES_A_TOKEN * description.vocab, SCRATCH_BYTES_AN_ACTIVATION * widths.widest)
    return SCRATCH_BYTES + most


@dataclass(frozen=True, slots=True)
class Widths:
    """Row lengths in elements. Inputs of products are padded to 32, outputs to `ROW_PAD`, heads to 16.

    `wide` and `logits` are how far rows lie apart that are longer than a page.
    """

    hidden: int
    stream: int
    head: int
    queries: int
    key_at: int
    value_at: int
    qkv: int
    mixed: int
    mlp: int
    up_at: int
    wide: int
    logits: int

    @property
    def widest(self) -> int:
        """The longest row that is an input of a product."""
        return max(self.hidden, self.mixed, self.mlp)

    @classmethod
    def of(cls, description: Description) -> "Widths":
        head = round_up(description.head_dim, HEAD_PAD)
        queries = round_up(description.heads * head, ROW_PAD)
        keys = round_up(description.kv_heads * head, ROW_PAD)
        return cls(
            hidden=round_up(description.hidden, 32),
            stream=round_up(description.hidden, ROW_PAD),
            head=head,
            queries=description.heads * head,
            key_at=queries,
            value_at=queries + keys,
            qkv=queries + 2 * keys,
            mixed=round_up(description.heads * head, 32),
            mlp=round_up(description.mlp, 32),
            up_at=round_up(description.mlp, ROW_PAD),
            wide=_apart(2 * round_up(description.mlp, ROW_PAD)),
            logits=_apart(round_up(description.vocab, ROW_PAD)),
        )


def _apart(width: int) -> int:
    """A line more than a multiple of 1 KiB: rows that far apart share few sets of a cache, and push each other out."""
    return width + LINE // 4 if width % 256 == 0 else width


@dataclass(frozen=True, slots=True)
class Arena:
    """Buffers for at most `tokens` tokens and `rows` rows of logits."""

    stream: NDArray[Any]
    qkv: NDArray[Any]
    mixed: NDArray[Any]
    wide: NDArray[Any]
    out: NDArray[Any]
    blocks: NDArray[Any]
    floats: NDArray[Any]
    partials: NDArray[Any]
    logits: NDArray[Any]

    @classmethod
    def of(cls, description: Description, widths: Widths, *, tokens: int, rows: int, partials: int) -> "Arena":
        """`partials` are the segments of attention that can wait to be joined."""
        sizes = cls._sizes(description, widths, tokens=tokens, rows=rows, partials=partials)
        buffers = {name: aligned(count, dtype) for name, (count, dtype) in sizes.items()}
        buffers["logits"] = buffers["logits"].reshape(rows, widths.logits)
        return cls(**buffers)

    @classmethod
    def bytes_of(cls, description: Description, widths: Widths, *, tokens: int, rows: int, partials: int) -> int:
        """What it takes in memory."""
        sizes = cls._sizes(description, widths, tokens=tokens, rows=rows, partials=partials)
        return sum(count * np.dtype(dtype).itemsize for count, dtype in sizes.values())

    @staticmethod
    def _sizes(
        description: Description, widths: Widths, *, tokens: int, rows: int, partials: int
    ) -> dict[str, tuple[int, DTypeLike]]:
        head_bytes = description.heads // description.kv_heads * (widths.head + HEAD_PAD) * 4 + LINE
        widest = widths.widest
        return {
            "stream": (tokens * widths.stream, np.float32),
            "qkv": (tokens * widths.qkv, np.float32),
            "mixed": (tokens * widths.mixed, np.float32),
            "wide": (tokens * widths.wide, np.float32),
            "out": (tokens * widths.stream, np.float32),
            "blocks": (tokens * (widest // 32 + 1) * ACTIVATION_BLOCK, np.uint8),
            "floats": (tokens * widest, np.float32),
            "partials": (partials * description.kv_heads * head_bytes, np.uint8),
            "logits": (rows * widths.logits, np.float32),
        }
