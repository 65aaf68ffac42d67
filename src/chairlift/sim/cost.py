"""What a step takes in seconds, worked out from its plan alone. Knows plans; knows no machine and no model."""

from dataclasses import dataclass
from typing import Protocol

from chairlift.core.types import Plan


class Cost(Protocol):
    """Prices plans. The same plan may cost something else the next time: a model of a machine may have moods."""

    def seconds(self, plan: Plan) -> float: ...


@dataclass(frozen=True, slots=True)
class Linear:
    """A straight line: so much for any step, for each token, for each row that draws, and for each position that a row sees.

    Positions that a row sees are counted once a row, as its keys and values are read once whatever its number of tokens.
    """

    step_s: float = 0.0
    token_s: float = 0.0
    draw_s: float = 0.0
    position_s: float = 0.0

    def seconds(self, plan: Plan) -> float:
        drawing = sum(len(work.draws) for work in plan.work)
        positions = sum((0 if work.pad else work.start) + len(work.tokens) for work in plan.work)
        return self.step_s + self.token_s * plan.tokens + self.draw_s * drawing + self.position_s * positions
