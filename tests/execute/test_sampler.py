"""Drawing a token: the rules one by one, a readable twin, extreme settings, and frequencies."""

import math
from array import array
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from draws import logits_and_draws
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st
from masks import mask_of
from numpy.typing import NDArray

from chairlift.core.errors import NothingAllowed
from chairlift.core.types import Draw, Sampling
from chairlift.execute import noise
from chairlift.execute.sampler import draw, logprobs

CLEAR = np.array([0.5, 3.0, -2.0, 1.0, 2.5], dtype=np.float32)
GREEDY = Sampling(temperature=0)
FIXED = [21900, 1902, 22994, 41668]


def one(logits: NDArray[np.float32], sampling: Sampling, *, banned: frozenset[int] = frozenset(), position: int = 0) -> int:
    return draw(logits, Draw(0, sampling, banned), position)


def many(
    logits: NDArray[np.float32], sampling: Sampling, *, count: int = 300, banned: frozenset[int] = frozenset()
) -> Counter[int]:
    return Counter(one(logits, sampling, banned=banned, position=position) for position in range(count))


class TooCloseError(Exception):
    """Whether a sum of probabilities reaches top-p is a matter of rounding."""


def rounded(logit: float, wanted: Draw, token: int, place: int) -> float:
    """A logit with its bias and its penalties, in float32."""
    sampling = wanted.sampling
    before = list(wanted.history or [])[:place]
    for biased, bias in sampling.logit_bias:
        if biased == token:
            logit = finite(logit + bias)
    if token in before and sampling.penalised:
        count = before[wanted.prompt_len :].count(token)
        logit = logit / sampling.repetition_penalty if logit > 0 else logit * sampling.repetition_penalty
        logit -= sampling.frequency_penalty * count
        logit = finite(logit - (sampling.presence_penalty if count else 0.0))
    return logit


def finite(value: float) -> float:
    largest = float(np.finfo(np.float32).max)
    return float(np.float32(max(-largest, min(largest, value))))


def is_allowed(wanted: Draw, token: int) -> bool:
    return wanted.mask is None or wanted.mask[token // 32] >> token % 32 & 1 == 1


def twin(logits: NDArray[np.float32], wanted: Draw, place: int) -> int:
    """The rules as they read, token by token."""
    sampling = wanted.sampling
    changed = {token: rounded(float(logit), wanted, token, place) for token, logit in enumerate(logits)}
    allowed = {token: logit for token, logit in changed.items() if token not in wanted.banned and is_allowed(wanted, token)}
    ranked = sorted(allowed, key=lambda token: (-allowed[token], token))
    if sampling.temperature == 0:
        return ranked[0]
    best = allowed[ranked[0]]
    score = {token: (allowed[token] - best) / sampling.temperature for token in ranked}
    kept = [token for token in ranked if score[token] > -math.inf]
    kept = kept[: sampling.top_k or None]
    if sampling.top_p < 1:
        total, reached, nucleus = sum(math.exp(score[token]) for token in kept), 0.0, []
        for token in kept:
            nucleus.append(token)
            reached += math.exp(score[token])
            if abs(reached - sampling.top_p * total) < 1e-9 * total:
                raise TooCloseError
            if reached >= sampling.top_p * total:
                break
        kept = nucleus
    kept = [token for token in kept if math.exp(score[token]) >= sampling.min_p]
    key = noise.key(sampling.seed, wanted.choice, place - wanted.prompt_len)
    noisy = {token: score[token] + float(noise.gumbel(key, np.array([token]))[0]) for token in kept}
    return max(sorted(noisy), key=lambda token: noisy[token])


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 1e-3, 0.3, 0.7, 1.0, 1.5, 50.0]),
    top_k=st.sampled_from([0, 1, 2, 3, 10, 1000]),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 0.99)),
    min_p=st.one_of(st.just(0.0), st.floats(0.001, 1.0)),
    seed=st.integers(0, (1 << 64) - 1),
)


