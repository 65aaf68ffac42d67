"""The CPU executor against the reference over all switches, and the bits of a row whatever surrounds it."""

from array import array
from dataclasses import replace

import numpy as np
import pytest
from cpu_executors import EXACT, cpu_executor
from executor_cases import HEAD_DIMS, HEADS, IMPOSSIBLE, LENGTHS, in_pieces
from executor_cases import reference_logits as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from masks import mask_of
from native_kernels import HOST_ISAS
from numpy.typing import NDArray
from tiny_decoders import PLAIN, VARIANTS, masked, random_tokens, random_weights, row

from chairlift.core.errors import ConfigError
from chairlift.core.types import Draw, Plan, Row, Sampling
from chairlift.execute import sampler
from chairlift.execute.cpu.executor import CpuOptions
from chairlift.models.description import Description, Layer, Rope

EVERYTHING = VARIANTS["everything"]
LENGTH = 45
BLOCKS = [7, 2, 5]
INT8 = replace(EXACT, quantization="int8")


def close(left: NDArray[np.floating], right: NDArray[np.floating]) -> None:
    np.testing.assert_allclose(left, right, rtol=2e-4, atol=2e-4)


def same(left: NDArray[np.floating], right: NDArray[np.floating]) -> None:
    assert left.tobytes() == right.tobytes()


class TestAgainstTheReference:
    @pytest.mark.parametrize("description", VARIANTS.values(), ids=VARIANTS.keys())
    def test_every_switch(self, description: Description) -> None:
        weights, tokens = random_weights(description), random_tokens(LENGTH)
        with cpu_executor(description, weights) as executor:
            close(executor.logits([row(tokens, BLOCKS)])[0], reference(description, weights, tokens))

    @pytest.mark.parametrize("isa", HOST_ISAS)
    def test_every_instruction_set(self, isa: str) -> None:
        weights, tokens = random_weights(EVERYTHING), random_tokens(LENGTH)
        with cpu_executor(EVERYTHING, weights, options=replace(EXACT, isa=isa)) as executor:
            close(executor.logits([row(tokens, BLOCKS)])[0], reference(EVERYTHING, weights, tokens))

    @pytest.mark.parametrize("length", LENGTHS)
    def test_every_length_of_context(self, length: int) -> None:
        weights, tokens = random_weights(PLAIN), random_tokens(length)
        blocks = list(range(20, 0, -1))
        with cpu_executor(PLAIN, weights) as executor:
            close(executor.logits([row(tokens, blocks)])[0], reference(PLAIN, weights, tokens))

    @pytest.mark.parametrize("head_dim", HEAD_DIMS)
    def test_every_size_of_head(self, head_dim: int) -> None:
        description = replace(PLAIN, head_dim=head_dim, attention_scale=head_dim**-0.5)
        weights, tokens = random_weights(description), random_tokens(LENGTH)
        with cpu_executor(description, weights) as executor:
            close(executor.logits([row(tokens, BLOCKS)])[0], reference(description, weights, tokens))

    @pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
    def test_every_ratio_of_heads(self, heads: int, kv_heads: int) -> None:
        description = replace(PLAIN, heads=heads, kv_heads=kv_heads)
        weights, tokens = random_weights(description), random_tokens(LENGTH)
        with cpu_executor(description, weights) as executor:
            close(executor.logits([row(tokens, BLOCKS)])[0], reference(description, weights, tokens))

    def test_contexts_of_more_than_one_segment(self) -> None:
        description = replace(PLAIN, layers=(Layer(Rope(10_000.0)), Layer(Rope(10_000.0), window=1100)))
        weights, tokens = random_weights(description), random_tokens(2100)
        blocks = list(range(132))
        with cpu_executor(description, weights, num_blocks=132, max_tokens=2100) as executor:
            logits = in_pieces(executor, tokens, [0, 1000, 2099, 2100], blocks)
            close(logits, reference(description, weights, tokens))

    @pytest.mark.parametrize("window", [None, 1500])
    def test_segments_computed_by_several_threads(self, window: int | None) -> None:
        description = replace(PLAIN, layers=(Layer(Rope(10_000.0), window=window), Layer(Rope(10_000.0))))
        weights, tokens = random_weights(description), random_tokens(3100)
        blocks, edges = list(range(194)), [*range(0, 3100, 512), 3099, 3100]
        logits: list[NDArray[np.float32]] = []
        for threads in (1, 2):
            options = replace(EXACT, threads=threads)
            with cpu_executor(description, weights, num_blocks=194, options=options) as executor:
                logits.append(in_pieces(executor, tokens, edges, blocks))
        same(logits[0], logits[1])

    def test_many_rows_at_once(self) -> None:
        weights = random_weights(PLAIN)
        texts = [random_tokens(length, seed=length) for length in range(1, 17)]
        with cpu_executor(PLAIN, weights) as executor:
            logits = executor.logits([row(text, [number], seq_id=str(number)) for number, text in enumerate(texts)])
        for text, scores in zip(texts, logits, strict=True):
            close(scores, reference(PLAIN, weights, text))

    @pytest.mark.parametrize(("kind", "error"), [("f16", 0.02), ("bf16", 0.15), ("int8", 0.3)])
    def test_a_smaller_cache_is_close(self, kind: str, error: float) -> None:
        weights, tokens = random_weights(PLAIN), random_tokens(LENGTH)
        with cpu_executor(PLAIN, weights, options=replace(EXACT, kv_cache_dtype=kind)) as executor:
            logits = executor.logits([row(tokens, BLOCKS)])[0]
        np.testing.assert_allclose(logits, reference(PLAIN, weights, tokens), atol=error)

    def test_weights_and_activations_of_8_bits_are_close(self) -> None:
        errors: list[float] = []
        for seed in range(6):
            weights, tokens = random_weights(PLAIN, seed=seed), random_tokens(LENGTH, seed=seed)
            with cpu_executor(PLAIN, weights, options=INT8) as executor:
                logits = executor.logits([row(tokens, BLOCKS)])[0]
            expected = reference(PLAIN, weights, tokens)
            errors.append(float(np.abs(logits - expected).max() / np.abs(expected).max()))
        assert np.mean(errors) < 0.06


