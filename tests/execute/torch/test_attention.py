"""All forms of attention against plain float64 arithmetic, over rows of every sort. Triton's kernels run in its interpreter.

Tolerances are of outputs about 1 wide: in float32 what sums in another order differ by, in 16 bits two roundings, that of the
shares and that of the output.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from attention_cases import SCALE, Case, cases, naive
from hypothesis import given, settings
from torch import Tensor

from chairlift.execute.torch.attention.backends import Attention
from chairlift.execute.torch.attention.heads import Heads
from chairlift.execute.torch.attention.reference import ReferenceAttention
from chairlift.execute.torch.attention.triton import TritonAttention, Workspace
from chairlift.execute.torch.kernels.attention_tiles import Tile, Tiles

TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
SMALL = Tiles(chunks=Tile(keys=16, warps=1), tiles=Tile(keys=16, warps=1, queries=16), chunk=16, most_chunks=4)
"""So small that few keys are several tiles and chunks."""


def reference(heads: Heads) -> ReferenceAttention:
    return ReferenceAttention(scale=heads.scale)


def by_kernels(heads: Heads, tiles: Tiles = SMALL, *, max_rows: int = 8) -> TritonAttention:
    workspace = Workspace.create(heads, tiles, max_rows=max_rows, device=torch.device("cpu"))
    for left in (workspace.partials, workspace.weights):
        left.fill_(torch.nan)
    return TritonAttention(heads, tiles, workspace, interpreted=True)


def answer(attention: Attention, case: Case) -> Tensor:
    attention.plan(case.batch)
    return attention.run(0, case.queries, case.kv, case.window)


def assert_close(got: Tensor, case: Case) -> None:
    assert got.dtype == case.heads.dtype
    np.testing.assert_allclose(got.double(), naive(case), rtol=0, atol=TOLERANCES[case.heads.dtype])


@given(case=cases())
def test_the_reference_computes_what_each_query_sees_and_reads_nothing_else(case: Case) -> None:
    assert_close(answer(reference(case.heads), case), case)


@settings(max_examples=60)
@given(case=cases())
def test_the_kernels_compute_what_each_query_sees_and_read_nothing_else(case: Case) -> None:
    assert_close(answer(by_kernels(case.heads), case), case)