@settings(max_examples=300)
@given(data=st.data(), sampling=samplings, choice=st.integers(0, 3), position=st.integers(0, 1000))
def test_a_draw_equals_its_twin(data: st.DataObject, sampling: Sampling, choice: int, position: int) -> None:
    grid = st.integers(-12, 12).map(lambda number: number / 4)  # coarse, so that there are ties
    logits = np.array(data.draw(st.lists(grid, min_size=2, max_size=30)), dtype=np.float32)
    banned = data.draw(st.frozensets(st.integers(0, len(logits) + 3), max_size=len(logits) - 1))
    assume(len([token for token in banned if token < len(logits)]) < len(logits))
    wanted = Draw(choice, sampling, banned)
    try:
        expected = twin(logits, wanted, position)
    except TooCloseError:
        reject()
    assert draw(logits, wanted, position) == expected


@settings(max_examples=500)
@given(logits_and_draws(largest_vocab=40))
def test_a_draw_that_changes_logits_equals_its_twin(case: tuple[NDArray[np.float32], Draw, int]) -> None:
    logits, wanted, place = case
    if all(token in wanted.banned or not is_allowed(wanted, token) for token in range(len(logits))):
        with pytest.raises(NothingAllowed):
            draw(logits, wanted, place)
        return
    try:
        expected = twin(logits, wanted, place)
    except TooCloseError:
        reject()
    assert draw(logits, wanted, place) == expected


@pytest.mark.parametrize("top_p", [0.05, 0.3, 0.8, 0.97, 0.9999])
def test_a_large_vocabulary_equals_the_twin(top_p: float) -> None:
    logits = np.random.default_rng(4).standard_normal(5000).astype(np.float32)
    wanted = Draw(0, Sampling(top_p=top_p, temperature=0.8, seed=1))
    for position in range(5):
        assert draw(logits, wanted, position) == twin(logits, wanted, position)


class TestGreedy:
    def test_the_largest_logit_wins(self) -> None:
        assert one(CLEAR, GREEDY) == 1

    def test_the_lowest_id_wins_among_equals(self) -> None:
        assert one(np.array([1, 2, 2, 2], dtype=np.float32), GREEDY) == 1

    def test_a_banned_token_leaves_the_next(self) -> None:
        assert one(CLEAR, GREEDY, banned=frozenset({1})) == 4

    def test_logits_are_left_as_they_were(self) -> None:
        logits = CLEAR.copy()
        one(logits, GREEDY, banned=frozenset({1}))
        assert (logits == CLEAR).all()


class TestBans:
    def test_a_banned_token_is_never_drawn(self) -> None:
        assert set(many(CLEAR, Sampling(temperature=5.0), banned=frozenset({1, 3}))) == {0, 2, 4}

    @pytest.mark.parametrize(
        "sampling", [GREEDY, Sampling(), Sampling(temperature=1e6), Sampling(top_k=1), Sampling(top_p=0.01)]
    )
    def test_the_only_token_left_is_drawn(self, sampling: Sampling) -> None:
        assert one(CLEAR, sampling, banned=frozenset({0, 1, 3, 4})) == 2

    def test_ids_beyond_the_vocabulary_ban_nothing(self) -> None:
        assert one(CLEAR[:2], GREEDY, banned=frozenset({2, 10_000, -1})) == 1

    def test_nothing_can_be_drawn_if_everything_is_banned(self) -> None:
        with pytest.raises(NothingAllowed, match="every token is excluded"):
            one(CLEAR, GREEDY, banned=frozenset(range(5)))


def after(logits: list[float], prompt: list[int], output: list[int], **settings: Any) -> int:
    """The greedy token after a prompt and an output."""
    history = array("i", [*prompt, *output])
    wanted = Draw(0, Sampling(temperature=0, **settings), history=history, prompt_len=len(prompt))
    return draw(np.array(logits, dtype=np.float32), wanted, len(history))