@pytest.mark.parametrize("options", [EXACT, INT8, *(replace(EXACT, kv_cache_dtype=kind) for kind in ("bf16", "int8"))])
class TestTheSameBits:
    """All comparisons are exact."""

    def test_however_a_prompt_is_cut(self, options: CpuOptions) -> None:
        weights, tokens = random_weights(EVERYTHING), random_tokens(LENGTH)
        with cpu_executor(EVERYTHING, weights, options=options) as executor:
            whole = executor.logits([row(tokens, BLOCKS)])[0]
            for size in (1, 2, 7, 16, 17):
                same(in_pieces(executor, tokens, [*range(0, LENGTH, size), LENGTH], BLOCKS), whole)

    def test_in_whatever_blocks(self, options: CpuOptions) -> None:
        weights, tokens = random_weights(EVERYTHING), random_tokens(LENGTH)
        with cpu_executor(EVERYTHING, weights, options=options) as executor:
            same(executor.logits([row(tokens, [9, 0, 39])])[0], executor.logits([row(tokens, BLOCKS)])[0])

    def test_on_however_many_threads(self, options: CpuOptions) -> None:
        weights, tokens = random_weights(EVERYTHING), random_tokens(LENGTH)
        logits: list[NDArray[np.float32]] = []
        for threads in (1, 2, 3):
            with cpu_executor(EVERYTHING, weights, options=replace(options, threads=threads)) as executor:
                logits.append(executor.logits([row(tokens, BLOCKS)])[0])
        same(logits[0], logits[1])
        same(logits[0], logits[2])

    def test_on_every_instruction_set(self, options: CpuOptions) -> None:
        weights, tokens = random_weights(EVERYTHING), random_tokens(LENGTH)
        logits: list[NDArray[np.float32]] = []
        for isa in HOST_ISAS:
            with cpu_executor(EVERYTHING, weights, options=replace(options, isa=isa)) as executor:
                logits.append(executor.logits([row(tokens, BLOCKS)])[0])
        for other in logits[1:]:
            same(logits[0], other)

    def test_with_blocks_of_another_size(self, options: CpuOptions) -> None:
        weights, tokens = random_weights(EVERYTHING), random_tokens(LENGTH)
        with cpu_executor(EVERYTHING, weights, options=options) as executor:
            small = executor.logits([row(tokens, BLOCKS)])[0]
        with cpu_executor(EVERYTHING, weights, options=options, block_size=48, num_blocks=2) as executor:
            same(executor.logits([row(tokens, [1])])[0], small)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_row_has_the_same_bits_in_any_batch(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 48), min_size=2, max_size=6))
    pool = data.draw(st.permutations(range(18)))
    texts = {f"s{index}": random_tokens(length, seed=index) for index, length in enumerate(lengths)}
    tables = {name: pool[3 * index : 3 * index + 3] for index, name in enumerate(texts)}
    done = dict.fromkeys(texts, 0)
    last: dict[str, NDArray[np.float32]] = {}
    weights = random_weights(EVERYTHING)
    with cpu_executor(EVERYTHING, weights, num_blocks=18, options=replace(INT8, threads=2)) as batch:
        while left := [name for name in texts if done[name] < len(texts[name])]:
            chosen = data.draw(st.lists(st.sampled_from(left), min_size=1, unique=True))
            counts = [data.draw(st.integers(1, len(texts[name]) - done[name])) for name in chosen]
            rows = [
                row(texts[name][done[name] : done[name] + count], tables[name], seq_id=name, start=done[name])
                for name, count in zip(chosen, counts, strict=True)
            ]
            last |= dict(zip(chosen, batch.logits(rows), strict=True))
            done |= {name: done[name] + count for name, count in zip(chosen, counts, strict=True)}
    with cpu_executor(EVERYTHING, weights, options=INT8) as alone:
        for name, tokens in texts.items():
            same(last[name], alone.logits([row(tokens, [0, 1, 2])])[0])


