import math
from collections.abc import Sequence

import numpy as np
import pytest
from logits_executors import Uniform
from numpy.typing import NDArray
from tiny_decoders import BLOCK_SIZE, PLAIN, naive_logits, random_tokens, random_weights

from chairlift.core.errors import ModelError
from chairlift.core.types import Work
from chairlift.evaluate.perplexity import ROWS, Reading, compare, log_probability, predicted, read, windows
from chairlift.execute.reference import ReferenceExecutor

SIZE = 9
TEXT = random_tokens(30)


def reading(log_probabilities: Sequence[float], best: Sequence[int] | None = None) -> Reading:
    likeliest = best or [0] * len(log_probabilities)
    return Reading(np.array(log_probabilities, dtype=np.float64), np.array(likeliest, dtype=np.int64))


@pytest.mark.parametrize("vocab", [2, 17, 49_152])
def test_who_knows_nothing_has_the_perplexity_of_the_vocabulary(vocab: int) -> None:
    told = read(Uniform(vocab), windows([0, 1] * 50, size=20), block_size=BLOCK_SIZE)
    assert told.perplexity == pytest.approx(vocab, rel=1e-12)


def test_every_token_is_predicted_from_all_before_it_in_its_window() -> None:
    weights = random_weights(PLAIN)
    cut = windows(TEXT, size=SIZE)
    executor = ReferenceExecutor.load(PLAIN, weights, num_blocks=SIZE, block_size=BLOCK_SIZE)
    told = read(executor, cut, block_size=BLOCK_SIZE)
    surprises: list[float] = []
    best: list[int] = []
    for window in cut:
        logits = naive_logits(PLAIN, weights, window)[:-1]
        shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        surprises += [-math.log(share[token]) for share, token in zip(shares, window[1:], strict=True)]
        best += logits.argmax(axis=1).tolist()
    np.testing.assert_allclose(-told.log_probabilities, surprises, rtol=1e-3)
    assert told.best.tolist() == best
    assert told.perplexity == pytest.approx(math.exp(np.mean(surprises)), rel=1e-4)


def test_a_window_of_many_steps_reads_like_one_of_few() -> None:
    text = random_tokens(ROWS + 40)
    executor = ReferenceExecutor.load(PLAIN, random_weights(PLAIN), num_blocks=len(text), block_size=BLOCK_SIZE)
    told = read(executor, [text], block_size=BLOCK_SIZE)
    beginning = read(executor, [text[:20]], block_size=BLOCK_SIZE)
    assert told.tokens == len(text) - 1
    np.testing.assert_allclose(told.log_probabilities[:19], beginning.log_probabilities, rtol=1e-4)


@pytest.mark.parametrize(
    ("count", "bos_id", "lengths"),
    [(20, None, [8, 8, 4]), (16, None, [8, 8]), (17, None, [8, 8]), (1, None, []), (0, 5, []), (8, 5, [8, 2]), (1, 5, [2])],
)
def test_a_text_is_cut_so_that_something_is_predicted_in_every_window(
    count: int, bos_id: int | None, lengths: list[int]
) -> None:
    cut = windows(range(100, 100 + count), size=8, bos_id=bos_id)
    assert [len(window) for window in cut] == lengths
    assert predicted(cut) == sum(lengths) - len(lengths)


def test_every_window_begins_with_bos_and_leaves_no_token_out() -> None:
    cut = windows(range(100, 117), size=8, bos_id=5)
    assert {window[0] for window in cut} == {5}
    assert [token for window in cut for token in window[1:]] == list(range(100, 117))


def test_progress_counts_every_token_once() -> None:
    told: list[int] = []
    cut = windows([0, 1] * 150, size=250)
    read(Uniform(2), cut, block_size=BLOCK_SIZE, on_tokens=told.append)
    assert sum(told) == predicted(cut)
    assert max(told) <= ROWS


def test_probabilities_of_all_tokens_add_up_to_one_even_for_large_logits() -> None:
    scores = np.array([1e4, 1e4 - 1, 0, -1e4], dtype=np.float32)
    assert sum(math.exp(log_probability(scores, token)) for token in range(len(scores))) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_logits_that_are_no_numbers_are_an_error_of_the_model(broken: float) -> None:
    class Broken(Uniform):
        def logits(self, work: Sequence[Work]) -> NDArray[np.float32]:
            logits = super().logits(work)
            logits[-1, -1] = broken
            return logits

    with pytest.raises(ModelError, match="not finite"):
        read(Broken(4), windows([0, 1, 2], size=3), block_size=BLOCK_SIZE)


def test_a_hopeless_reading_has_a_perplexity_all_the_same() -> None:
    assert reading([-2000.0]).perplexity == math.inf


def test_equal_readings_do_not_differ() -> None:
    one = reading([-1.0, -2.5, -0.25], [3, 1, 2])
    change = compare(one, one)
    assert (change.ratio, change.error, change.agreement) == (0.0, 0.0, 1.0)


def test_a_reading_that_is_surprised_more_has_a_higher_perplexity() -> None:
    reference, other = reading([-1.0, -1.0], [0, 1]), reading([-1.1, -1.1], [0, 2])
    change = compare(other, reference)
    assert change.ratio == pytest.approx(other.perplexity / reference.perplexity - 1)
    assert change.ratio == pytest.approx(math.exp(0.1) - 1)
    assert change.error == pytest.approx(0, abs=1e-12)
    assert change.agreement == 0.5


def test_the_error_of_a_change_falls_with_the_length_of_the_text() -> None:
    short = compare(reading([-1.0, -1.2] * 50), reading([-1.1] * 100))
    long = compare(reading([-1.0, -1.2] * 200), reading([-1.1] * 400))
    assert short.error == pytest.approx(0.1 / 10)
    assert long.error == pytest.approx(0.1 / 20)
