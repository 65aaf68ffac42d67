"""The executor in PyTorch against the reference, over all switches and shapes; plans that go wrong, and moves."""

from array import array
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from executor_cases import HEAD_DIMS, HEADS, IMPOSSIBLE, LENGTHS, in_pieces
from executor_cases import reference_logits as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from masks import mask_of
from numpy.typing import NDArray
from tiny_decoders import PLAIN, VARIANTS, asking, masked, random_tokens, random_weights, row
from torch_executors import choice, torch_executor

from chairlift.core.types import Draw, Move, Plan, Sampling
from chairlift.execute import sampler
from chairlift.models.description import Description, Layer, Rope

EVERYTHING = VARIANTS["everything"]
LENGTH = 45
BLOCKS = [7, 2, 5]


def close(left: NDArray[np.floating], right: NDArray[np.floating]) -> None:
    np.testing.assert_allclose(left, right, rtol=2e-4, atol=2e-4)


class TestAgainstTheReference:
    @pytest.mark.parametrize("description", VARIANTS.values(), ids=VARIANTS.keys())
    def test_every_switch(self, description: Description) -> None:
        weights, tokens = random_weights(description), random_tokens(LENGTH)
        executor = torch_executor(description, weights)
        close(executor.logits([row(tokens, BLOCKS)])[0], reference(description, weights, tokens))

    @pytest.mark.parametrize("length", LENGTHS)
    def test_every_length_of_context(self, length: int) -> None:
        weights, tokens = random_weights(PLAIN), random_tokens(length)
        blocks = list(range(20, 0, -1))
        close(torch_executor(PLAIN, weights).logits([row(tokens, blocks)])[0], reference(PLAIN, weights, tokens))

    @pytest.mark.parametrize("head_dim", HEAD_DIMS)
    def test_every_size_of_head(self, head_dim: int) -> None:
        description = replace(PLAIN, head_dim=head_dim, attention_scale=head_dim**-0.5)
        weights, tokens = random_weights(description), random_tokens(LENGTH)
        executor = torch_executor(description, weights)
        close(executor.logits([row(tokens, BLOCKS)])[0], reference(description, weights, tokens))

    @pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
    def test_every_ratio_of_heads(self, heads: int, kv_heads: int) -> None:
        description = replace(PLAIN, heads=heads, kv_heads=kv_heads)
        weights, tokens = random_weights(description), random_tokens(LENGTH)
        executor = torch_executor(description, weights)
        close(executor.logits([row(tokens, BLOCKS)])[0], reference(description, weights, tokens))

    @pytest.mark.parametrize("window", [None, 1100])
    def test_long_contexts(self, window: int | None) -> None:
        description = replace(PLAIN, layers=(Layer(Rope(10_000.0)), Layer(Rope(10_000.0), window=window)))
        weights, tokens = random_weights(description), random_tokens(2100)
        executor = torch_executor(description, weights, num_blocks=132, max_tokens=2100)
        logits = in_pieces(executor, tokens, [0, 1000, 2099, 2100], list(range(132)))
        close(logits, reference(description, weights, tokens))

    def test_many_rows_at_once(self) -> None:
        weights = random_weights(PLAIN)
        texts = [random_tokens(length, seed=length) for length in range(1, 17)]
        rows = [row(text, [number], seq_id=str(number)) for number, text in enumerate(texts)]
        for text, scores in zip(texts, torch_executor(PLAIN, weights).logits(rows), strict=True):
            close(scores, reference(PLAIN, weights, text))

    @pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
    @pytest.mark.parametrize("name", VARIANTS)
    def test_numbers_of_16_bits_are_close(self, dtype: str, name: str) -> None:
        """As parts of the largest logit. bfloat16 has 8 bits of precision, float16 has 11, and these weights magnify errors."""
        description, error = VARIANTS[name], {"bfloat16": 0.1, "float16": 0.015}[dtype]
        weights, tokens = random_weights(description), random_tokens(LENGTH)
        executor = torch_executor(description, weights, choice=choice(dtype))
        expected = reference(description, weights, tokens)
        logits = in_pieces(executor, tokens, [0, 20, 44, 45], BLOCKS)
        np.testing.assert_allclose(logits, expected, rtol=0, atol=error * np.abs(expected).max())


