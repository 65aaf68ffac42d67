"""Keys and values that are read in one piece: the same bits as through a table of blocks, and close to the reference."""

from dataclasses import replace

import numpy as np
import pytest
from cpu_executors import CPU_BLOCK, EXACT, cpu_executor
from executor_cases import LENGTHS, in_pieces
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tiny_decoders import PLAIN, VARIANTS, random_tokens, random_weights, row
from virtual import Ride, request

from chairlift.core.config import KV_LAYOUTS, EngineConfig
from chairlift.core.types import Sampling
from chairlift.engine.core import EngineCore
from chairlift.execute.cpu.executor import CpuExecutor, CpuOptions
from chairlift.execute.cpu.operations import KV_KINDS
from chairlift.execute.reference import ReferenceExecutor
from chairlift.models.description import Description, Layer, Rope

EVERYTHING = VARIANTS["everything"]
LENGTH = 45
SCATTERED, RUN = [7, 2, 5], [36, 37, 38]
"""Blocks of the same text in either layout."""


def runs(description: Description, options: CpuOptions, tokens: list[int], edges: list[int]) -> NDArray[np.float32]:
    with cpu_executor(description, random_weights(description), options=options, contiguous=True) as executor:
        return in_pieces(executor, tokens, edges, RUN)


def tables(description: Description, options: CpuOptions, tokens: list[int], edges: list[int]) -> NDArray[np.float32]:
    with cpu_executor(description, random_weights(description), options=options) as executor:
        return in_pieces(executor, tokens, edges, SCATTERED)


def same(left: NDArray[np.floating], right: NDArray[np.floating]) -> None:
    assert left.tobytes() == right.tobytes()


@pytest.mark.parametrize("kind", KV_KINDS)
@pytest.mark.parametrize("edges", [[0, LENGTH], [0, 7, 16, 40, 44, LENGTH]], ids=["whole", "in chunks"])
def test_every_kind_of_cache_gives_the_bits_of_the_paged_one(kind: str, edges: list[int]) -> None:
    tokens, options = random_tokens(LENGTH), replace(EXACT, kv_cache_dtype=kind)
    same(runs(EVERYTHING, options, tokens, edges), tables(EVERYTHING, options, tokens, edges))


@pytest.mark.parametrize("description", VARIANTS.values(), ids=VARIANTS.keys())
def test_every_switch_gives_the_bits_of_the_paged_one(description: Description) -> None:
    tokens, edges = random_tokens(LENGTH), [0, LENGTH - 1, LENGTH]
    same(runs(description, EXACT, tokens, edges), tables(description, EXACT, tokens, edges))


def test_portable_code_gives_the_same_bits_too() -> None:
    tokens, options = random_tokens(LENGTH), replace(EXACT, isa="portable")
    same(runs(EVERYTHING, options, tokens, [0, LENGTH]), tables(EVERYTHING, EXACT, tokens, [0, LENGTH]))


