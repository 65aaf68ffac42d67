"""What every executor is tried with, and what it must come to: shapes of models and steps, plans that cannot be, logits."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from tiny_decoders import ArrayWeights, row

from chairlift.evaluate.logits import LogitsExecutor
from chairlift.execute.reference import ReferenceExecutor
from chairlift.models.description import Description

CASE_BLOCK = 16
"""Tokens of a block."""
CASE_BLOCKS = 40
"""Blocks of an executor under test, unless it says something else."""

LENGTHS = (1, 15, 16, 17, 63, 64, 65, 128, 200)
HEAD_DIMS = (64, 80, 96, 128, 256)
HEADS = ((1, 1), (3, 3), (9, 3), (8, 1), (32, 1))
"""Heads of queries and of keys."""

IMPOSSIBLE = {
    "no tokens": row([], [0]),
    "too long": row([1] * 17, [0]),
    "no such block": row([1], [CASE_BLOCKS]),
    "negative block": row([1], [-1]),
    "past its blocks": row([1], [0], start=16),
}
"""Rows that no scheduler of ours plans."""


def reference_logits(description: Description, weights: ArrayWeights, tokens: Sequence[int]) -> NDArray[np.float32]:
    """Logits [vocab] after a text, by the reference executor."""
    blocks = range(-(-len(tokens) // CASE_BLOCK))
    executor = ReferenceExecutor.load(description, weights, num_blocks=len(blocks), block_size=CASE_BLOCK)
    return executor.logits([row(tokens, blocks)])[0]


def in_pieces(
    executor: LogitsExecutor, tokens: Sequence[int], edges: Sequence[int], blocks: Sequence[int]
) -> NDArray[np.float32]:
    """Logits [vocab] after a text that is computed in several steps."""
    steps = [executor.logits([row(tokens[start:end], blocks, start=start)]) for start, end in pairwise(edges)]
    return steps[-1][0]
