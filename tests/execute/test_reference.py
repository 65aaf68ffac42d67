"""The reference executor against a naive decoder, over all switches, chunk boundaries, batches and block tables."""

from dataclasses import replace

import numpy as np
import pytest
from executor_cases import in_pieces
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tiny_decoders import (
    BLOCK_SIZE,
    PLAIN,
    VARIANTS,
    ArrayWeights,
    asking,
    masked,
    naive_logits,
    random_tokens,
    random_weights,
    row,
)

from chairlift.core.errors import ModelError
from chairlift.core.types import Draw, Plan, Sampling
from chairlift.execute import sampler
from chairlift.execute.parameters import Parameters
from chairlift.execute.reference import ReferenceExecutor, attend
from chairlift.models.description import Description

EVERYTHING = VARIANTS["everything"]
LENGTH = 13
BLOCKS = [7, 2, 5, 0]
BLOCKS_OF_FOUR = [3, 0, 2, 1]


def executor(
    description: Description = EVERYTHING,
    weights: ArrayWeights | None = None,
    *,
    num_blocks: int = 24,
    contiguous: bool = False,
) -> ReferenceExecutor:
    return ReferenceExecutor.load(
        description,
        weights or random_weights(description),
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        contiguous=contiguous,
    )


def alone(tokens: list[int], description: Description = EVERYTHING) -> NDArray[np.float32]:
    """Logits [vocab] after a text that is computed at once by an executor of its own."""
    blocks = range(-(-len(tokens) // BLOCK_SIZE))
    return executor(description).logits([row(tokens, blocks)])[0]


def close(left: NDArray[np.floating], right: NDArray[np.floating]) -> None:
    np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("description", VARIANTS.values(), ids=VARIANTS.keys())
def test_every_position_equals_the_naive_decoder(description: Description) -> None:
    weights = random_weights(description)
    tokens = random_tokens(LENGTH)
    one_by_one = executor(description, weights)
    logits = [one_by_one.logits([row([token], BLOCKS, start=start)])[0] for start, token in enumerate(tokens)]
    close(np.array(logits), naive_logits(description, weights, tokens))


@pytest.mark.parametrize("description", VARIANTS.values(), ids=VARIANTS.keys())
def test_a_prompt_at_once_equals_the_naive_decoder(description: Description) -> None:
    weights = random_weights(description)
    tokens = random_tokens(LENGTH)
    close(executor(description, weights).logits([row(tokens, BLOCKS)])[0], naive_logits(description, weights, tokens)[-1])


@pytest.mark.parametrize("size", range(1, LENGTH))
def test_a_prompt_in_chunks_equals_the_whole(size: int) -> None:
    tokens = random_tokens(LENGTH)
    logits = in_pieces(executor(), tokens, [*range(0, LENGTH, size), LENGTH], BLOCKS)
    close(logits, alone(tokens))


@settings(max_examples=40, deadline=None)
@given(cuts=st.sets(st.integers(1, LENGTH - 1)), table=st.permutations(range(4)))
def test_any_cuts_and_any_block_table_equal_the_whole(cuts: set[int], table: list[int]) -> None:
    tokens = random_tokens(LENGTH)
    logits = in_pieces(executor(num_blocks=4), tokens, [0, *sorted(cuts), LENGTH], table)
    close(logits, alone(tokens))


@settings(max_examples=40, deadline=None)
@given(cuts=st.sets(st.integers(1, LENGTH - 1)), first=st.integers(0, 3))
def test_a_run_that_is_read_in_one_piece_equals_a_table(cuts: set[int], first: int) -> None:
    tokens, edges = random_tokens(LENGTH), [0, *sorted(cuts), LENGTH]
    run = in_pieces(executor(num_blocks=7, contiguous=True), tokens, edges, list(range(first, first + 4)))
    close(run, in_pieces(executor(), tokens, edges, BLOCKS))


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_sequences_in_one_batch_equal_each_alone(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 10), min_size=2, max_size=5))
    pool = data.draw(st.permutations(range(15)))
    texts = {f"s{index}": random_tokens(length, seed=index) for index, length in enumerate(lengths)}
    tables = {name: pool[3 * index : 3 * index + 3] for index, name in enumerate(texts)}
    done = dict.fromkeys(texts, 0)
    batch, last = executor(num_blocks=15), {}
    while left := [name for name in texts if done[name] < len(texts[name])]:
        chosen = data.draw(st.lists(st.sampled_from(left), min_size=1, unique=True))
        counts = [data.draw(st.integers(1, len(texts[name]) - done[name])) for name in chosen]
        rows = [
            row(texts[name][done[name] : done[name] + count], tables[name], seq_id=name, start=done[name])
            for name, count in zip(chosen, counts, strict=True)
        ]
        last |= dict(zip(chosen, batch.logits(rows), strict=True))
        done |= {name: done[name] + count for name, count in zip(chosen, counts, strict=True)}
    for name, tokens in texts.items():
        close(last[name], alone(tokens))