@pytest.mark.parametrize("length", LENGTHS)
def test_every_length_of_context_is_close_to_the_reference(length: int) -> None:
    weights, tokens = random_weights(PLAIN), random_tokens(length)
    blocks = range(40 - -(-length // CPU_BLOCK), 40)
    judge = ReferenceExecutor.load(PLAIN, weights, num_blocks=40, block_size=CPU_BLOCK, contiguous=True)
    with cpu_executor(PLAIN, weights, contiguous=True) as executor:
        logits, expected = executor.logits([row(tokens, blocks)]), judge.logits([row(tokens, blocks)])
    np.testing.assert_allclose(logits, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("window", [None, 1500])
def test_segments_computed_by_several_threads_give_the_bits_of_the_paged_one(window: int | None) -> None:
    description = replace(PLAIN, layers=(Layer(Rope(10_000.0), window=window), Layer(Rope(10_000.0))))
    weights, tokens = random_weights(description), random_tokens(2100)
    edges, options = [*range(0, 2100, 512), 2099, 2100], replace(EXACT, threads=2)
    logits: list[NDArray[np.float32]] = []
    for contiguous in (False, True):
        with cpu_executor(description, weights, num_blocks=132, options=options, contiguous=contiguous) as executor:
            logits.append(in_pieces(executor, tokens, edges, range(132)))
    same(logits[0], logits[1])


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_a_row_has_the_bits_of_the_paged_one_in_any_batch(data: st.DataObject) -> None:
    """Runs of three blocks side by side, in any order, written and read in any steps."""
    lengths = data.draw(st.lists(st.integers(1, 48), min_size=2, max_size=6))
    places = data.draw(st.permutations(range(len(lengths))))
    texts = [random_tokens(length, seed=index) for index, length in enumerate(lengths)]
    kind = data.draw(st.sampled_from(KV_KINDS))
    options = CpuOptions(threads=2, quantization="int8", kv_cache_dtype=kind)
    done = [0] * len(texts)
    last: dict[int, NDArray[np.float32]] = {}
    weights = random_weights(EVERYTHING)
    with cpu_executor(EVERYTHING, weights, num_blocks=18, options=options, contiguous=True) as batch:
        while left := [index for index, text in enumerate(texts) if done[index] < len(text)]:
            chosen = data.draw(st.lists(st.sampled_from(left), min_size=1, unique=True))
            counts = {index: data.draw(st.integers(1, len(texts[index]) - done[index])) for index in chosen}
            rows = [
                row(
                    texts[index][done[index] : done[index] + count],
                    range(3 * places[index], 3 * places[index] + 3),
                    seq_id=str(index),
                    start=done[index],
                )
                for index, count in counts.items()
            ]
            last |= dict(zip(chosen, batch.logits(rows), strict=True))
            for index, count in counts.items():
                done[index] += count
    with cpu_executor(EVERYTHING, weights, options=replace(options, threads=1)) as alone:
        for index, tokens in enumerate(texts):
            same(last[index], alone.logits([row(tokens, SCATTERED)])[0])


def test_padded_rows_change_nothing_of_the_others() -> None:
    tokens, weights = random_tokens(LENGTH), random_weights(EVERYTHING)
    pads = [row([1, 2, 3], seq_id="b", pad=True), row([4], seq_id="c", start=30, pad=True)]
    with cpu_executor(EVERYTHING, weights, num_blocks=3, contiguous=True) as executor:
        alone = executor.logits([row(tokens, range(3))])
        same(executor.logits([pads[0], row(tokens, range(3)), pads[1]]), alone)


@pytest.mark.parametrize("kind", ["f32", "int8"])
def test_an_engine_writes_the_texts_of_a_paged_one(kind: str) -> None:
    """Scheduled in another order, too: the pool holds three full contexts, which the paged one fills with more requests."""
    weights, told = random_weights(EVERYTHING), []
    options = CpuOptions(threads=2, kv_cache_dtype=kind)
    for layout in KV_LAYOUTS:
        config = EngineConfig(96, 18, max_num_seqs=6, max_num_batched_tokens=40, kv_layout=layout)
        contiguous = layout == "contiguous"
        with cpu_executor(EVERYTHING, weights, num_blocks=18, options=options, contiguous=contiguous) as executor:
            going = Ride(EngineCore(config, executor))
            for number in range(8):
                sampling = Sampling(temperature=0.8, seed=number)
                going.submit(request(str(number), random_tokens(7 * number + 1, seed=number), 40, sampling=sampling))
            going.run()
        told.append((going.tokens, max(step.snapshot.running for step in going.steps)))
    (texts, paged), (same_texts, runs) = told
    assert texts == same_texts
    assert paged > runs


@pytest.mark.parametrize("blocks", [[0, 2], [1, 0], [39, 40], [-1, 0]], ids=["apart", "backwards", "too high", "too low"])
def test_blocks_that_are_no_run_are_our_own_mistake(blocks: list[int]) -> None:
    with cpu_executor(PLAIN, random_weights(PLAIN), contiguous=True) as executor, pytest.raises(AssertionError):
        executor.logits([row([1], blocks)])


def test_a_run_at_the_end_of_the_cache_is_read_alone() -> None:
    """What is asked for ahead of time lies behind everything; it is never used."""
    weights = random_weights(PLAIN)
    weights.tensors["embed"][60] = np.nan

    def fill(executor: CpuExecutor) -> NDArray[np.float32]:
        executor.logits([row([60] * 16, [0], seq_id="b")])
        executor.logits([row([60] * 48, pad=True), row([1], [1])])
        return executor.logits([row([1, 2, 3], [1])])[0]

    with cpu_executor(PLAIN, weights, num_blocks=2, contiguous=True) as executor:
        assert np.isfinite(fill(executor)).all()
