"""Ranks that compute together, as threads of one process over gloo: they come to what one rank alone comes to."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np
import pytest
from executor_cases import CASE_BLOCK, in_pieces
from in_flight import SAMPLINGS, Steps, answers
from ranks import together
from tiny_decoders import PLAIN, VARIANTS, ArrayWeights, masked, random_tokens, random_weights, row
from torch_executors import choice, torch_executor

from chairlift.core.errors import ConfigError
from chairlift.core.types import Move, Plan, Result
from chairlift.execute.torch.executor import TorchExecutor
from chairlift.execute.torch.parallel.group import Group
from chairlift.models.description import Description

T = TypeVar("T")
EVERYTHING = VARIANTS["everything"]
BLOCKS, LENGTH = [7, 2, 5], 45
EDGES = [0, 20, 44, 45]


def can_be_cut(description: Description, size: int) -> bool:
    heads, kv_heads = description.heads, description.kv_heads
    return heads % size == 0 and (kv_heads % size == 0 or size % kv_heads == 0)


CASES = [
    *((name, size) for name, description in VARIANTS.items() for size in (2, 3, 4) if can_be_cut(description, size)),
    ("one key head", 2),
    ("everything", 6),
]
TWICE = replace(EVERYTHING, heads=8, kv_heads=2)
"""For two ranks, or for four of which two have the same key head."""


def by_ranks(
    size: int, description: Description, weights: ArrayWeights, run: Callable[[TorchExecutor], T], **settings: object
) -> list[T]:
    def rank(group: Group) -> T:
        return run(torch_executor(description, weights, group=group, **settings))  # pyright: ignore[reportArgumentType]

    return together(size, rank)


def close(left: np.ndarray, right: np.ndarray) -> None:
    np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-4)


class TestLogits:
    @pytest.mark.parametrize(("name", "size"), sorted(set(CASES)))
    def test_every_rank_has_those_of_one_alone(self, name: str, size: int) -> None:
        description, tokens = VARIANTS[name], random_tokens(LENGTH)
        weights = random_weights(description)
        alone = in_pieces(torch_executor(description, weights), tokens, EDGES, BLOCKS)
        everyone = by_ranks(size, description, weights, lambda executor: in_pieces(executor, tokens, EDGES, BLOCKS))
        close(everyone[0], alone)
        assert all(np.array_equal(logits, everyone[0]) for logits in everyone)

    @pytest.mark.parametrize("size", [2, 4])
    def test_every_switch_at_once(self, size: int) -> None:
        tokens, weights = random_tokens(LENGTH), random_weights(TWICE)
        alone = in_pieces(torch_executor(TWICE, weights), tokens, EDGES, BLOCKS)
        for logits in by_ranks(size, TWICE, weights, lambda executor: in_pieces(executor, tokens, EDGES, BLOCKS)):
            close(logits, alone)

    @pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
    def test_numbers_of_16_bits_are_close(self, dtype: str) -> None:
        """As parts of the largest logit."""
        tokens, weights, error = random_tokens(LENGTH), random_weights(TWICE), {"bfloat16": 0.1, "float16": 0.015}[dtype]
        alone = in_pieces(torch_executor(TWICE, weights), tokens, EDGES, BLOCKS)
        everyone = by_ranks(
            4, TWICE, weights, lambda executor: in_pieces(executor, tokens, EDGES, BLOCKS), choice=choice(dtype)
        )
        np.testing.assert_allclose(everyone[3], alone, rtol=0, atol=error * np.abs(alone).max())


STEPS: Steps = [
    [(0, 20), (1, 20)],
    [(1, 1), (0, 1), (2, 4)],
    [(2, 20), (0, 1)],
    [(0, 1), (1, 1), (2, 1), (3, 20)],
    *([[(3, 1), (1, 1), (0, 1), (2, 1)]] * 6),
]


class TestTokens:
    @pytest.mark.parametrize("depth", [1, 2])
    @pytest.mark.parametrize(("description", "size"), [(EVERYTHING, 3), (TWICE, 2), (TWICE, 4)])
    def test_rank_0_draws_what_one_alone_draws_and_the_others_know_it(
        self, description: Description, size: int, depth: int
    ) -> None:
        weights = random_weights(description)
        prompts = [(sampling, random_tokens(5 + 3 * at, seed=at)) for at, sampling in enumerate(SAMPLINGS)]
        alone = answers(torch_executor(description, weights), prompts, STEPS, depth=1)
        everyone = by_ranks(size, description, weights, lambda executor: answers(executor, prompts, STEPS, depth=depth))
        for texts in everyone:
            assert [text.tokens for text in texts] == [text.tokens for text in alone]
        told = [[[one[0].rank for one in text.told if one] for text in texts] for texts in (alone, *everyone)]
        assert told[0] == told[1]
        assert not any(map(any, told[2:])), "log probabilities are told by rank 0 only"

    def test_every_rank_goes_on_with_the_first_of_several_draws(self) -> None:
        weights, prompts = random_weights(TWICE), [(SAMPLINGS[1], random_tokens(5 + at, seed=at)) for at in range(2)]
        steps: Steps = [[(0, 20), (1, 20)], *([[(1, 1), (0, 1)]] * 3)]
        alone = answers(torch_executor(TWICE, weights), prompts, steps, depth=1, choices=3)
        for texts in by_ranks(2, TWICE, weights, lambda executor: answers(executor, prompts, steps, depth=2, choices=3)):
            assert [text.drawn for text in texts] == [text.drawn for text in alone]

    def test_the_sampling_of_the_others_means_nothing(self) -> None:
        weights = random_weights(PLAIN)
        work = row([1, 2], [0], draws=3)
        greedy, wild = Plan(0, (work,)), Plan(0, (masked(work, [9]),))

        def rank(group: Group) -> Result:
            executor = torch_executor(PLAIN, weights, group=group)
            executor.launch(wild if group.rank else greedy)
            return executor.collect()

        first, second = together(2, rank)
        assert first.rows == second.rows
        assert first.rows[0].tokens != (9, 9, 9)

    def test_every_rank_knows_what_failed(self) -> None:
        weights = random_weights(PLAIN)
        weights.tensors["embed"][60] = np.nan
        plan = Plan(0, (row([60], [0], seq_id="broken"), row([1], [1], seq_id="good"), row([99], [2], seq_id="foreign")))

        def run(executor: TorchExecutor) -> tuple[tuple[tuple[str, str], ...], list[str]]:
            executor.launch(plan)
            result = executor.collect()
            return result.failed, [answer.seq_id for answer in result.rows]

        first, second = by_ranks(2, PLAIN, weights, run)
        assert first == second
        assert (sorted(name for name, _ in first[0]), first[1]) == (["broken", "foreign"], ["good"])

    def test_a_step_without_draws_draws_nothing(self) -> None:
        def run(executor: TorchExecutor) -> Result:
            executor.launch(Plan(0, (row([1, 2], [0], draws=0), row([4], seq_id="b", pad=True))))
            return executor.collect()

        assert [result.rows for result in by_ranks(2, PLAIN, random_weights(PLAIN), run)] == [(), ()]


class TestMemory:
    @pytest.mark.parametrize(("size", "kv_heads"), [(2, 1), (4, 1)])
    def test_keys_and_values_are_those_of_the_rank(self, size: int, kv_heads: int) -> None:
        shapes = by_ranks(size, TWICE, random_weights(TWICE), lambda executor: tuple(executor._kv.shape), num_blocks=5)
        assert shapes == [(3, 5, 2, CASE_BLOCK, kv_heads, 8)] * size

    def test_blocks_that_are_moved_are_moved_on_every_rank(self) -> None:
        tokens, weights = random_tokens(LENGTH), random_weights(EVERYTHING)
        moves = (
            Plan(1, (), moves=tuple(Move("store", block, at) for at, block in enumerate(BLOCKS))),
            Plan(2, (), moves=tuple(Move("load", at, block) for at, block in enumerate([20, 21, 22]))),
            Plan(3, (), moves=tuple(Move("copy", block, block + 10) for block in (20, 21, 22))),
        )

        def run(executor: TorchExecutor) -> np.ndarray:
            executor.logits([row(tokens[:-1], BLOCKS)])
            for plan in moves:
                executor.launch(plan)
                executor.collect()
            executor.logits([row(random_tokens(48, seed=9), BLOCKS)])
            return executor.logits([row(tokens[-1:], [30, 31, 32], start=LENGTH - 1)])[0]

        alone = in_pieces(torch_executor(EVERYTHING, weights), tokens, [0, LENGTH], BLOCKS)
        for logits in by_ranks(3, EVERYTHING, weights, run, num_host_blocks=3):
            close(logits, alone)

    def test_a_step_costs_each_rank_its_part(self) -> None:
        weights = random_weights(TWICE)
        whole = torch_executor(TWICE, weights).cost
        for cost in by_ranks(2, TWICE, weights, lambda executor: executor.cost):
            assert cost.token_operations * 2 == whole.token_operations
            assert cost.layers[0].position_bytes * 2 == whole.layers[0].position_bytes
            assert cost.token_bytes == whole.token_bytes
            assert cost.draw_operations == pytest.approx(whole.draw_operations / 2, rel=0.02)


def test_a_model_that_cannot_be_cut_is_refused_by_every_rank() -> None:
    def rank(group: Group) -> str:
        with pytest.raises(ConfigError) as raised:
            torch_executor(EVERYTHING, random_weights(EVERYTHING), group=group)
        return str(raised.value)

    first, second = together(2, rank)
    assert first == second
