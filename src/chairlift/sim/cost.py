"""What a step takes in seconds, worked out from its plan alone. Knows plans; knows no machine and no model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from chairlift.core.types import Plan


class Cost(Protocol):
    """Prices plans. The same plan may cost something else the next time: a model of a machine may have moods."""

    def seconds(self, plan: Plan) -> float: ...


@dataclass(frozen=True, slots=True)
class Linear:
    """A straight line: so much for any step, for each token, for each row that draws, for each position that a row sees, and
    for each block that is moved.

    Positions that a row sees are counted once a row, as its keys and values are read once whatever its number of tokens.
    """

    step_s: float = 0.0
    token_s: float = 0.0
    draw_s: float = 0.0
    position_s: float = 0.0
    move_s: float = 0.0

    def seconds(self, plan: Plan) -> float:
        drawing = sum(len(work.draws) for work in plan.work)
        positions = sum((0 if work.pad else work.start) + len(work.tokens) for work in plan.work)
        computing_s = self.token_s * plan.tokens + self.draw_s * drawing + self.position_s * positions
        return self.step_s + computing_s + self.move_s * len(plan.moves)


class Moody:
    """A machine with moods: what steps of `cost` take is multiplied by what `noise` draws, and by `slowness` for a while.

    The while is between two moments of its own working time, in seconds: what all steps together took without slowness. So in
    the same part of the work everybody is slowed down, however he divides it.
    """

    def __init__(self, cost: Cost, noise: Callable[[], float], *, slowness: float, since_s: float, until_s: float) -> None:
        self._cost = cost
        self._noise = noise
        self._slowness = slowness
        self._since_s = since_s
        self._until_s = until_s
        self._worked_s = 0.0

    def seconds(self, plan: Plan) -> float:
        usual_s = self._cost.seconds(plan) * self._noise()
        slow = self._since_s <= self._worked_s < self._until_s
        self._worked_s += usual_s
        return usual_s * self._slowness if slow else usual_s
