"""Tests of the executor in PyTorch are collected where PyTorch is installed. Triton's kernels run in its interpreter here."""

import os
from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["*"]

# Before triton is imported: it looks only then.
os.environ.setdefault("TRITON_INTERPRET", "1")

if find_spec("torch"):
    from torch_executors import one_thread

    one_thread()
