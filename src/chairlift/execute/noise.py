"""The noise of sampling: a pure function of seed, choice, position and token id, and so the same in any batch on any machine.

Knows integers and uniform numbers; knows nothing of logits, requests or rows.
"""

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def key(seed: int, choice: int, position: int) -> int:
    """One 64-bit number for a draw. Every part goes through a bijection, so parts that differ in one place never meet.

    `key = mix((key xor part) + gamma)` for seed, choice and position in turn, from 0; a seed counts modulo 2 ** 64.
    """
    mixed = 0
    for part in (seed, choice, position):
        mixed = _mix(((mixed ^ part) + _GAMMA) & _MASK)
    return mixed


def uniform(draw_key: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """A number in the open interval (0, 1) for every token id; neither end can occur.

    It is made of the upper 52 bits of output number `id` (from 0) of a SplitMix64 generator whose state starts at the key:
    Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014, with Stafford's mixer 13. With 52
    bits the half that is added is exact in a double; with 53 it could round up to 1.
    """
    bits = _mix_all(np.uint64(draw_key) + (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(_GAMMA))
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def gumbel(draw_key: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Standard Gumbel noise `-log(-log u)` for every token id: the largest of `logit + noise` is a sample of the softmax."""
    return -np.log(-np.log(uniform(draw_key, ids)))


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * _MIX_1) & _MASK
    z = ((z ^ (z >> 27)) * _MIX_2) & _MASK
    return z ^ (z >> 31)


def _mix_all(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX_2)
    return z ^ (z >> np.uint64(31))
