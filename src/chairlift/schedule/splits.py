"""How a step's token budget is divided. Knows how much each sequence misses; knows nothing of memory."""

from collections.abc import Iterable
from itertools import chain, repeat

from chairlift.core.types import Sequence
from chairlift.schedule.policy import Past, Split

Share = tuple[Sequence, int]
"""A sequence and its part of the step's tokens."""


class Chunked:
    """Long prompts are computed in chunks beside the others' next tokens, so that nobody's stream stands still.

    Sequences that miss one token come first. Then prompts, by rank: each gets all that is left, or half of it while somebody
    is behind it, but never less than `floor` tokens. So the oldest prompt keeps at least half of the budget, a short prompt
    overtakes a long one that came before it, and the rest of the budget is not scattered over many small chunks.
    """

    def __init__(self, *, floor: int) -> None:
        self.floor = floor

    def share(self, running: list[Sequence], budget: int, *, behind: bool) -> Iterable[Share]:
        ready, prompts = _parted(running, budget)
        budget -= len(ready)
        counts: list[int] = []
        for position, sequence in enumerate(prompts, start=1):
            counts.append(self.chunk(sequence.missing, budget, behind=behind or position < len(prompts)))
            budget -= counts[-1]
        chunks: list[Share] = []
        for sequence, count in zip(prompts, counts, strict=True):
            # What was kept for those behind and not needed goes back to the first, unless somebody may still get on.
            more = 0 if behind else min(sequence.missing - count, budget)
            budget -= more
            if count + more:
                chunks.append((sequence, count + more))
        return chain(_one_each(ready), chunks)

    def starts(self, missing: int, budget: int) -> bool:  # noqa: ARG002
        return budget > 0

    def chunk(self, missing: int, budget: int, *, behind: bool) -> int:
        most = min(budget, max(budget // 2, self.floor)) if behind else budget
        return min(missing, most)

    def observe(self, past: Past) -> None: ...


class Whole:
    """Prompts are computed in one piece: one that does not fit into what is left of the step waits for the next.

    Only a prompt longer than `budget`, that of a whole step, is cut; then it goes on with all that is left of every step.
    """

    def __init__(self, *, budget: int) -> None:
        self._budget = budget

    def share(self, running: list[Sequence], budget: int, *, behind: bool) -> Iterable[Share]:  # noqa: ARG002
        ready, prompts = _parted(running, budget)
        budget -= len(ready)
        chunks: list[Share] = []
        for sequence in prompts:
            if not budget:
                break
            chunks.append((sequence, min(sequence.missing, budget)))
            budget -= chunks[-1][1]
        return chain(_one_each(ready), chunks)

    def starts(self, missing: int, budget: int) -> bool:
        return budget > 0 and (missing <= budget or missing > self._budget)

    def chunk(self, missing: int, budget: int, *, behind: bool) -> int:  # noqa: ARG002
        return min(missing, budget)

    def observe(self, past: Past) -> None: ...


class Balanced:
    """All prompts get the same number of tokens; what some do not need goes to the others. Nobody's prompt overtakes another's.

    Whoever may still get on counts as one more prompt.
    """

    def share(self, running: list[Sequence], budget: int, *, behind: bool) -> Iterable[Share]:
        ready, prompts = _parted(running, budget)
        budget -= len(ready)
        claims = len(prompts) + behind
        chunks: list[Share] = []
        # The smallest needs come first, so that whatever they leave is there to be divided among the larger ones.
        for sequence in sorted(prompts, key=lambda sequence: sequence.missing):
            count = min(sequence.missing, -(-budget // claims))
            budget -= count
            claims -= 1
            if count:
                chunks.append((sequence, count))
        return chain(_one_each(ready), chunks)

    def starts(self, missing: int, budget: int) -> bool:  # noqa: ARG002
        return budget > 0

    def chunk(self, missing: int, budget: int, *, behind: bool) -> int:
        return min(missing, -(-budget // 2) if behind else budget)

    def observe(self, past: Past) -> None: ...


AIM = 0.65
"""Of the target, that a step is sized for: steps of one size take now more and now less, and slow times begin unannounced."""

MOST_GROWTH = 1.25
"""By which the prompts' part of a step may grow at once."""


class Adaptive:
    """Keeps the time between two tokens of a stream under `itl_target_s`, by giving prompts only so many tokens a step.

    How many is learned from the steps themselves: after one that took too long the next is smaller in proportion, and as long
    as steps are short they grow. It never is less than `floor`, so prompts get on even where the target cannot be met. While
    nobody waits for a next token, prompts get everything. `inner` divides what they get, and whatever it is, a prompt is cut.
    """

    def __init__(self, inner: Split, *, itl_target_s: float, floor: int, budget: int) -> None:
        self._inner = inner
        self._aim_s = AIM * itl_target_s
        self._floor = floor
        self._budget = budget
        self._allowance = float(floor)
        self._left = 0
        """Of this step's tokens for prompts."""

    @property
    def allowance(self) -> int:
        """Tokens of prompts beside next tokens, in one step."""
        return int(self._allowance)

    def share(self, running: list[Sequence], budget: int, *, behind: bool) -> Iterable[Share]:
        ready, prompts = _parted(running, budget)
        budget -= len(ready)
        self._left = min(budget, self.allowance) if ready else budget
        chunks = list(self._inner.share(prompts, self._left, behind=behind))
        self._left -= sum(count for _, count in chunks)
        return chain(_one_each(ready), chunks)

    def starts(self, missing: int, budget: int) -> bool:  # noqa: ARG002
        """Whatever `inner` says: a prompt that waits until it fits in one piece may never fit into the allowance."""
        return min(budget, self._left) > 0

    def chunk(self, missing: int, budget: int, *, behind: bool) -> int:
        count = self._inner.chunk(missing, min(budget, self._left), behind=behind)
        self._left -= count
        return count

    def observe(self, past: Past) -> None:
        """Steps with prompts beside next tokens tell how long such steps take; others tell nothing about them."""
        if past.plan is None or past.elapsed_s <= 0:
            return
        prompts = sum(len(work.tokens) for work in past.plan.work if len(work.tokens) > 1)
        if not prompts or all(len(work.tokens) > 1 for work in past.plan.work):
            return
        ratio = self._aim_s / past.elapsed_s
        if ratio < 1:
            self._allowance = max(self._floor, min(self._allowance, prompts) * ratio)
        elif prompts >= self.allowance:  # a step that was not full does not show that a larger one would be too long
            self._allowance = min(self._budget, self._allowance * min(ratio, MOST_GROWTH))


class PrefillFirst:
    """Nobody gets a next token while a prompt is to be computed: the whole budget goes to prompts, divided as `inner` does.

    All streams stand still meanwhile. It is how engines batched before there were chunks, and it parts the two phases cleanly
    where rates are measured.
    """

    def __init__(self, inner: Split) -> None:
        self._inner = inner

    def share(self, running: list[Sequence], budget: int, *, behind: bool) -> Iterable[Share]:
        prompts = [sequence for sequence in running if sequence.missing > 1 or sequence.computed < sequence.prompt_len]
        return self._inner.share(prompts if prompts or behind else running, budget, behind=behind)

    def starts(self, missing: int, budget: int) -> bool:
        return self._inner.starts(missing, budget)

    def chunk(self, missing: int, budget: int, *, behind: bool) -> int:
        return self._inner.chunk(missing, budget, behind=behind)

    def observe(self, past: Past) -> None:
        self._inner.observe(past)


def _parted(running: list[Sequence], budget: int) -> tuple[list[Sequence], list[Sequence]]:
    """Those that miss one token, as far as the budget goes, and those that miss more."""
    # Whoever has draws that stay the same draws in every step, and is asked nothing more: most do.
    ready = [sequence for sequence in running if sequence.draws or sequence.missing == 1]
    prompts = [sequence for sequence in running if sequence.missing > 1] if len(ready) < len(running) else []
    return ready[:budget], prompts


def _one_each(sequences: list[Sequence]) -> Iterable[Share]:
    return zip(sequences, repeat(1))
