"""What sampling kernels compute of a number or an id: keys that order logits, noise, masses. Twins of `sampler` and `noise`."""

import triton
import triton.language as tl

_GAMMA = tl.constexpr(0x9E3779B97F4A7C15)
_MIX_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX_2 = tl.constexpr(0x94D049BB133111EB)


@triton.jit
def ordered(logits):
    """uint32 keys of float32 numbers: the larger the number, the larger its key."""
    # Minus zero is zero.
    bits = tl.where(logits == 0.0, 0.0, logits).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.uint32, bitcast=True) ^ 0x80000000


@triton.jit
def scored(logits, best, temperature):
    """float64 scores of logits, of which `best` is the largest."""
    return (logits.to(tl.float64) - best.to(tl.float64)) / temperature


@triton.jit
def mass(scores):
    """Probabilities relative to the best, in whole units: int64."""
    return tl.floor(tl.exp(scores) * 17592186044416.0 + 0.5).to(tl.int64)


@triton.jit
def gumbel(key, ids):
    """float64 noise of int32 ids for the int64 bits of a key."""
    z = key.to(tl.uint64, bitcast=True) + (ids + 1).to(tl.uint64) * _GAMMA
    z = (z ^ (z >> 30)) * _MIX_1
    z = (z ^ (z >> 27)) * _MIX_2
    z = z ^ (z >> 31)
    uniform = ((z >> 12).to(tl.float64) + 0.5) * 2.220446049250313e-16
    return -tl.log(-tl.log(uniform))
