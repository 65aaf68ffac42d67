"""The line through what steps took."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.schedule.costs import FADED, Line

PRICES = (0.011, 1e-4, 2e-5, 9e-8)
"""Of a step, of a prompt's token, of a row and of a position."""

MEMORY = 0.98


def cost(*amounts: float, prices: tuple[float, ...] = PRICES) -> float:
    return sum(price * amount for price, amount in zip(prices, amounts, strict=True))


def taught(steps: int) -> Line:
    """Steps with prompts first, and then so many without."""
    line = Line(4, memory=MEMORY)
    for step in range(100):
        amounts = (1.0, 100 + 300 * (step % 3), 8 - step % 2, 8 * (1000 + step))
        line.learn(amounts, cost(*amounts))
    for step in range(steps):
        amounts = (1.0, 0, 8 - step % 2, 8 * (1000 + step % 500))
        line.learn(amounts, cost(*amounts))
    return line


def test_nothing_is_known_of_what_was_never_measured():
    assert Line(2, memory=MEMORY).value((1.0, 5.0)) == 0


def test_what_was_measured_is_predicted():
    assert taught(0).value((1.0, 250, 8, 8000)) == pytest.approx(cost(1.0, 250, 8, 8000), rel=0.01)


@pytest.mark.parametrize("steps", [500, 2000, 37_000])
def test_an_amount_that_was_not_seen_for_long_keeps_its_price(steps: int):
    line = taught(steps)
    assert line.value((0.0, 100, 0, 0)) == pytest.approx(0.01, rel=0.05)
    assert line.value((1.0, 0, 8, 10_000)) == pytest.approx(cost(1.0, 0, 8, 10_000), rel=0.01)


def test_no_price_explodes_while_what_was_measured_turns_into_rounding():
    """Numbers lose their last digits below 1e-308, some 37,000 steps after the last prompt."""
    line = taught(35_500)
    for step in range(2_500):
        amounts = (1.0, 0, 8, 8 * (1000 + step % 500))
        line.learn(amounts, cost(*amounts))
        assert line.value((1.0, 32, 8, 8000)) < 2 * cost(1.0, 32, 8, 8000)


def test_an_amount_that_is_seen_again_gets_a_new_price():
    line = taught(2000)
    dearer = (0.011, 3e-4, 2e-5, 9e-8)
    for step in range(20):
        amounts = (1.0, 400 * (step % 2), 8, 8000)
        line.learn(amounts, cost(*amounts, prices=dearer))
    assert line.value((0.0, 100, 0, 0)) == pytest.approx(0.03, rel=0.05)


@given(
    st.lists(
        st.tuples(st.sampled_from((300, 1200)), st.tuples(*[st.sampled_from((0.0, 1.0, 300.0))] * 2)),
        min_size=1,
        max_size=3,
    )
)
def test_whatever_comes_and_goes_no_price_is_negative_and_the_latest_steps_are_predicted(
    spans: list[tuple[int, tuple[float, float]]],
):
    """Some amounts are there for a while and then are not; a thousand steps leave less than `FADED` of them."""
    assert MEMORY**1100 < FADED
    line = Line(3, memory=MEMORY)
    for steps, amounts in spans:
        for _ in range(steps):
            line.learn((1.0, *amounts), cost(1.0, *amounts, prices=(0.01, 0.02, 0.001)))
        assert line.value((1.0, *amounts)) == pytest.approx(cost(1.0, *amounts, prices=(0.01, 0.02, 0.001)), rel=0.01)
        assert all(price >= 0 for price in line._fitted())