def test_a_sequence_computed_again_in_other_blocks_gives_the_same() -> None:
    tokens, other = random_tokens(LENGTH), random_tokens(16, seed=9)
    pool = executor(num_blocks=8)
    pool.logits([row(tokens[:9], [0, 1, 2])])
    pool.logits([row(other, [0, 1, 2, 3])])
    pool.logits([row(tokens[:10], [4, 6, 5])])
    close(pool.logits([row(tokens[10:], [4, 6, 5, 7], start=10)])[0], alone(tokens))


def test_two_sequences_share_the_blocks_of_a_common_prefix() -> None:
    prefix, left, right = random_tokens(8), random_tokens(5, seed=3), random_tokens(3, seed=4)
    shared = executor()
    shared.logits([row(prefix + left, [3, 1, 2, 8])])
    close(shared.logits([row(right, [3, 1, 5], start=8)])[0], alone(prefix + right))


def test_broken_numbers_left_in_a_block_are_never_read() -> None:
    description = replace(PLAIN, tied=False)
    weights = random_weights(description)
    weights.tensors["embed"][60] = np.nan
    pool = executor(description, weights, num_blocks=2)
    pool.logits([row([60] * 8, [0, 1])])
    assert np.isfinite(pool.logits([row([1, 2, 3, 4, 5], [1, 0])])).all()


def test_attention_takes_scores_beyond_what_an_exponential_can_hold() -> None:
    queries, keys = np.full((1, 1, 2), 100, dtype=np.float32), np.array([[[1, 1]], [[9, 9]]], dtype=np.float32)
    values = np.array([[[1, 2]], [[3, 4]]], dtype=np.float32)
    mixed = attend(queries, keys, values, np.ones((1, 2), dtype=np.bool_), scale=1.0)
    assert mixed.tolist() == [[[3, 4]]]


class TestPads:
    def test_the_others_are_not_changed(self) -> None:
        tokens = random_tokens(LENGTH)
        padded = executor()
        pads = [row([1, 2, 3], seq_id="b", pad=True), row([4], seq_id="c", start=30, pad=True)]
        logits = padded.logits([pads[0], row(tokens, BLOCKS), pads[1]])
        assert logits.shape == (1, EVERYTHING.vocab)
        close(logits[0], alone(tokens))

    def test_nothing_is_written(self) -> None:
        tokens = random_tokens(LENGTH)
        padded = executor(num_blocks=4)
        padded.logits([row(tokens[:-1], BLOCKS_OF_FOUR)])
        padded.logits([row(random_tokens(16, seed=5), seq_id="b", pad=True)])
        close(padded.logits([row(tokens[-1:], BLOCKS_OF_FOUR, start=LENGTH - 1)])[0], alone(tokens))

    def test_a_step_of_nothing_else_draws_nothing(self) -> None:
        only = executor()
        only.launch(Plan(3, (row([1, 2], pad=True),)))
        assert only.collect().rows == ()


