"""All forms of attention against plain float64 arithmetic, over rows of every sort. Triton's kernels run in its interpreter.

Tolerances are of outputs about 1 wide: in float32 what sums in another order differ by, in 16 bits two roundings, that of the
shares and that of the output.
"""

from dataclasses import dataclass, replace

import flashinfer_double
import numpy as np
import pytest
import torch
from attention_cases import SCALE, Case, Step, naive
from attention_strategies import cases
from executor_cases import reference_logits
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_decoders import VARIANTS, random_tokens, random_weights, row
from torch import Tensor
from torch_executors import choice, torch_executor

from chairlift.core.errors import ConfigError
from chairlift.execute.torch.attention import flashinfer
from chairlift.execute.torch.attention.backends import Attention, Backend, build, choose, workspace_bytes
from chairlift.execute.torch.attention.heads import Heads
from chairlift.execute.torch.attention.reference import ReferenceAttention
from chairlift.execute.torch.attention.triton import TritonAttention, Workspace
from chairlift.execute.torch.device import Device
from chairlift.execute.torch.kernels.attention_tiles import AMPERE, HOPPER, Tile, Tiles

TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
SMALL = Tiles(chunks=Tile(keys=16, warps=1), tiles=Tile(keys=16, warps=1, queries=16), chunk=16, most_chunks=4)
"""So small that few keys are several tiles and chunks."""
CPU = torch.device("cpu")
HEADS = Heads(heads=4, kv_heads=2, head_dim=16, block_size=8, scale=SCALE, dtype=torch.float32)
BLOCKS = [7, 2, 5]
MIXED = ((1, 45), (7, 30), (1, 1), (3, 0), (1, 0), (4, 4))
"""A next token, a chunk, a first token, two pads and a prompt."""


def by_kernels(heads: Heads, tiles: Tiles = SMALL, *, max_rows: int = 8) -> TritonAttention:
    workspace = Workspace.create(heads, tiles, max_rows=max_rows, device=CPU)
    for left in (workspace.partials, workspace.weights):
        left.fill_(torch.nan)
    return TritonAttention(heads, tiles, workspace, interpreted=True)


def answer(attention: Attention, case: Case) -> Tensor:
    attention.plan(case.batch)
    return attention.run(0, case.queries, case.kv, case.window)


def assert_right(got: Tensor, case: Case) -> None:
    assert got.dtype == case.heads.dtype
    np.testing.assert_allclose(got.double(), naive(case), rtol=0, atol=TOLERANCES[case.heads.dtype])


# ── what they compute ─────────────────────────────────────────────────────────────────────────────────────────────────────
# Memory that nobody may read holds no numbers (`attention_cases`), so one key too many would show.


@settings(max_examples=30)
@given(case=cases())
def test_the_reference_computes_what_each_query_sees(case: Case) -> None:
    assert_right(answer(ReferenceAttention(scale=SCALE), case), case)


@settings(max_examples=10)
@given(case=cases(most_rows=2, most_tokens=5, furthest=40))
def test_the_kernels_compute_what_each_query_sees(case: Case) -> None:
    assert_right(answer(by_kernels(case.heads), case), case)


@pytest.mark.parametrize("window", [None, 1, 20])
def test_the_kernels_serve_all_sorts_of_rows_together(window: int | None) -> None:
    case = Case(HEADS, MIXED, window)
    assert_right(answer(by_kernels(HEADS), case), case)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 112, 128, 256])
@pytest.mark.parametrize("capability", [AMPERE, HOPPER])
def test_the_kernels_have_the_tiles_of_a_gpu_for_every_size_of_heads(head_dim: int, capability: tuple[int, int]) -> None:
    heads = Heads(heads=3, kv_heads=1, head_dim=head_dim, block_size=16, scale=head_dim**-0.5, dtype=torch.bfloat16)
    case = Case(heads, ((1, 70), (5, 67), (2, 0)), None)
    tiles = Tiles.pick(head_dim=head_dim, itemsize=2, capability=capability)
    assert_right(answer(by_kernels(heads, tiles), case), case)


def test_a_tile_may_hold_queries_that_see_nothing_of_its_first_keys() -> None:
    heads = replace(HEADS, heads=1, kv_heads=1)
    case = Case(heads, ((40, 70),), 3)
    assert_right(answer(by_kernels(heads, replace(SMALL, tiles=Tile(keys=16, warps=1, queries=64))), case), case)