class TestPenalties:
    def test_presence_counts_a_token_once(self) -> None:
        assert after([1.0, 0.0], [], [0, 0, 0], presence_penalty=0.9) == 0

    def test_frequency_counts_it_each_time(self) -> None:
        assert after([1.0, 0.0], [], [0, 0, 0], frequency_penalty=0.3) == 0
        assert after([1.0, 0.0], [], [0, 0, 0, 0], frequency_penalty=0.3) == 1

    @pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
    def test_the_prompt_is_not_looked_at(self, name: str) -> None:
        assert after([1.0, 0.0], [0, 0], [], **{name: 2.0}) == 0

    def test_repetition_looks_at_the_prompt_as_well(self) -> None:
        assert after([1.0, 0.6], [0], [], repetition_penalty=2.0) == 1

    def test_repetition_makes_a_negative_logit_smaller(self) -> None:
        assert after([-1.0, -1.5], [0], [], repetition_penalty=2.0) == 1

    def test_repetition_counts_a_token_once(self) -> None:
        assert after([1.0, 0.4], [0, 0], [0, 0], repetition_penalty=2.0) == 0

    def test_a_negative_penalty_is_a_reward(self) -> None:
        assert after([1.0, 0.5], [], [1], presence_penalty=-1.0) == 1

    def test_repetition_goes_before_the_others(self) -> None:
        assert after([2.0, 0.2], [], [0], repetition_penalty=2.0, presence_penalty=0.9) == 1
        assert after([2.0, 0.0], [], [0], repetition_penalty=2.0, presence_penalty=0.9) == 0

    def test_what_comes_after_the_draw_is_not_looked_at(self) -> None:
        wanted = Draw(0, Sampling(temperature=0, presence_penalty=2.0), history=array("i", [0, 1, 0]), prompt_len=1)
        assert draw(np.array([1.0, 0.5], dtype=np.float32), wanted, 2) == 0

    def test_a_history_can_grow_afterwards(self) -> None:
        history = array("i", [0, 1])
        draw(CLEAR, Draw(0, Sampling(presence_penalty=1.0), history=history, prompt_len=1), 2)
        history.append(5)


class TestBias:
    def test_it_is_added(self) -> None:
        assert after([1.0, 0.0], [], [], logit_bias=((1, 1.5),)) == 1

    def test_it_is_there_before_penalties(self) -> None:
        assert after([1.0, -1.0], [1], [], logit_bias=((1, 3.0),), repetition_penalty=4.0) == 0

    def test_it_does_not_bring_a_banned_token_back(self) -> None:
        assert one(CLEAR, replace(GREEDY, logit_bias=((1, 100.0),)), banned=frozenset({1})) == 4

    def test_ids_beyond_the_vocabulary_are_passed_over(self) -> None:
        assert one(CLEAR, replace(GREEDY, logit_bias=((5, 100.0), (-1, 100.0)))) == 1


class TestMask:
    def test_only_what_it_allows_is_drawn(self) -> None:
        sampling = Sampling(temperature=50.0)
        mask = mask_of([3, 40], 60)
        wanted = Draw(0, sampling, mask=mask)
        assert {draw(np.zeros(60, dtype=np.float32), wanted, position) for position in range(100)} == {3, 40}

    def test_bits_beyond_the_vocabulary_allow_nothing(self) -> None:
        with pytest.raises(NothingAllowed):
            draw(CLEAR, Draw(0, GREEDY, mask=mask_of([5, 31], 32)), 0)

    def test_nothing_is_left_of_mask_and_bans(self) -> None:
        with pytest.raises(NothingAllowed):
            draw(CLEAR, Draw(0, GREEDY, frozenset({2}), mask=mask_of([2], 5)), 0)


