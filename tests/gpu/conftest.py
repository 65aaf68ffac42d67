"""Tests here examine the CPU, with Triton's kernels in its interpreter, unless CHAIRLIFT_TEST_DEVICE names another device."""

import os
from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["*"]

# Before triton is imported: it looks only then.
os.environ.setdefault("TRITON_INTERPRET", "1" if os.environ.get("CHAIRLIFT_TEST_DEVICE", "cpu") == "cpu" else "0")

if find_spec("torch"):
    from torch_executors import one_thread

    one_thread()