def test_queries_with_gaps_are_read_where_they_are() -> None:
    case = Case(HEADS, ((1, 5), (3, 9)), None)
    attention = by_kernels(HEADS)
    attention.plan(case.batch)
    spaced = torch.full((len(case.queries), 2, *case.queries.shape[1:]), torch.nan)
    spaced[:, 0] = case.queries
    assert_right(attention.run(0, spaced[:, 0], case.kv, None), case)


def test_a_decoder_with_the_kernels_equals_the_reference_executor() -> None:
    """Prompt and next tokens, windows and key heads that are shared."""
    description = VARIANTS["everything"]
    weights, tokens = random_weights(description), random_tokens(20)
    executor = torch_executor(description, weights, choice=choice(attention="triton"))
    executor.logits([row(tokens[:18], BLOCKS)])
    executor.logits([row(tokens[18:19], BLOCKS, start=18)])
    got = executor.logits([row(tokens[19:], BLOCKS, start=19)])
    np.testing.assert_allclose(got[0], reference_logits(description, weights, tokens), rtol=2e-4, atol=2e-4)


# ── what they do not depend on ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_row_of_one_token_has_the_same_bits_in_any_batch() -> None:
    case = Case(HEADS, ((1, 49), (4, 30), (1, 3)), None)
    attention, together = by_kernels(HEADS), answer(by_kernels(HEADS), case)
    for index in (0, 2):
        at = int(case.batch.bounds[index])
        attention.plan(_only(case.batch, index))
        alone = attention.run(0, case.queries[at : at + 1], case.kv, None)
        assert torch.equal(alone[0], together[at])


@pytest.mark.parametrize("window", [None, 20])
def test_programs_planned_for_other_contexts_compute_these_as_well(window: int | None) -> None:
    """So a captured step can be launched for other rows."""
    case = Case(HEADS, ((1, 49), (1, 0), (1, 20)), window)
    for planned in (1, 200):
        attention = by_kernels(HEADS, replace(SMALL, most_chunks=8))
        attention.plan(replace(case.batch, seen=(planned,) * 3))
        assert_right(attention.run(0, case.queries, case.kv, window), case)


def _only(step: Step, index: int) -> Step:
    return Step(
        bounds=step.bounds[index : index + 2] - step.bounds[index],
        contexts=step.contexts[index : index + 1],
        tables=step.tables[index : index + 1],
        counts=step.counts[index : index + 1],
        seen=step.seen[index : index + 1],
    )


# ── how they are cut ──────────────────────────────────────────────────────────────────────────────────────────────────────