class TestLogprobs:
    def test_they_are_logarithms_of_the_softmax(self) -> None:
        logits = np.log(np.array([0.1, 0.4, 0.2, 0.3], dtype=np.float32))
        told = logprobs(logits, 2, 4)
        assert told.chosen == pytest.approx(math.log(0.2), abs=1e-6)
        assert [token for token, _ in told.top] == [1, 3, 2, 0]
        assert sum(math.exp(logprob) for _, logprob in told.top) == pytest.approx(1)

    def test_equal_ones_are_ranked_by_their_ids(self) -> None:
        told = [logprobs(np.zeros(4, dtype=np.float32), token, 2) for token in range(4)]
        assert [one.rank for one in told] == [1, 2, 3, 4]
        assert [token for token, _ in told[3].top] == [0, 1]

    def test_a_chosen_token_of_the_list_stands_at_its_rank(self) -> None:
        for token in range(5):
            told = logprobs(CLEAR, token, 5)
            assert told.top[told.rank - 1] == (token, told.chosen)

    def test_a_token_without_a_chance_has_a_finite_one(self) -> None:
        assert math.isfinite(logprobs(np.array([3e38, -3e38], dtype=np.float32), 1, 0).chosen)

    def test_none_but_the_chosen(self) -> None:
        assert logprobs(CLEAR, 1, 0).top == ()


class TestTemperature:
    @pytest.mark.parametrize("temperature", [1e-4, 1e-12, 1e-300, 5e-324])
    @pytest.mark.parametrize("top_p", [1.0, 0.9])
    def test_a_tiny_one_is_greedy(self, temperature: float, top_p: float) -> None:
        assert set(many(CLEAR, Sampling(temperature=temperature, top_p=top_p))) == {1}

    def test_a_tiny_one_is_greedy_with_huge_logits(self) -> None:
        logits = np.array([-3e38, 3e38, 2e38], dtype=np.float32)
        assert one(logits, Sampling(temperature=5e-324)) == 1

    def test_a_huge_one_draws_evenly(self) -> None:
        counts = many(CLEAR, Sampling(temperature=1e6), count=2000)
        assert sum((counts[token] - 400) ** 2 / 400 for token in range(5)) < 18.5  # 0.1 %, 4 degrees of freedom

    @pytest.mark.parametrize("shift", [-1e4, 1e4])
    def test_a_shift_of_all_logits_changes_nothing(self, shift: float) -> None:
        sampling = Sampling(seed=3)
        shifted = CLEAR + np.float32(shift)
        assert [one(shifted, sampling, position=p) for p in range(50)] == [one(CLEAR, sampling, position=p) for p in range(50)]


class TestCutting:
    def test_top_k_keeps_the_best(self) -> None:
        assert set(many(CLEAR, Sampling(temperature=5.0, top_k=2))) == {1, 4}

    def test_top_k_breaks_ties_by_the_lower_id(self) -> None:
        assert set(many(np.ones(6, dtype=np.float32), Sampling(top_k=3))) == {0, 1, 2}

    def test_top_k_takes_of_the_tied_only_as_many_as_are_left(self) -> None:
        assert set(many(np.array([1, 2, 1, 1], dtype=np.float32), Sampling(top_k=2))) == {0, 1}

    @pytest.mark.parametrize("top_k", [0, 5, 10**9])
    def test_top_k_of_nothing_or_everything_is_off(self, top_k: int) -> None:
        assert set(many(CLEAR, Sampling(temperature=5.0, top_k=top_k))) == {0, 1, 2, 3, 4}

    @pytest.mark.parametrize(
        ("top_p", "kept"), [(0.0, {0}), (0.3, {0}), (0.45, {0, 1}), (0.75, {0, 1, 2}), (0.95, {0, 1, 2, 3})]
    )
    def test_top_p_keeps_the_fewest_that_reach_it(self, top_p: float, kept: set[int]) -> None:
        logits = np.log(np.array([0.4, 0.3, 0.2, 0.1], dtype=np.float32))
        assert set(many(logits, Sampling(top_p=top_p))) == kept

    def test_top_p_breaks_ties_by_the_lower_id(self) -> None:
        assert set(many(np.ones(8, dtype=np.float32), Sampling(top_p=0.3))) == {0, 1, 2}

    def test_top_p_breaks_many_ties_by_the_lower_id(self) -> None:
        logits = np.arange(200, dtype=np.float32) % 2 * 20  # the odd ids hold all that counts
        assert max(many(logits, Sampling(top_p=0.195), count=1000)) == 39

    def test_top_p_counts_what_top_k_left(self) -> None:
        logits = np.log(np.array([0.4, 0.3, 0.2, 0.1], dtype=np.float32))
        assert set(many(logits, Sampling(top_k=2, top_p=0.55))) == {0}

    def test_top_p_counts_after_the_temperature(self) -> None:
        logits = np.log(np.array([0.6, 0.3, 0.1], dtype=np.float32))
        assert set(many(logits, Sampling(top_p=0.55, temperature=4.0))) == {0, 1}

    def test_min_p_is_relative_to_the_best(self) -> None:
        logits = np.log(np.array([0.4, 0.3, 0.2, 0.1], dtype=np.float32))
        assert set(many(logits, Sampling(min_p=0.6))) == {0, 1}

    def test_min_p_of_one_keeps_the_best(self) -> None:
        assert set(many(CLEAR, Sampling(min_p=1.0))) == {1}