class TestThePort:
    def test_only_rows_with_draws_are_answered(self) -> None:
        engine = executor()
        work = (row([1, 2], [0], seq_id="quiet", draws=0), row([3], [1], seq_id="one"), row([4], [2], seq_id="two", draws=2))
        engine.launch(Plan(7, work))
        result = engine.collect()
        assert (result.step, [(answer.seq_id, len(answer.tokens)) for answer in result.rows]) == (7, [("one", 1), ("two", 2)])

    def test_greedy_draws_take_the_largest_logit(self) -> None:
        tokens = random_tokens(LENGTH)
        engine = executor()
        engine.launch(Plan(0, (row(tokens, BLOCKS),)))
        assert engine.collect().rows[0].tokens == (int(np.argmax(alone(tokens))),)

    def test_the_draws_of_one_row_differ_by_their_choice(self) -> None:
        engine = executor()
        draws = tuple(Draw(choice, Sampling(temperature=10.0, seed=5)) for choice in range(20))
        engine.launch(Plan(0, (row([1, 2], [0])._replace(draws=draws),)))
        assert len(set(engine.collect().rows[0].tokens)) > 1

    def test_a_row_with_broken_logits_fails_and_the_others_are_answered(self) -> None:
        weights = random_weights(PLAIN)
        weights.tensors["embed"][60] = np.inf
        engine = executor(PLAIN, weights)
        engine.launch(Plan(0, (row([60], [0], seq_id="bad"), row([1], [1], seq_id="good"))))
        result = engine.collect()
        assert [failed for failed, _ in result.failed] == ["bad"]
        assert [answer.seq_id for answer in result.rows] == ["good"]

    @pytest.mark.parametrize("token", [-1, PLAIN.vocab])
    @pytest.mark.parametrize("draws", [0, 1])
    def test_a_row_with_a_token_that_the_model_does_not_have_fails_and_the_others_are_answered(
        self, token: int, draws: int
    ) -> None:
        engine = executor(PLAIN)
        bad = row([1, token, 2], [0], seq_id="bad", draws=draws)
        engine.launch(Plan(0, (bad, row([1], [1], seq_id="good"))))
        result = engine.collect()
        assert result.failed == (("bad", "a token is none of the model's 61"),)
        assert [answer.seq_id for answer in result.rows] == ["good"]

    def test_a_pad_with_a_token_that_the_model_does_not_have_is_passed_over(self) -> None:
        engine = executor(PLAIN)
        engine.launch(Plan(0, (row([PLAIN.vocab], seq_id="pad", pad=True), row([1], [1], seq_id="good"))))
        result = engine.collect()
        assert (result.failed, [answer.seq_id for answer in result.rows]) == ((), ["good"])

    def test_a_row_that_may_draw_nothing_fails_and_the_others_are_answered(self) -> None:
        engine = executor(PLAIN)
        engine.launch(Plan(0, (masked(row([1], [0], seq_id="bad"), ()), masked(row([1], [1], seq_id="good"), [7]))))
        result = engine.collect()
        assert result.failed == (("bad", sampler.NOTHING_ALLOWED),)
        assert [(answer.seq_id, answer.tokens) for answer in result.rows] == [("good", (7,))]

    def test_logprobs_are_those_of_the_raw_logits(self) -> None:
        engine = executor(PLAIN)
        work = asking(masked(row([1, 2], [0]), [7]), logprobs=3)
        logits = engine.logits([work])[0]
        engine.launch(Plan(0, (work,)))
        assert engine.collect().rows[0].logprobs == (sampler.logprobs(logits, 7, 3),)

    def test_an_empty_plan_gives_an_empty_result(self) -> None:
        engine = executor()
        engine.launch(Plan(4, ()))
        assert engine.collect()._replace(elapsed_s=0.0) == (4, (), (), 0.0)

    def test_time_comes_from_the_clock_that_was_given(self) -> None:
        parameters = Parameters.read(PLAIN, random_weights(PLAIN))
        ticks = iter([10.0, 12.5])
        engine = ReferenceExecutor(PLAIN, parameters, num_blocks=1, block_size=BLOCK_SIZE, clock=lambda: next(ticks))
        engine.launch(Plan(0, (row([1], [0]),)))
        assert engine.collect().elapsed_s == 2.5

    @pytest.mark.parametrize(
        "work",
        [
            row([], [0]),
            row([1, 2, 3, 4, 5], [0]),
            row([1], [24]),
            row([1], [-1]),
            row([1], [0], start=4),
        ],
        ids=[
            "no tokens",
            "too long",
            "no such block",
            "negative block",
            "past its blocks",
        ],
    )
    def test_a_plan_that_cannot_be_is_our_own_mistake(self, work) -> None:
        with pytest.raises(AssertionError):
            executor().launch(Plan(0, (work,)))


class TestParameters:
    def test_progress_counts_every_tensor(self) -> None:
        seen: list[tuple[int, int]] = []
        Parameters.read(PLAIN, random_weights(PLAIN), on_tensor=lambda done, total: seen.append((done, total)))
        total = len(PLAIN.layout())
        assert seen == [(done, total) for done in range(1, total + 1)]

    def test_a_tensor_of_another_shape_is_named(self) -> None:
        weights = ArrayWeights({**random_weights(PLAIN).tensors, "norm": np.ones(3, dtype=np.float32)})
        with pytest.raises(ModelError, match="tensor norm"):
            Parameters.read(PLAIN, weights)
