"""What a step takes, learned from steps: prices of a step, of a prompt's token, of a row and of a position that it sees.

Knows plans and how long they took; knows no machine. The model is a straight line, fitted by least squares to the latest steps.
"""

from typing import NamedTuple

from chairlift.core.types import Plan
from chairlift.schedule.policy import Past

MEMORY = 0.98
"""What is left of the weight of a measured step one step later: a slower machine is believed after some fifty steps."""

RIDGE = 1e-4
"""By so much of what was measured prices are held down: rows and positions grow together, and steps may not tell them apart."""

FADED = 1e-9
"""An amount whose weight is less than this part of the largest is too long ago to be fitted: it keeps its last price."""

LEAST_STEPS = 4
"""A machine of which fewer steps were measured is not known at all."""


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


class Line:
    """A weighted sum of `count` amounts that was fitted to what was measured: least squares, of which the old ones fade.

    No price is below 0: one that would be is left out, and the others are fitted anew. An amount that was 0 for so long that
    hardly anything is left of what was measured keeps the price that it had, until it is measured again: what rounding makes
    of the rest would be no price.
    """

    def __init__(self, count: int, *, memory: float) -> None:
        self._memory = memory
        self._moments = [[0.0] * count for _ in range(count)]
        self._sums = [0.0] * count
        self._weights = [0.0] * count
        """Of the measurements in which an amount was not 0, together; 0 if it has faded."""
        self._last = [0.0] * count
        """The prices of those that have faded."""
        self._prices: tuple[float, ...] | None = None
        self.known = 0
        """Times that something was learned."""

    def learn(self, amounts: tuple[float, ...], value: float) -> None:
        for i, amount in enumerate(amounts):
            row = self._moments[i]
            for j, other in enumerate(amounts):
                row[j] = self._memory * row[j] + amount * other
            self._sums[i] = self._memory * self._sums[i] + amount * value
            self._weights[i] = self._memory * self._weights[i] + (amount != 0)
        self._prices = None
        self.known += 1
        least = FADED * max(self._weights)
        for i, weight in enumerate(self._weights):
            if 0 < weight < least:
                self._fade(i)

    def value(self, amounts: tuple[float, ...]) -> float:
        """0 if nothing is known."""
        return sum(price * amount for price, amount in zip(self._fitted(), amounts, strict=True))

    def _fitted(self) -> tuple[float, ...]:
        if self._prices is None:
            fitted = _fit(self._moments, self._sums)
            known = zip(fitted, self._weights, self._last, strict=True)
            self._prices = tuple(price if weight else last for price, weight, last in known)
        return self._prices

    def _fade(self, i: int) -> None:
        """Its price stays, and what was measured of it goes."""
        self._last[i] = self._fitted()[i]
        self._weights[i] = self._sums[i] = 0.0
        for row in self._moments:
            row[i] = 0.0
        self._moments[i] = [0.0] * len(self._moments)


class StepCosts:
    """What a step of a stated size takes."""

    def __init__(self) -> None:
        self._line = Line(1 + len(Size._fields), memory=MEMORY)

    def seconds(self, size: Size) -> float | None:
        """None if too few steps were measured."""
        return self._line.value((1.0, *size)) if self._line.known >= LEAST_STEPS else None

    def observe(self, past: Past) -> None:
        if past.plan is not None and past.elapsed_s > 0:
            self._line.learn((1.0, *size_of(past.plan)), past.elapsed_s)


def _fit(moments: list[list[float]], sums: list[float]) -> tuple[float, ...]:
    """The prices that explain the moments best, none of them negative."""
    kept = [i for i in range(len(sums)) if moments[i][i] > 0]
    while kept:
        matrix = [[moments[i][j] * (1 + RIDGE * (i == j)) for j in kept] for i in kept]
        prices = _solved(matrix, [sums[i] for i in kept])
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