class TestPads:
    def test_the_others_are_not_changed(self) -> None:
        tokens, weights = random_tokens(LENGTH), random_weights(EVERYTHING)
        pads = [row([1, 2, 3], seq_id="b", pad=True), row([4], seq_id="c", start=30, pad=True)]
        with cpu_executor(EVERYTHING, weights) as executor:
            alone = executor.logits([row(tokens, BLOCKS)])
            same(executor.logits([pads[0], row(tokens, BLOCKS), pads[1]]), alone)

    def test_nothing_of_the_others_is_overwritten(self) -> None:
        tokens, weights = random_tokens(LENGTH), random_weights(EVERYTHING)
        with cpu_executor(EVERYTHING, weights, num_blocks=3) as executor:
            whole = executor.logits([row(tokens, [2, 0, 1])])[0]
            executor.logits([row(tokens[:-1], [2, 0, 1])])
            executor.logits([row(random_tokens(48, seed=5), seq_id="b", pad=True)])
            same(executor.logits([row(tokens[-1:], [2, 0, 1], start=LENGTH - 1)])[0], whole)

    def test_a_step_of_nothing_else_draws_nothing(self) -> None:
        with cpu_executor(PLAIN, random_weights(PLAIN)) as executor:
            executor.launch(Plan(3, (row([1, 2], pad=True),)))
            assert executor.collect().rows == ()


