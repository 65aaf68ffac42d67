"""An executor that computes nothing: it draws meaningless tokens until an answer is as long as it was told, and states a price.

Knows how long answers get, which schedulers must not know; knows neither clock nor models.
"""

from collections.abc import Mapping

from chairlift.core.types import Draw, Plan, Result, Row, Work, drawn_for
from chairlift.sim.cost import Cost

WORD = 0
END = 1
"""What is drawn. Whoever lists END among the tokens that end an answer gets answers of the stated lengths."""


class SimExecutor:
    """Answers have `lengths[id]` tokens, END included; those of unknown ids go on until somebody else ends them.

    The ids are those of choices (`choice_id`).

    A token that may not be drawn at its position is replaced by WORD: then the answer gets longer than stated.
    """

    def __init__(self, cost: Cost, lengths: Mapping[str, int]) -> None:
        self._cost = cost
        self._lengths = lengths
        self._plan: Plan | None = None

    def launch(self, plan: Plan) -> None:
        self._plan = plan

    def collect(self) -> Result:
        plan, self._plan = self._plan, None
        assert plan is not None, "a plan is launched before its result is collected"
        rows = tuple(self._row(work) for work in plan.work if work.draws)
        return Result(plan.step, rows, elapsed_s=self._cost.seconds(plan))

    def close(self) -> None: ...

    def _row(self, work: Work) -> Row:
        lengths = (self._lengths.get(choice) for choice in drawn_for(work))
        return Row(work.seq_id, tuple(_token(draw, work.end, length) for draw, length in zip(work.draws, lengths, strict=True)))


def _token(draw: Draw, place: int, length: int | None) -> int:
    ends = length is not None and place - draw.prompt_len + 1 >= length
    return END if ends and END not in draw.banned else WORD
