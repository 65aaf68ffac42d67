"""How kernels of this package are launched, but for attention's, which say more."""

from typing import Any


def launch(
    kernel: Any, grid: tuple[int, ...], *arguments: object, warps: int = 4, fusion: bool = False, **constants: object
) -> None:
    """Runs a kernel of `triton.jit` on the current device. `fusion` as in `variants.Variant`."""
    # Said each time, as Triton's own default is about to change.
    kernel[grid](*arguments, **constants, num_warps=warps, enable_fp_fusion=fusion)