class TestNoise:
    @pytest.mark.parametrize(
        ("first", "second"),
        [
            ((0, 1, 0), (0, 2, 0)),
            ((0, 1, 0), (1, 1, 0)),
            ((0, 1, 0), (0, 1, 1)),
        ],
        ids=["seed", "choice", "position"],
    )
    def test_each_part_of_its_key_matters(self, first: tuple[int, int, int], second: tuple[int, int, int]) -> None:
        even = np.zeros(100_000, dtype=np.float32)
        drawn = [draw(even, Draw(choice, Sampling(seed=seed)), position) for choice, seed, position in (first, second)]
        assert drawn[0] != drawn[1]

    def test_the_same_key_draws_the_same(self) -> None:
        even = np.zeros(100_000, dtype=np.float32)
        assert one(even, Sampling(seed=9), position=4) == one(even, Sampling(seed=9), position=4)

    def test_some_draws_are_fixed_for_ever(self) -> None:
        assert [one(np.zeros(50_000, dtype=np.float32), Sampling(seed=7), position=p) for p in range(4)] == FIXED


class TestFrequencies:
    """Counts of many draws against probabilities: chi-square below its 0.1 % point. The draws are fixed: it never flickers."""

    logits = np.log(np.array([0.5, 0.25, 0.15, 0.07, 0.03], dtype=np.float32))

    @pytest.mark.parametrize(
        ("sampling", "expected"),
        [
            (Sampling(), [0.5, 0.25, 0.15, 0.07, 0.03]),
            (Sampling(temperature=0.5), [0.7331, 0.1833, 0.0660, 0.0144, 0.0026]),
            (Sampling(top_k=3), [5 / 9, 2.5 / 9, 1.5 / 9, 0, 0]),
            (Sampling(top_p=0.7), [2 / 3, 1 / 3, 0, 0, 0]),
            (Sampling(min_p=0.2), [5 / 9, 2.5 / 9, 1.5 / 9, 0, 0]),
        ],
        ids=["plain", "temperature", "top k", "top p", "min p"],
    )
    def test_over_positions(self, sampling: Sampling, expected: list[float]) -> None:
        assert self.distance(many(self.logits, replace(sampling, seed=11), count=5000), expected) < 18.5

    def test_over_seeds(self) -> None:
        counts = Counter(one(self.logits, Sampling(seed=seed)) for seed in range(5000))
        assert self.distance(counts, [0.5, 0.25, 0.15, 0.07, 0.03]) < 18.5

    def test_over_choices(self) -> None:
        counts = Counter(draw(self.logits, Draw(choice, Sampling(seed=1)), 0) for choice in range(5000))
        assert self.distance(counts, [0.5, 0.25, 0.15, 0.07, 0.03]) < 18.5

    @staticmethod
    def distance(counts: Counter[int], expected: list[float]) -> float:
        total = counts.total()
        return sum((counts[token] - total * share) ** 2 / (total * share) for token, share in enumerate(expected) if share > 0)
