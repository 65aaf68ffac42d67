"""Draws in machine code against `execute.sampler`: the same tokens from the same logits."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from draws import logits_and_draws
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from masks import mask_of
from native_kernels import HOST_ISAS, Bench, kernels
from numpy.typing import NDArray
from tiny_decoders import PLAIN

from chairlift.core.errors import NothingAllowed
from chairlift.core.types import Draw, Logprobs, Sampling
from chairlift.execute import sampler
from chairlift.execute.cpu import arena
from chairlift.execute.cpu.draws import Draws
from chairlift.execute.cpu.kernels import sampling as kernel
from chairlift.execute.cpu.memory import aligned
from chairlift.execute.cpu.packing import round_up
from chairlift.execute.cpu.words import BROKEN, EXCLUDED

END = 1000
"""Where the tokens of a row end, if nothing else is said."""


def at(*positions: int, sampling: Sampling, choice: int = 0) -> list[Draw]:
    """Draws of one row that ends at END, each at another position of the output."""
    return [Draw(choice, sampling, prompt_len=END - position) for position in positions]


def computed(logits: NDArray[np.float32], rows: Sequence[Sequence[Draw]], *ends: int) -> Draws:
    """The draws of rows of logits [rows, vocab], answered."""
    count, vocab = logits.shape
    width = round_up(vocab, 64)
    padded = aligned(count * width, np.float32).reshape(count, width)
    padded[:, :vocab] = logits
    draws = Draws(list(zip(ends or [END] * count, rows, strict=True)), vocab=vocab)
    state = {"draws": draws.words, "row_draws": draws.bounds, "answers": draws.answers}
    Bench(kernels(HOST_ISAS[0])).run("sample", "sample", count=count, state=state, logits=padded, stride=width, vocab=vocab)
    assert padded[:, :vocab].tobytes() == logits.tobytes()
    return draws


def drawn(logits: NDArray[np.float32], rows: Sequence[Sequence[Draw]], *ends: int) -> list[int]:
    """Their tokens."""
    return computed(logits, rows, *ends).answers.tolist()


def one(logits: NDArray[np.float32], wanted: Draw) -> int:
    return drawn(logits[None], [[wanted]])[0]


def of_the_sampler(logits: NDArray[np.float32], draws: Iterable[Draw], end: int = END) -> list[int]:
    return [sampler.draw(logits, draw, end) for draw in draws]


def random_logits(vocab: int, seed: int = 1) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal(vocab) * 3).astype(np.float32)


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 1e-3, 0.3, 0.7, 1.0, 1.5, 50.0]),
    top_k=st.sampled_from([0, 1, 2, 3, 10, 1000]),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 0.99)),
    min_p=st.one_of(st.just(0.0), st.floats(0.001, 0.99)),
    seed=st.integers(0, (1 << 64) - 1),
)


def expected(logits: NDArray[np.float32], wanted: Draw, place: int) -> int:
    """What the sampler draws."""
    try:
        return sampler.draw(logits, wanted, place)
    except NothingAllowed:
        return EXCLUDED


def close(told: Logprobs, right: Logprobs) -> None:
    """Ranks and ids are equal, log probabilities are as near as the sampler says."""
    assert (told.rank, [token for token, _ in told.top]) == (right.rank, [token for token, _ in right.top])
    numbers = [[one.chosen, *(logprob for _, logprob in one.top)] for one in (told, right)]
    np.testing.assert_allclose(*numbers, rtol=1e-12, atol=1e-9)


@settings(max_examples=400, deadline=None)
@given(data=st.data(), sampling=samplings, choice=st.integers(0, 3), position=st.integers(0, 1000))
def test_a_draw_is_that_of_the_sampler(data: st.DataObject, sampling: Sampling, choice: int, position: int) -> None:
    grid = st.integers(-12, 12).map(lambda number: number / 4)  # coarse, so that there are ties
    logits = np.array(data.draw(st.lists(grid, min_size=2, max_size=40)), dtype=np.float32)
    banned = data.draw(st.frozensets(st.integers(0, len(logits) + 3), max_size=len(logits) - 1))
    assume(len([token for token in banned if token < len(logits)]) < len(logits))
    wanted = Draw(choice, sampling, banned, prompt_len=END - position)
    assert one(logits, wanted) == sampler.draw(logits, wanted, END)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0),
        Sampling(),
        Sampling(temperature=0.7, top_k=50),
        Sampling(temperature=0.6, top_p=0.9),
        Sampling(temperature=2.0, top_p=0.999),
        Sampling(min_p=0.05),
        Sampling(temperature=1.3, top_k=5000, top_p=0.95, min_p=0.001),
        Sampling(temperature=1e-30),
        Sampling(temperature=1e30, top_k=7),
    ],
    ids=repr,
)
def test_a_large_vocabulary_equals_the_sampler(sampling: Sampling) -> None:
    logits = random_logits(20_011)
    draws = at(*range(40), sampling=sampling)
    assert drawn(logits[None], [draws]) == of_the_sampler(logits, draws)


@pytest.mark.parametrize("value", [0.0, -3.5])
def test_nothing_but_ties(value: float) -> None:
    logits = np.full(300, value, dtype=np.float32)
    draws = at(*range(100), sampling=Sampling(top_p=0.305))
    tokens = drawn(logits[None], [draws])
    assert tokens == of_the_sampler(logits, draws)
    assert max(tokens) < 92


def test_both_zeros_are_ties() -> None:
    logits = np.array([-0.0, 0.0, -0.0, 0.0], dtype=np.float32)
    assert set(drawn(logits[None], [at(*range(50), sampling=Sampling(top_k=2))])) == {0, 1}


def test_the_lowest_id_wins_among_equals() -> None:
    logits = random_logits(1000)
    logits[[700, 333, 901]] = 50
    assert one(logits, Draw(0, Sampling(temperature=0))) == 333


def test_rows_are_told_apart() -> None:
    logits = np.stack([random_logits(500, seed) for seed in range(5)])
    rows = [[Draw(choice, Sampling(seed=9)) for choice in range(count)] for count in (1, 0, 3, 2, 1)]
    ends = (4, 3, 7, 4, 5)
    expected = [of_the_sampler(row, draws, end) for row, draws, end in zip(logits, rows, ends, strict=True)]
    assert drawn(logits, rows, *ends) == [token for tokens in expected for token in tokens]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 57, 499])
def test_a_row_that_is_not_finite_is_reported(value: float, place: int) -> None:
    logits = np.stack([random_logits(500, 1), random_logits(500, 2)])
    logits[0, place] = value
    answers = drawn(logits, [[Draw(0, Sampling())] * 2, [Draw(0, Sampling(temperature=0))]])
    assert answers[:2] == [BROKEN, BROKEN]
    assert answers[2] >= 0


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0)])
def test_a_draw_that_may_draw_nothing_is_reported(sampling: Sampling) -> None:
    banned, masked = Draw(0, sampling, frozenset(range(40))), Draw(0, sampling, mask=mask_of((), 40))
    answers = drawn(random_logits(40)[None], [[banned, masked, Draw(0, sampling)]])
    assert answers[:2] == [EXCLUDED, EXCLUDED]
    assert answers[2] >= 0


@settings(max_examples=600, deadline=None)
@given(logits_and_draws())
def test_a_draw_that_changes_logits_is_that_of_the_sampler(case: tuple[NDArray[np.float32], Draw, int]) -> None:
    logits, wanted, place = case
    draws = computed(logits[None], [[wanted]], place)
    token = draws.answers[0]
    assert token == expected(logits, wanted, place)
    if token >= 0 and wanted.sampling.logprobs is not None:
        close(draws.logprobs(0, 1)[0], sampler.logprobs(logits, token, wanted.sampling.logprobs))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_draw_does_not_notice_the_others(data: st.DataObject) -> None:
    logits, _, _ = data.draw(logits_and_draws(largest_vocab=40))
    found = [[data.draw(logits_and_draws(largest_vocab=40)) for _ in range(count)] for count in (2, 0, 3)]
    ends = [min((place for _, _, place in row), default=0) for row in found]
    rows = [
        [draw._replace(mask=None, prompt_len=min(draw.prompt_len, end)) for _, draw, _ in row]
        for row, end in zip(found, ends, strict=True)
    ]
    draws = computed(np.stack([logits] * 3), rows, *ends)
    together = [(draw, end) for row, end in zip(rows, ends, strict=True) for draw in row]
    assert draws.answers.tolist() == [expected(logits, draw, end) for draw, end in together]


@pytest.mark.parametrize("count", [0, 1, 5, 20])
def test_logprobs_of_a_large_vocabulary(count: int) -> None:
    logits = random_logits(20_011)
    draws = computed(logits[None], [at(*range(20), sampling=Sampling(temperature=3.0, logprobs=count))])
    for token, told in zip(draws.answers, draws.logprobs(0, 20), strict=True):
        close(told, sampler.logprobs(logits, token, count))


@pytest.mark.parametrize("order", [1, -1])
def test_the_best_of_sorted_logits(order: int) -> None:
    logits = np.linspace(-5, 5, 1003, dtype=np.float32)[::order].copy()
    told = computed(logits[None], [[Draw(0, Sampling(temperature=0, logprobs=20))]]).logprobs(0, 1)[0]
    best = range(1002, 982, -1) if order == 1 else range(20)
    assert (told.rank, [token for token, _ in told.top]) == (1, list(best))


def test_draws_without_logprobs_have_none_among_those_with() -> None:
    rows = [[Draw(0, Sampling())], [Draw(0, Sampling(logprobs=2))]]
    draws = computed(np.stack([random_logits(50)] * 2), rows)
    assert [len(draws.logprobs(number, 1)) for number in (0, 1)] == [0, 1]


def test_penalties_over_a_long_history() -> None:
    logits = random_logits(5000)
    history = array("i", np.random.default_rng(3).integers(0, 5000, 8000).tolist())
    sampling = Sampling(presence_penalty=0.5, frequency_penalty=0.3, repetition_penalty=1.3, temperature=0.8)
    draws = [Draw(0, sampling, history=history, prompt_len=prompt_len) for prompt_len in range(4000, 8000, 100)]
    assert drawn(logits[None], [draws], 7990) == of_the_sampler(logits, draws, 7990)


def test_a_history_may_grow_after_the_step() -> None:
    history = array("i", [1, 2, 3])
    logits, wanted = random_logits(50), Draw(0, Sampling(presence_penalty=1.0), history=history, prompt_len=2)
    draws = computed(logits[None], [[wanted]], 3)
    before = sampler.draw(logits, wanted, 3)
    history.append(before)
    assert draws.answers.tolist() == [before]


def test_every_choice_has_noise_of_its_own() -> None:
    logits = random_logits(5000)
    sampling = Sampling(temperature=3.0)
    draws = [Draw(choice, replace(sampling, seed=seed)) for choice in range(4) for seed in range(5)]
    assert drawn(logits[None], [draws]) == of_the_sampler(logits, draws)


@pytest.mark.parametrize("vocab", [1, 61, 49_152, 262_144])
def test_a_thread_has_room_for_every_draw(vocab: int) -> None:
    description = replace(PLAIN, vocab=vocab)
    assert kernel.scratch_bytes(vocab) <= arena.scratch_bytes(description, arena.Widths.of(description))
