"""Rotary position embedding (Su et al., "RoFormer", 2021): turns pairs of a head's elements by angles that grow with position.

Knows the variants that a description names. Pairs are element i and element i + head_dim / 2 ("NeoX" order).
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chairlift.models.description import Llama3Scaling, Rope


class Turn(NamedTuple):
    """Cosines and sines [tokens, 1, head_dim / 2] for the tokens of a step."""

    cos: NDArray[np.float32]
    sin: NDArray[np.float32]


def frequencies(rope: Rope, head_dim: int) -> NDArray[np.float64]:
    """Radians per position [head_dim / 2], the fastest pair first."""
    turning = rope.theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if rope.llama3 is not None:
        turning = turning * _llama3(turning, rope.llama3)
    if rope.factors is not None:
        turning = turning / np.array(rope.factors)
    return turning / rope.linear


def turn(rope: Rope, head_dim: int, positions: NDArray[np.int64]) -> Turn:
    """Angles are made in float64: in float32 they would lose digits as positions grow."""
    angles = positions[:, None, None] * frequencies(rope, head_dim)
    return Turn(np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))


def rotate(x: NDArray[np.float32], by: Turn) -> NDArray[np.float32]:
    """Turns queries or keys [tokens, heads, head_dim]."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    turned = np.empty_like(x)
    turned[..., :half] = first * by.cos - second * by.sin
    turned[..., half:] = second * by.cos + first * by.sin
    return turned


def _llama3(turning: NDArray[np.float64], scaling: Llama3Scaling) -> NDArray[np.float64]:
    """Factors of Llama 3.1: 1 for pairs that turn often within the original context, 1 / factor for those that rarely do."""
    turns = scaling.original_context * turning / (2 * math.pi)
    blend = np.clip((turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor), 0, 1)
    return blend + (1 - blend) / scaling.factor
