"""`python -m chairlift.execute.torch.kernels`: compiles every kernel, without a GPU, and prints what each takes of one."""

import argparse
import sys

from triton import knobs

from chairlift.execute.torch.kernels.building import SHARED_BYTES, VARIANTS, build_all, one_each


def main() -> int:
    """Exit code 1 if a kernel spills registers or does not fit into shared memory."""
    parser = argparse.ArgumentParser(prog="python -m chairlift.execute.torch.kernels", description=__doc__)
    parser.add_argument("--sm", type=int, choices=list(SHARED_BYTES), action="append", help="for these GPUs only (may repeat)")
    parser.add_argument("--briefly", action="store_true", help="one variant of each kernel")
    given = parser.parse_args()
    if knobs.runtime.interpret:
        parser.error("TRITON_INTERPRET is set: there is nothing to compile")
    print("| kernel | sm | warps | registers | shared bytes | spilled bytes | blocks by registers |")  # noqa: T201
    print("|---|---|---|---|---|---|---|")  # noqa: T201
    fits = True
    for built in build_all(one_each(VARIANTS) if given.briefly else VARIANTS, given.sm or list(SHARED_BYTES)):
        fits &= built.fits
        cells = (built.name, built.sm, built.warps, built.registers, built.shared_bytes, built.spilled_bytes, built.blocks)
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)  # noqa: T201
    return 0 if fits else 1


if __name__ == "__main__":
    sys.exit(main())
