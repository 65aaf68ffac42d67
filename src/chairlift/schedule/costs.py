"""What a step takes, learned from the steps themselves: a price for any step, a prompt's token, a row and a position that it sees.

Knows plans and how long they took; knows no machine. The model is a straight line, fitted by least squares over the latest steps.
"""

from typing import NamedTuple

from chairlift.core.types import Plan
from chairlift.schedule.policy import Past

MEMORY = 0.98
"""What is left of the weight of a measured step one step later: a machine that gets slower is believed after some fifty steps."""

RIDGE = 1e-4
"""Of what was measured, that a price is held down by: rows and positions grow together, so steps cannot always tell them apart."""

LONE_BASE_STEPS = 4
"""A machine of which fewer steps are known is not known at all."""


class Size(NamedTuple):
    """What of a step costs time. Rows are those of next tokens; a row sees `positions`, its own included."""

    tokens: int
    rows: int
    positions: int


def size_of(plan: Plan) -> Size:
    tokens = rows = positions = 0
    for work in plan.work:
        if len(work.tokens) > 1 or work.pad:
            tokens += len(work.tokens)
        else:
            rows += 1
        positions += (0 if work.pad else work.start) + len(work.tokens)
    return Size(tokens, rows, positions)


class StepCosts:
    """Least squares over steps whose weight fades. No price is below 0: one that would be is left out, and the others fitted."""

    def __init__(self) -> None:
        self._moments = [[0.0] * 4 for _ in range(4)]
        self._sums = [0.0] * 4
        self._known = 0
        self._prices: tuple[float, ...] | None = None

    @property
    def known(self) -> int:
        """Steps that were measured."""
        return self._known

    def seconds(self, size: Size) -> float | None:
        """What such a step will take, or None if too little is known."""
        if self._known < LONE_BASE_STEPS:
            return None
        if self._prices is None:
            self._prices = _fit(self._moments, self._sums)
        return sum(price * amount for price, amount in zip(self._prices, (1, *size), strict=True))

    def observe(self, past: Past) -> None:
        if past.plan is None or past.elapsed_s <= 0:
            return
        amounts = (1, *size_of(past.plan))
        for i, amount in enumerate(amounts):
            row = self._moments[i]
            for j, other in enumerate(amounts):
                row[j] = MEMORY * row[j] + amount * other
            self._sums[i] = MEMORY * self._sums[i] + amount * past.elapsed_s
        self._known += 1
        self._prices = None


def _fit(moments: list[list[float]], sums: list[float]) -> tuple[float, ...]:
    """The prices that explain the moments best, none of them negative."""
    kept = [i for i in range(len(sums)) if moments[i][i] > 0]
    while kept:
        prices = _solved([[moments[i][j] + (RIDGE * moments[i][i] if i == j else 0.0) for j in kept] for i in kept], [sums[i] for i in kept])
        least = min(range(len(kept)), key=lambda place: prices[place] * moments[kept[place]][kept[place]] ** 0.5)
        if prices[least] >= 0:
            found = dict(zip(kept, prices, strict=True))
            return tuple(found.get(i, 0.0) for i in range(len(sums)))
        del kept[least]
    return (0.0,) * len(sums)


def _solved(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gauss's elimination; the matrix is symmetric and positive, so nothing has to be exchanged."""
    size = len(right)
    for i in range(size):
        for k in range(i + 1, size):
            factor = matrix[k][i] / matrix[i][i]
            for j in range(i, size):
                matrix[k][j] -= factor * matrix[i][j]
            right[k] -= factor * right[i]
    for i in reversed(range(size)):
        right[i] = (right[i] - sum(matrix[i][j] * right[j] for j in range(i + 1, size))) / matrix[i][i]
    return right
