"""The instructions by name; a name's place in the list is its code. Machine code and program builder both count on it."""

from collections.abc import Mapping
from types import MappingProxyType

from chairlift.execute.cpu.formats import FORMATS

KV_BYTES: Mapping[str, int] = MappingProxyType({"f32": 4, "f16": 2, "bf16": 2, "int8": 1})
"""How keys and values can be stored, and the bytes of an element. Those of int8 share a step for each token and head."""
KV_KINDS = tuple(KV_BYTES)

ACTIVATION_KINDS = ("silu", "gelu_tanh", "gelu")

OPERATIONS: tuple[str, ...] = (
    *(f"gemm_{form.name}" for form in FORMATS),
    *(f"embed_{form.name}" for form in FORMATS),
    *(f"rotary_{kind}" for kind in KV_KINDS),
    *(f"attend_{kind}" for kind in KV_KINDS),
    *(f"activate_{kind}" for kind in ACTIVATION_KINDS),
    "norm",
    "quantise",
    "sample",
    "probe_read",
    "probe_dot",
)