@given(keys=st.integers(0, 300_000), longest=st.integers(1, 300_000))
def test_a_row_never_has_more_chunks_than_there_is_room_for(keys: int, longest: int) -> None:
    tiles = Tiles.pick(head_dim=128, itemsize=2, capability=HOPPER).up_to(longest)
    assert -(-keys // tiles.chunk_size(keys)) <= tiles.most_chunks <= 32


def test_one_long_row_keeps_every_multiprocessor_of_an_h200_busy() -> None:
    tiles = Tiles.pick(head_dim=128, itemsize=2, capability=HOPPER).up_to(8192)
    assert 8 * tiles.programs(rows=1, kv_heads=8, keys=8192) == 256


def test_one_long_row_among_many_short_ones_is_read_by_several_programs() -> None:
    tiles = Tiles.pick(head_dim=128, itemsize=2, capability=HOPPER)
    assert tiles.programs(rows=256, kv_heads=8, keys=100_000) == 8


def test_the_workspace_takes_what_was_said() -> None:
    device = Device(CPU)
    backend = Backend("triton", "a test")
    workspace = Workspace.create(
        HEADS, Tiles.pick(head_dim=16, itemsize=4, capability=AMPERE).up_to(2000), max_rows=5, device=CPU
    )
    taken = workspace.partials.nbytes + workspace.weights.nbytes
    assert workspace_bytes(backend, heads=HEADS, device=device, max_rows=5, longest=2000) == taken == 5 * 4 * 8 * 17 * 4


# ── FlashInfer, by a double ───────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=20)
@given(case=cases())
def test_flashinfer_is_told_what_each_query_sees(case: Case) -> None:
    assert_right(answer(_flashinfer(case.heads), case), case)


def test_flashinfer_plans_once_a_step_for_every_window() -> None:
    case = Case(HEADS, MIXED, None)
    made: list[flashinfer.Wrapper] = []

    def several() -> flashinfer.Wrapper:
        made.append(flashinfer_double.BatchPrefillWithPagedKVCacheWrapper(torch.empty(1, dtype=torch.uint8), "NHD"))
        return made[-1]

    attention = flashinfer.FlashInferAttention(HEADS, single=several, several=several)
    for _ in range(2):
        attention.plan(case.batch)
        for layer, window in enumerate((None, 4, None, 4)):
            attention.run(layer, case.queries, case.kv, window)
    assert [wrapper.plans for wrapper in made] == [2, 2]  # pyright: ignore[reportAttributeAccessIssue]


def _flashinfer(heads: Heads) -> flashinfer.FlashInferAttention:
    workspace = torch.empty(1, dtype=torch.uint8)
    return flashinfer.FlashInferAttention(
        heads,
        single=lambda: flashinfer_double.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD"),
        several=lambda: flashinfer_double.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD"),
    )


# ── which of them ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Place:
    capability: tuple[int, int] | None = HOPPER
    triton: bool = True
    words: str = "cuda:0 (a GPU)"


PROCESSOR = Place(None, words="cpu")


def test_a_processor_has_the_reference_even_where_triton_is_interpreted() -> None:
    assert choose("auto", PROCESSOR, dtype=torch.float32).words == "reference (the others are for GPUs)"


def test_a_gpu_has_triton_if_flashinfer_is_not_installed() -> None:
    assert choose("auto", Place(), dtype=torch.bfloat16).words == "triton (FlashInfer: flashinfer is not installed)"


def test_a_gpu_without_triton_still_has_the_reference() -> None:
    chosen = choose("auto", Place(triton=False), dtype=torch.bfloat16)
    assert chosen.words == "reference (neither FlashInfer nor Triton can be used)"


def test_a_gpu_has_flashinfer_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    flashinfer_double.install(monkeypatch)
    chosen = choose("auto", Place(), dtype=torch.bfloat16, head_dim=128)
    assert chosen.words == "flashinfer (it is installed)"
    case = Case(HEADS, MIXED, 5)
    assert_right(answer(build(chosen, heads=HEADS, device=Device(CPU), max_rows=6, longest=50), case), case)


def test_where_steps_are_captured_a_gpu_has_what_can_be_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    flashinfer_double.install(monkeypatch)
    chosen = choose("auto", Place(), dtype=torch.bfloat16, head_dim=128, captures=True)
    assert (chosen.words, chosen.captures) == ("triton (it can be captured)", True)
    without = choose("auto", Place(triton=False), dtype=torch.bfloat16, head_dim=128, captures=True)
    assert (without.words, without.captures) == ("flashinfer (it is installed)", False)


def test_heads_that_flashinfer_does_not_have_go_to_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    flashinfer_double.install(monkeypatch)
    chosen = choose("auto", Place(), dtype=torch.bfloat16, head_dim=80)
    assert chosen.words == "triton (FlashInfer: it has heads of 64, 128, 256 numbers, and the model's have 80)"


@pytest.mark.parametrize(
    ("asked", "place", "message"),
    [
        ("flash", Place(), "attention_backend 'flash' is unknown: it may be auto, reference, triton, flashinfer"),
        ("flashinfer", Place(), "attention_backend 'flashinfer': flashinfer is not installed"),
        ("triton", replace(PROCESSOR, triton=False), "attention_backend 'triton': its kernels are for GPUs, not for cpu"),
    ],
)
def test_what_cannot_compute_here_is_refused(asked: str, place: Place, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        choose(asked, place, dtype=torch.bfloat16)
    assert str(refusal.value) == message


def test_flashinfer_is_refused_for_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    flashinfer_double.install(monkeypatch)
    with pytest.raises(ConfigError, match="it computes in bfloat16 and float16"):
        choose("flashinfer", Place(), dtype=torch.float32)
    with pytest.raises(ConfigError, match="for GPUs, not for cpu"):
        choose("flashinfer", PROCESSOR, dtype=torch.bfloat16)


@pytest.mark.parametrize("name", ["reference", "triton"])
def test_what_is_built_computes(name: str) -> None:
    case = Case(HEADS, MIXED, None)
    assert_right(
        answer(
            build(choose(name, Device(CPU), dtype=torch.float32), heads=HEADS, device=Device(CPU), max_rows=6, longest=50), case
        ),
        case,
    )
