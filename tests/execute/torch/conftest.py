"""Triton's interpreter stands in for a GPU. Without torch or triton nothing here is collected."""

import importlib.util
import os
from collections.abc import Iterator

import numpy as np
import pytest

# Triton looks at it when it is first imported.
os.environ["TRITON_INTERPRET"] = "1"

collect_ignore_glob = [] if importlib.util.find_spec("torch") and importlib.util.find_spec("triton") else ["*"]


@pytest.fixture(scope="module", autouse=True)
def _like_a_gpu() -> Iterator[None]:
    """The interpreter computes with NumPy, which warns of infinities and of NaN. A GPU does not."""
    with np.errstate(all="ignore"):
        yield
