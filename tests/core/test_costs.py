"""What steps cost, against counting every position one by one."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.core.costs import Cost, LayerCost, Limits, ModelCost
from chairlift.core.types import Draw, Sampling, Work

DRAW = (Draw(0, Sampling()),)
MODEL = ModelCost(
    body_bytes=1000,
    head_bytes=500,
    token_bytes=10,
    token_operations=200,
    draw_operations=90,
    layers=(LayerCost(8, 6), LayerCost(8, 6), LayerCost(8, 6, window=3)),
)


def row(start: int, count: int, *, draws: tuple[Draw, ...] = DRAW, pad: bool = False) -> Work:
    return Work("r", start, array("i", range(count)), array("i"), draws, pad)


def counted(start: int, count: int, window: int | None) -> tuple[int, int]:
    """Positions that are read at all, and pairs of a token and a position that it sees."""
    seen = [(token, p) for token in range(start, start + count) for p in range(token + 1) if not window or token - p < window]
    return len({p for _, p in seen}), len(seen)


@given(st.integers(0, 20), st.integers(1, 20), st.one_of(st.none(), st.integers(1, 12)))
def test_attention_reads_and_computes_what_is_seen(start: int, count: int, window: int | None) -> None:
    model = ModelCost(0, 0, 0, 0, 0, (LayerCost(1, 1000, window),))
    read, pairs = counted(start, count, window)
    assert model.of([row(start, count)]) == Cost(read + count, 1000 * pairs)


def test_weights_are_read_once_for_all_rows() -> None:
    model = ModelCost(1000, 500, 10, 0, 0, ())
    assert model.of([row(5, 1), row(7, 3)]).bytes == 1500 + 4 * 10


def test_the_head_is_read_only_if_somebody_draws() -> None:
    model = ModelCost(1000, 500, 0, 0, 90, ())
    assert model.of([row(0, 4, draws=())]) == Cost(1000, 0)


def test_padding_draws_nothing_and_sees_only_itself() -> None:
    assert MODEL.of([row(9, 1, pad=True)]) == MODEL.of([row(0, 1, draws=())])


def test_layers_add_up() -> None:
    assert MODEL.of([row(9, 1)]) == Cost(1000 + 500 + 10 + 8 * (11 + 11 + 4), 200 + 90 + 6 * (10 + 10 + 3))


def test_no_rows_cost_nothing() -> None:
    assert MODEL.of([]) == Cost(0, 0)


def test_limits_are_the_most_that_was_reached() -> None:
    first, second = Limits(10.0, 40.0), Limits(8.0, 50.0)
    assert first.best(second) == Limits(10.0, 50.0)
    assert first.spread(second) == pytest.approx(0.2)
