"""An executor that computes nothing: it draws meaningless tokens until an answer is as long as it was told, and states a price.

Knows how long answers get, which schedulers must not know; knows neither clock nor models.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from chairlift.core.types import Draw, Plan, Result, Row, Work, drawn_for
from chairlift.sim.cost import Cost

WORD = 0
END = 1
"""What is drawn. Whoever lists END among the tokens that end an answer gets answers of the stated lengths."""


class SimExecutor:
    """Answers have `lengths[id]` tokens, END included; those of unknown ids go on until somebody else ends them.

    The ids are those of choices (`choice_id`).

    A token that may not be drawn at its position is replaced by WORD: then the answer gets longer than stated.

    `decision_s` is what the host takes to decide a step and to launch it. While a step is in flight it costs no time of its
    own, as long as it is the shorter. A result tells what went by since the one before: for all of them together it is the
    time of the engine's clock.
    """

    def __init__(self, cost: Cost, lengths: Mapping[str, int], *, decision_s: float = 0.0) -> None:
        self._cost = cost
        self._lengths = lengths
        self._decision_s = decision_s
        self._flights: deque[_Flight] = deque()
        self._gone_s = 0.0
        """Since the last result."""

    def launch(self, plan: Plan) -> None:
        self._gone_s += self._decision_s
        decided_s = self._decision_s
        for flight in self._flights:
            worked_s = min(flight.left_s, decided_s)
            flight.left_s -= worked_s
            decided_s -= worked_s
        self._flights.append(_Flight(plan, self._cost.seconds(plan)))

    def collect(self) -> Result:
        flight = self._flights.popleft()
        elapsed_s, self._gone_s = self._gone_s + flight.left_s, 0.0
        rows = tuple(self._row(work) for work in flight.plan.work if work.draws)
        return Result(flight.plan.step, rows, elapsed_s=elapsed_s)

    def close(self) -> None: ...

    def _row(self, work: Work) -> Row:
        lengths = (self._lengths.get(choice) for choice in drawn_for(work))
        return Row(work.seq_id, tuple(_token(draw, work.end, length) for draw, length in zip(work.draws, lengths, strict=True)))


@dataclass(slots=True)
class _Flight:
    """A plan, and how much of its time is left."""

    plan: Plan
    left_s: float


def _token(draw: Draw, place: int, length: int | None) -> int:
    ends = length is not None and place - draw.prompt_len + 1 >= length
    return END if ends and END not in draw.banned else WORD
