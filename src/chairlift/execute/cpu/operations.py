"""The instructions by name; a name's place in the list is its code. Machine code and program builder both count on it."""

from chairlift.execute.cpu.formats import FORMATS

KV_KINDS = ("f32", "f16", "bf16")
"""How keys and values can be stored."""

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
