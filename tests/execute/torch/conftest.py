"""Tests of the executor in PyTorch are collected where PyTorch is installed. Triton's kernels run in its interpreter here,
unless CHAIRLIFT_TEST_DEVICE names a GPU.
"""

import os
from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np
import pytest

collect_ignore_glob = [] if find_spec("torch") else ["*"]

# Before triton is imported: it looks only then.
os.environ.setdefault("TRITON_INTERPRET", "1" if os.environ.get("CHAIRLIFT_TEST_DEVICE", "cpu") == "cpu" else "0")

if find_spec("torch"):
    from torch_executors import one_thread

    one_thread()


@pytest.fixture(scope="module", autouse=True)
def _like_a_gpu() -> Iterator[None]:
    """The interpreter computes with NumPy, which warns of infinities and of NaN. A GPU does not."""
    with np.errstate(all="ignore"):
        yield
