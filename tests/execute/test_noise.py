"""The noise of sampling: its values are fixed for ever, open at both ends, and even."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chairlift.execute import noise

WORD = (1 << 64) - 1
ids = st.integers(0, 1 << 20)


def splitmix64(state: int, count: int) -> list[int]:
    """The generator as its authors print it."""
    outputs: list[int] = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & WORD
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & WORD
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
        outputs.append(z ^ (z >> 31))
    return outputs


def test_the_twin_is_the_published_generator() -> None:
    assert splitmix64(1234567, 3) == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(key=st.integers(0, WORD))
def test_ids_number_the_outputs_of_a_generator(key: int) -> None:
    expected = [((word >> 12) + 0.5) / 2**52 for word in splitmix64(key, 5)]
    assert noise.uniform(key, np.arange(5)).tolist() == expected


@given(seed=st.integers(0, WORD), choice=st.integers(0, 127), position=st.integers(0, 1 << 20))
def test_a_key_chains_three_generators(seed: int, choice: int, position: int) -> None:
    chained = 0
    for part in (seed, choice, position):
        chained = splitmix64(chained ^ part, 1)[0]
    assert noise.key(seed, choice, position) == chained


def test_keys_of_neighbouring_draws_are_all_different() -> None:
    keys = {noise.key(seed, choice, position) for seed in range(10) for choice in range(10) for position in range(100)}
    assert len(keys) == 10_000


def test_a_seed_counts_modulo_two_to_the_64() -> None:
    assert noise.key(-1, 0, 0) == noise.key(WORD, 0, 0) == noise.key(WORD + (1 << 64), 0, 0)


@given(key=st.integers(0, WORD), token=ids)
def test_one_id_has_the_same_noise_in_any_company(key: int, token: int) -> None:
    together = noise.uniform(key, np.arange(token, token + 3))
    assert noise.uniform(key, np.array([token]))[0] == together[0]


def test_the_extreme_words_stay_inside_the_interval() -> None:
    ends = (np.array([0, (1 << 52) - 1], dtype=np.uint64).astype(np.float64) + 0.5) * 2.0**-52
    assert 0 < ends[0] < ends[1] < 1


@given(key=st.integers(0, WORD))
def test_gumbel_noise_is_finite(key: int) -> None:
    assert np.isfinite(noise.gumbel(key, np.arange(1000))).all()


def test_numbers_are_even_over_ids() -> None:
    counts, _ = np.histogram(noise.uniform(noise.key(3, 0, 7), np.arange(100_000)), bins=100, range=(0, 1))
    assert ((counts - 1000) ** 2 / 1000).sum() < 149  # 0.1 % point of chi-square with 99 degrees of freedom


def test_numbers_are_even_over_positions() -> None:
    numbers = [noise.uniform(noise.key(3, 0, position), np.array([42]))[0] for position in range(20_000)]
    counts, _ = np.histogram(numbers, bins=100, range=(0, 1))
    assert ((counts - 200) ** 2 / 200).sum() < 149


def test_numbers_of_neighbouring_positions_are_not_related() -> None:
    rows = np.array([noise.uniform(noise.key(3, 0, position), np.arange(500)) for position in range(40)]) - 0.5
    related = np.corrcoef(rows) - np.eye(40)
    assert np.abs(related).max() < 0.2  # four and a half standard deviations of chance