class TestThePort:
    def test_only_rows_with_draws_are_answered(self) -> None:
        work = (row([1, 2], [0], seq_id="quiet", draws=0), row([3], [1], seq_id="one"), row([4], [2], seq_id="two", draws=2))
        with cpu_executor(EVERYTHING, random_weights(EVERYTHING)) as executor:
            executor.launch(Plan(7, work))
            result = executor.collect()
        assert (result.step, [(answer.seq_id, len(answer.tokens)) for answer in result.rows]) == (7, [("one", 1), ("two", 2)])

    def test_the_draws_of_one_row_differ_by_their_choice(self) -> None:
        draws = tuple(Draw(choice, Sampling(temperature=10.0, seed=5)) for choice in range(20))
        with cpu_executor(PLAIN, random_weights(PLAIN)) as executor:
            executor.launch(Plan(0, (row([1, 2], [0])._replace(draws=draws),)))
            assert len(set(executor.collect().rows[0].tokens)) > 1

    @pytest.mark.parametrize("value", [np.inf, np.nan])
    @pytest.mark.parametrize("options", [EXACT, INT8])
    def test_a_row_with_broken_logits_fails_and_the_others_are_answered(self, value: float, options: CpuOptions) -> None:
        weights = random_weights(PLAIN)
        weights.tensors["embed"][60] = value
        work = (row([60], [0], seq_id="bad"), row([1], [1], seq_id="good"))
        with cpu_executor(PLAIN, weights, options=options) as executor:
            executor.launch(Plan(0, work))
            result = executor.collect()
        assert [failed for failed, _ in result.failed] == ["bad"]
        assert [answer.seq_id for answer in result.rows] == ["good"]

    def test_a_row_that_may_draw_nothing_fails_and_the_others_are_answered(self) -> None:
        work = (masked(row([60], [0], seq_id="bad"), ()), masked(row([1], [1], seq_id="good"), [7]))
        with cpu_executor(PLAIN, random_weights(PLAIN)) as executor:
            executor.launch(Plan(0, work))
            result = executor.collect()
        assert result.failed == (("bad", sampler.NOTHING_ALLOWED),)
        assert [(answer.seq_id, answer.tokens) for answer in result.rows] == [("good", (7,))]

    def test_every_row_draws_and_tells_as_if_it_were_alone(self) -> None:
        history = array("i", random_tokens(6))
        draws = [
            Draw(0, Sampling(temperature=0, repetition_penalty=2.0), history=history, prompt_len=2),
            Draw(0, Sampling(seed=9, top_k=1, logprobs=5)),
            Draw(0, Sampling(frequency_penalty=1.2, logit_bias=((3, 5.0),), logprobs=0), history=history, prompt_len=1),
            Draw(0, Sampling(temperature=0), mask=mask_of(range(5, 30), PLAIN.vocab)),
        ]
        work = [row(random_tokens(6, seed=at), [at], seq_id=str(at))._replace(draws=(draw,)) for at, draw in enumerate(draws)]
        answers: list[Row] = []
        for threads in (1, 2):
            with cpu_executor(PLAIN, random_weights(PLAIN), options=CpuOptions(threads=threads)) as executor:
                for plan in (work, work[::-1], *([one] for one in work)):
                    executor.launch(Plan(0, tuple(plan)))
                    answers += executor.collect().rows
        assert len(set(answers)) == len(work)

    def test_broken_numbers_left_in_a_block_are_never_read(self) -> None:
        weights = random_weights(PLAIN)
        weights.tensors["embed"][60] = np.nan
        with cpu_executor(PLAIN, weights, num_blocks=2) as executor:
            executor.logits([row([60] * 32, [0, 1])])
            assert np.isfinite(executor.logits([row([1, 2, 3, 4, 5], [1, 0])])).all()

    def test_an_empty_plan_gives_an_empty_result(self) -> None:
        with cpu_executor(PLAIN, random_weights(PLAIN)) as executor:
            executor.launch(Plan(4, ()))
            assert executor.collect()._replace(elapsed_s=0.0) == (4, (), (), 0.0)

    @pytest.mark.parametrize(
        "work",
        [*IMPOSSIBLE.values(), row([-1], [0]), row([61], [0])],
        ids=[*IMPOSSIBLE, "negative", "beyond the vocabulary"],
    )
    def test_a_plan_that_cannot_be_is_our_own_mistake(self, work) -> None:
        with cpu_executor(PLAIN, random_weights(PLAIN)) as executor, pytest.raises(AssertionError):
            executor.launch(Plan(0, (work,)))

    def test_a_step_larger_than_the_executor_is_our_own_mistake(self) -> None:
        with cpu_executor(PLAIN, random_weights(PLAIN), max_tokens=16) as executor, pytest.raises(AssertionError):
            executor.launch(Plan(0, (row([1] * 17, [0, 1]),)))


@pytest.mark.parametrize(
    ("options", "block_size", "message"),
    [
        (CpuOptions(threads=0), 16, "threads"),
        (CpuOptions(kv_cache_dtype="int3"), 16, "kv_cache_dtype"),
        (CpuOptions(isa="sse9"), 16, "isa"),
        (CpuOptions(threads=1), 8, "block_size"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: CpuOptions, block_size: int, message: str) -> None:
    with (
        pytest.raises(ConfigError, match=message),
        cpu_executor(PLAIN, random_weights(PLAIN), options=options, block_size=block_size),
    ):
        pass
