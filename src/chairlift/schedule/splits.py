"""How a step's token budget is divided. Knows how much each sequence misses; knows nothing of memory."""

from chairlift.core.types import Sequence
from chairlift.schedule.policy import Split


class Chunked:
    """Long prompts are computed in chunks beside the others' next tokens, so that nobody's stream stands still.

    Sequences that miss one token come first. Then prompts, by rank: each gets all that is left, or half of it while somebody
    is behind it, but never less than `floor` tokens. So the oldest prompt keeps at least half of the budget, a short prompt
    overtakes a long one that came before it, and the rest of the budget is not scattered over many small chunks.
    """

    def __init__(self, *, floor: int) -> None:
        self.floor = floor

    def share(self, running: list[Sequence], budget: int, *, behind: bool) -> list[tuple[Sequence, int]]:
        shares: list[tuple[Sequence, int]] = []
        prompts: list[Sequence] = []
        for sequence in running:
            if sequence.missing > 1:
                prompts.append(sequence)
            elif budget:
                shares.append((sequence, 1))
                budget -= 1
        chunks: list[int] = []
        for position, sequence in enumerate(prompts, start=1):
            chunks.append(self.chunk(sequence.missing, budget, behind=behind or position < len(prompts)))
            budget -= chunks[-1]
        for sequence, count in zip(prompts, chunks, strict=True):
            # What was kept for those behind and not needed goes back to the first, unless somebody may still get on.
            more = 0 if behind else min(sequence.missing - count, budget)
            budget -= more
            if count + more:
                shares.append((sequence, count + more))
        return shares

    def chunk(self, missing: int, budget: int, *, behind: bool) -> int:
        most = min(budget, max(budget // 2, self.floor)) if behind else budget
        return min(missing, most)


class PrefillFirst:
    """Nobody gets a next token while a prompt is to be computed: the whole budget goes to prompts, divided as `inner` does.

    All streams stand still meanwhile. It is how engines batched before there were chunks, and it parts the two phases cleanly
    where rates are measured.
    """

    def __init__(self, inner: Split) -> None:
        self._inner = inner

    def share(self, running: list[Sequence], budget: int, *, behind: bool) -> list[tuple[Sequence, int]]:
        prompts = [sequence for sequence in running if sequence.missing > 1 or sequence.computed < sequence.prompt_len]
        return self._inner.share(prompts if prompts or behind else running, budget, behind=behind)

    def chunk(self, missing: int, budget: int, *, behind: bool) -> int:
        return self._inner.chunk(missing, budget, behind=behind)
