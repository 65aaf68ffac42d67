"""Two plans in flight: what the later one does not know yet is filled in on the device, and no answer is another for it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from in_flight import SAMPLINGS, Steps, answers
from tiny_decoders import PLAIN, VARIANTS, random_tokens, random_weights, row
from torch_executors import torch_executor

from chairlift.core.types import PENDING, Draw, Plan, Result, Sampling, Work
from chairlift.execute.torch.executor import TorchExecutor

EVERYTHING = VARIANTS["everything"]


@settings(max_examples=30)
@given(data=st.data())
def test_any_plans_are_answered_the_same_one_at_a_time_and_two_in_flight(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 4))
    prompts = [
        (data.draw(st.sampled_from(SAMPLINGS)), random_tokens(data.draw(st.integers(1, 20)), seed=number))
        for number in range(count)
    ]
    some = st.lists(st.integers(0, count - 1), min_size=1, unique=True)
    steps = [
        [(at, data.draw(st.integers(1, 12))) for at in step] for step in data.draw(st.lists(some, min_size=3, max_size=12))
    ]
    weights = random_weights(EVERYTHING)
    alone, overlapped = (
        answers(torch_executor(EVERYTHING, weights, num_blocks=12), prompts, steps, depth=depth) for depth in (1, 2)
    )
    assert [(text.tokens, text.told) for text in overlapped] == [(text.tokens, text.told) for text in alone]


def test_a_sequence_that_answers_a_prompt_of_another_length_goes_on_with_its_own_token() -> None:
    """The draws of a step lie in another order than the rows of the next."""
    prompts = [(SAMPLINGS[number], random_tokens(3 + number, seed=number)) for number in range(4)]
    everyone = [(at, 20) for at in range(4)]
    steps: Steps = [everyone, everyone[::-1], everyone[1:3], everyone]
    weights = random_weights(PLAIN)
    alone, overlapped = (answers(torch_executor(PLAIN, weights), prompts, steps, depth=depth) for depth in (1, 2))
    assert [text.tokens for text in overlapped] == [text.tokens for text in alone]


def greedy(token: int, *, start: int = 0, seq_id: str = "a") -> Work:
    return row([token], [0] if seq_id == "a" else [1], seq_id=seq_id, start=start)


def test_the_oldest_plan_is_collected_first() -> None:
    executor = torch_executor(PLAIN, random_weights(PLAIN))
    executor.launch(Plan(1, (greedy(5),)))
    executor.launch(Plan(2, (greedy(PENDING, start=1),)))
    assert [executor.collect().step, executor.collect().step] == [1, 2]


def test_more_than_two_plans_are_our_own_mistake() -> None:
    executor = torch_executor(PLAIN, random_weights(PLAIN))
    for step in range(2):
        executor.launch(Plan(step, ()))
    with pytest.raises(AssertionError):
        executor.launch(Plan(2, ()))


def test_a_row_of_several_draws_goes_on_with_its_own() -> None:
    executor = torch_executor(PLAIN, random_weights(PLAIN))
    draws = tuple(Draw(number, Sampling(seed=1, temperature=5.0)) for number in range(3))
    executor.launch(Plan(1, (greedy(9, seq_id="b"), greedy(5)._replace(draws=draws))))
    executor.launch(Plan(2, (greedy(PENDING, start=1),)))
    first, second = executor.collect(), executor.collect()
    own = first.rows[1].tokens[0]
    expected = torch_executor(PLAIN, random_weights(PLAIN)).logits([row([5, own], [0])])[0]
    assert second.rows[0].tokens == (int(np.argmax(expected)),)


def test_the_next_row_of_one_that_failed_is_computed_for_nothing() -> None:
    weights = random_weights(PLAIN)
    weights.tensors["embed"][60] = np.nan
    executor = torch_executor(PLAIN, weights)
    executor.launch(Plan(1, (greedy(60), greedy(7, seq_id="b"))))
    executor.launch(Plan(2, (greedy(PENDING, start=1), greedy(PENDING, start=1, seq_id="b"))))
    first, second = executor.collect(), executor.collect()
    assert [failed for failed, _ in first.failed] == ["a"]
    assert [answer.seq_id for answer in second.rows if answer.seq_id == "b"] == ["b"]


class TestAfterAFailure:
    """Everything that was launched is gone, and what comes next is as if there had been nothing."""

    def fail(self, executor: TorchExecutor) -> None:
        executor.launch(Plan(1, (greedy(5),)))
        with pytest.raises(AssertionError):
            executor.launch(Plan(2, (row([1], [99]),)))

    def test_nothing_is_left_to_collect(self) -> None:
        executor = torch_executor(PLAIN, random_weights(PLAIN))
        self.fail(executor)
        with pytest.raises(AssertionError, match="nothing was launched"):
            executor.collect()

    def test_nobody_awaits_a_token(self) -> None:
        executor = torch_executor(PLAIN, random_weights(PLAIN))
        self.fail(executor)
        executor.launch(Plan(3, (greedy(PENDING, start=1), greedy(7, seq_id="b"))))
        result: Result = executor.collect()
        assert [failed for failed, _ in result.failed] == ["a"]
        assert [answer.seq_id for answer in result.rows] == ["b"]
