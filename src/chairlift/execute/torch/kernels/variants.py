"""A kernel and the types and constants that it is used with, as data: enough to compile it where there is no GPU."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Variant:
    """One use of a kernel, made by `triton.jit`.

    `signature` has the type of every argument that is no constant, in Triton's words ("*bf16", "i32", "fp32"); `constants` has
    all others. `fusion` allows products and sums to be fused, which rounds once where plain arithmetic rounds twice. No GPU
    before compute capability `since` uses it.
    """

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    num_warps: int = 4
    num_stages: int = 3
    fusion: bool = True
    since: tuple[int, int] = (8, 0)
