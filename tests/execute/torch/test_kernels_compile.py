"""Triton's compiler accepts the kernels, whose arithmetic the interpreter has shown, and they fit a GPU. None is needed."""

import os
import subprocess
import sys
from pathlib import Path

from chairlift.execute.torch.kernels import building


def test_one_of_each_kernel_compiles_and_fits(tmp_path: Path) -> None:
    """In a process of its own, as this one has chosen the interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "error", "-m", "chairlift.execute.torch.kernels", "--briefly", "--sm", "90"]
    done = subprocess.run(command, env=environment | {"TRITON_CACHE_DIR": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == 2 + len(building.one_each(building.VARIANTS))


def test_variants_tell_the_type_or_the_value_of_every_argument() -> None:
    for variant in building.VARIANTS:
        assert sorted([*variant.signature, *variant.constants]) == sorted(variant.kernel.arg_names), variant.name