class TestHoweverItIsComputed:
    """Matrix products of other shapes may add up in another order, so these are close and not the same."""

    @settings(max_examples=25)
    @given(
        cuts=st.sets(st.integers(1, LENGTH - 1), max_size=6), table=st.permutations(range(3)), size=st.sampled_from([16, 48])
    )
    def test_any_cuts_and_any_blocks_equal_the_whole(self, cuts: set[int], table: list[int], size: int) -> None:
        weights, tokens = random_weights(EVERYTHING), random_tokens(LENGTH)
        executor = torch_executor(EVERYTHING, weights, num_blocks=3, block_size=size)
        blocks = table[: -(-LENGTH // size)]
        logits = in_pieces(executor, tokens, [0, *sorted(cuts), LENGTH], blocks)
        close(logits, reference(EVERYTHING, weights, tokens))

    @settings(max_examples=15)
    @given(data=st.data())
    def test_sequences_in_one_batch_equal_each_alone(self, data: st.DataObject) -> None:
        lengths = data.draw(st.lists(st.integers(1, 40), min_size=2, max_size=5))
        pool = data.draw(st.permutations(range(15)))
        texts = {f"s{index}": random_tokens(length, seed=index) for index, length in enumerate(lengths)}
        tables = {name: pool[3 * index : 3 * index + 3] for index, name in enumerate(texts)}
        edges = {
            name: [0, *sorted(data.draw(st.sets(st.integers(1, len(text)), max_size=3)) - {len(text)}), len(text)]
            for name, text in texts.items()
        }
        left = {name: list(pairwise(cuts)) for name, cuts in edges.items()}
        weights, last = random_weights(EVERYTHING), dict[str, NDArray[np.float32]]()
        executor = torch_executor(EVERYTHING, weights, num_blocks=15)
        while any(left.values()):
            chosen = data.draw(
                st.lists(st.sampled_from([name for name, cuts in left.items() if cuts]), min_size=1, unique=True)
            )
            pieces = [(name, *left[name].pop(0)) for name in chosen]
            rows = [row(texts[name][start:end], tables[name], seq_id=name, start=start) for name, start, end in pieces]
            last |= dict(zip(chosen, executor.logits(rows), strict=True))
        for name, tokens in texts.items():
            close(last[name], reference(EVERYTHING, weights, tokens))

    def test_broken_numbers_left_in_a_block_are_never_read(self) -> None:
        weights = random_weights(PLAIN)
        weights.tensors["embed"][60] = np.nan
        executor = torch_executor(PLAIN, weights, num_blocks=2)
        executor.logits([row([60] * 32, [0, 1])])
        assert np.isfinite(executor.logits([row([1, 2, 3, 4, 5], [1, 0])])).all()


class TestPads:
    PADS = (row([1, 2, 3], seq_id="b", pad=True), row([4], seq_id="c", start=10_000, pad=True))

    def test_the_others_are_not_changed(self) -> None:
        tokens, weights = random_tokens(LENGTH), random_weights(EVERYTHING)
        logits = torch_executor(EVERYTHING, weights).logits([self.PADS[0], row(tokens, BLOCKS), self.PADS[1]])
        assert logits.shape == (1, EVERYTHING.vocab)
        close(logits[0], reference(EVERYTHING, weights, tokens))

    def test_nothing_of_the_others_is_overwritten(self) -> None:
        tokens, weights = random_tokens(LENGTH), random_weights(EVERYTHING)
        executor = torch_executor(EVERYTHING, weights, num_blocks=3)
        executor.logits([row(tokens[:-1], [2, 0, 1])])
        executor.logits([row(random_tokens(48, seed=5), seq_id="b", pad=True)])
        logits = executor.logits([row(tokens[-1:], [2, 0, 1], start=LENGTH - 1)])[0]
        close(logits, reference(EVERYTHING, weights, tokens))

    def test_a_step_of_nothing_else_draws_nothing(self) -> None:
        executor = torch_executor(PLAIN, random_weights(PLAIN))
        executor.launch(Plan(3, self.PADS))
        assert executor.collect().rows == ()


class TestThePort:
    def test_only_rows_with_draws_are_answered(self) -> None:
        work = (row([1, 2], [0], seq_id="quiet", draws=0), row([3], [1], seq_id="one"), row([4], [2], seq_id="two", draws=2))
        executor = torch_executor(EVERYTHING, random_weights(EVERYTHING))
        executor.launch(Plan(7, work))
        result = executor.collect()
        assert (result.step, [(answer.seq_id, len(answer.tokens)) for answer in result.rows]) == (7, [("one", 1), ("two", 2)])

    def test_the_draws_of_one_row_differ_by_their_choice(self) -> None:
        draws = tuple(Draw(number, Sampling(temperature=10.0, seed=5)) for number in range(20))
        executor = torch_executor(PLAIN, random_weights(PLAIN), max_rows=20)
        executor.launch(Plan(0, (row([1, 2], [0])._replace(draws=draws),)))
        assert len(set(executor.collect().rows[0].tokens)) > 1

    @pytest.mark.parametrize("value", [np.inf, np.nan])
    def test_a_row_with_broken_logits_fails_and_the_others_are_answered(self, value: float) -> None:
        weights = random_weights(PLAIN)
        weights.tensors["embed"][60] = value
        executor = torch_executor(PLAIN, weights)
        executor.launch(Plan(0, (row([60], [0], seq_id="bad"), row([1], [1], seq_id="good"))))
        result = executor.collect()
        assert result.failed == (("bad", "the model's logits are not finite numbers"),)
        assert [answer.seq_id for answer in result.rows] == ["good"]

    @pytest.mark.parametrize("count", [3, 40])
    @pytest.mark.parametrize("token", [-1, PLAIN.vocab])
    @pytest.mark.parametrize("draws", [0, 1])
    def test_a_row_with_a_token_that_the_model_does_not_have_fails_and_the_others_are_answered(
        self, token: int, draws: int, count: int
    ) -> None:
        executor = torch_executor(PLAIN, random_weights(PLAIN))
        bad = row([1] * (count - 2) + [token, 2], [0, 2, 3], seq_id="bad", draws=draws)
        executor.launch(Plan(0, (bad, row([1], [1], seq_id="good"))))
        result = executor.collect()
        assert result.failed == (("bad", "a token is none of the model's 61"),)
        assert [answer.seq_id for answer in result.rows] == ["good"]

    def test_a_pad_with_a_token_that_the_model_does_not_have_is_passed_over(self) -> None:
        executor = torch_executor(PLAIN, random_weights(PLAIN))
        executor.launch(Plan(0, (row([PLAIN.vocab], seq_id="pad", pad=True), row([1], [1], seq_id="good"))))
        result = executor.collect()
        assert (result.failed, [answer.seq_id for answer in result.rows]) == ((), ["good"])

    def test_a_row_that_may_draw_nothing_fails_and_the_others_are_answered(self) -> None:
        executor = torch_executor(PLAIN, random_weights(PLAIN))
        executor.launch(Plan(0, (masked(row([60], [0], seq_id="bad"), ()), masked(row([1], [1], seq_id="good"), [7]))))
        result = executor.collect()
        assert result.failed == (("bad", sampler.NOTHING_ALLOWED),)
        assert [(answer.seq_id, answer.tokens) for answer in result.rows] == [("good", (7,))]

    def test_every_row_draws_and_tells_what_the_sampler_makes_of_its_logits(self) -> None:
        history, executor = array("i", random_tokens(30)), torch_executor(PLAIN, random_weights(PLAIN))
        draws = [
            Draw(0, Sampling(temperature=0, repetition_penalty=2.0), history=history, prompt_len=10),
            Draw(0, Sampling(seed=9, top_k=1, logprobs=5)),
            Draw(0, Sampling(frequency_penalty=1.2, logit_bias=((3, 5.0),), logprobs=0), history=history, prompt_len=9),
            Draw(0, Sampling(temperature=0), mask=mask_of(range(5, 30), PLAIN.vocab)),
            Draw(2, Sampling(seed=3, top_p=0.7, min_p=0.01, presence_penalty=1.0), frozenset({4}), history, 30),
        ]
        for number in range(len(draws)):
            executor.logits([row(history[:29], [2 * number, 2 * number + 1])])
        work = [
            row([history[29]], [2 * number, 2 * number + 1], seq_id=str(number), start=29)._replace(draws=(draw,))
            for number, draw in enumerate(draws)
        ]
        logits = executor.logits(work)
        executor.launch(Plan(0, tuple(work)))
        for answer, draw, scores in zip(executor.collect().rows, draws, logits, strict=True):
            assert answer.tokens == (sampler.draw(scores, draw, 30),)
            told = [sampler.logprobs(scores, answer.tokens[0], count)] if (count := draw.sampling.logprobs) is not None else []
            assert [(one.rank, [best for best, _ in one.top]) for one in answer.logprobs] == [
                (one.rank, [best for best, _ in one.top]) for one in told
            ]
            assert [one.chosen for one in answer.logprobs] == pytest.approx([one.chosen for one in told], abs=1e-9)

    def test_logprobs_are_those_of_the_raw_logits(self) -> None:
        executor = torch_executor(PLAIN, random_weights(PLAIN))
        work = asking(masked(row([1, 2], [0]), [7]), logprobs=3)
        expected = sampler.logprobs(executor.logits([work])[0], 7, 3)
        executor.launch(Plan(0, (work,)))
        told = executor.collect().rows[0].logprobs[0]
        assert (told.rank, [best for best, _ in told.top]) == (expected.rank, [best for best, _ in expected.top])
        assert [told.chosen, *(log for _, log in told.top)] == pytest.approx(
            [expected.chosen, *(log for _, log in expected.top)], abs=1e-9
        )

    def test_moved_blocks_hold_what_their_sources_held(self) -> None:
        weights, tokens = random_weights(EVERYTHING), random_tokens(LENGTH)
        executor = torch_executor(EVERYTHING, weights)
        executor.logits([row(tokens[:-1], BLOCKS)])
        moves = (Move("copy", 7, 20), Move("copy", 2, 21), Move("copy", 5, 22))
        executor.launch(Plan(0, (row(random_tokens(48, seed=8), [30, 31, 32], seq_id="b"),), moves=moves))
        executor.collect()
        executor.logits([row(random_tokens(48, seed=9), BLOCKS)])
        logits = executor.logits([row(tokens[-1:], [20, 21, 22], start=LENGTH - 1)])[0]
        close(logits, reference(EVERYTHING, weights, tokens))

    def test_an_empty_plan_gives_an_empty_result(self) -> None:
        executor = torch_executor(PLAIN, random_weights(PLAIN))
        executor.launch(Plan(4, ()))
        assert executor.collect()._replace(elapsed_s=0.0) == (4, (), (), 0.0)

    @pytest.mark.parametrize("work", IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
    def test_a_plan_that_cannot_be_is_our_own_mistake_and_leaves_the_executor_usable(self, work) -> None:
        executor = torch_executor(PLAIN, random_weights(PLAIN))
        with pytest.raises(AssertionError):
            executor.launch(Plan(0, (work,)))
        executor.launch(Plan(1, (row([1], [0]),)))
        assert executor.collect().step == 1

    def test_a_step_of_more_tokens_than_the_executor_was_built_for_is_our_own_mistake(self) -> None:
        executor = torch_executor(PLAIN, random_weights(PLAIN), max_tokens=16)
        with pytest.raises(AssertionError, match="a step of 17 tokens"):
            executor.launch(Plan(0, (row([1] * 17, [0, 1]),)))

    def test_a_step_of_more_rows_than_the_executor_was_built_for_is_our_own_mistake(self) -> None:
        executor = torch_executor(PLAIN, random_weights(PLAIN), max_rows=1)
        with pytest.raises(AssertionError, match="a step of 2 rows"):
            executor.launch(Plan(0, (row([1], [0]), row([1], [1], seq_id="b"))))
