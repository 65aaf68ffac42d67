"""Compiles kernels where there is no GPU, and says what they take of one: registers, shared memory, and what did not fit.

Knows Triton's compiler for NVIDIA GPUs and the limits of those; the kernels themselves are data (`variants`).
"""

import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from chairlift.execute.torch.kernels import attention, changing, cutting, drawing, gates, norms, rotary
from chairlift.execute.torch.kernels.variants import Variant

VARIANTS: tuple[Variant, ...] = (
    *norms.VARIANTS,
    *rotary.VARIANTS,
    *gates.VARIANTS,
    *attention.VARIANTS,
    *changing.VARIANTS,
    *cutting.VARIANTS,
    *drawing.VARIANTS,
)

SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024}
"""The most that a block of threads may have, by 10 times the compute capability (CUDA C++ Programming Guide)."""

_WARP = 32
_REGISTERS = 65_536
"""Of a multiprocessor, of any generation since 3.5."""


@dataclass(frozen=True, slots=True)
class Built:
    """A kernel compiled for GPUs of compute capability `sm` / 10. `registers` and `spilled` bytes are those of one thread."""

    name: str
    sm: int
    warps: int
    registers: int
    shared_bytes: int
    spilled_bytes: int

    @property
    def fits(self) -> bool:
        return self.spilled_bytes == 0 and self.shared_bytes <= SHARED_BYTES[self.sm]

    @property
    def blocks(self) -> int:
        """How many blocks of threads a multiprocessor has registers for."""
        return _REGISTERS // (max(self.registers, 1) * _WARP * self.warps)


def build(variant: Variant, sm: int) -> Built:
    """Needs Triton's compiler, so it does not work in a process that has chosen the interpreter."""
    signature = {name: variant.signature.get(name, "constexpr") for name in variant.kernel.arg_names}
    options = {"num_warps": variant.num_warps, "num_stages": variant.num_stages, "enable_fp_fusion": variant.fusion}
    source = ASTSource(variant.kernel, signature, dict(variant.constants), _aligned(variant))
    compiled = triton.compile(source, target=GPUTarget("cuda", sm, _WARP), options=options)
    used = _used(compiled.asm["cubin"])
    spilled = used["STACK"] + used["LOCAL"]
    return Built(variant.name, sm, compiled.metadata.num_warps, used["REG"], compiled.metadata.shared, spilled)


def build_all(variants: Sequence[Variant], sms: Sequence[int]) -> Iterator[Built]:
    """Each for every GPU that uses it."""
    for variant in variants:
        for sm in sms:
            if variant.since[0] * 10 + variant.since[1] <= sm:
                yield build(variant, sm)


def one_each(variants: Sequence[Variant]) -> tuple[Variant, ...]:
    """The first variant of every kernel."""
    firsts: dict[str, Variant] = {}
    for variant in variants:
        firsts.setdefault(variant.kernel.__name__, variant)
    return tuple(firsts.values())


def _aligned(variant: Variant) -> dict[tuple[int], list[list[str | int]]]:
    """What a launch finds of pointers, and compiles the kernel for: PyTorch's tensors begin at multiples of 16 bytes."""
    return {
        (parameter.num,): [["tt.divisibility", 16]]
        for parameter in variant.kernel.params
        if variant.signature.get(parameter.name, "").startswith("*")
        and not (parameter.do_not_specialize or parameter.do_not_specialize_on_alignment)
    }


def _used(cubin: bytes) -> dict[str, int]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(path)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603 (Triton's own tool)
    return {name: int(number) for name, number in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", said)}
