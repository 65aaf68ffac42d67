"""Sequences that are computed by plans as a scheduler makes them, one or two of them in flight."""

from array import array
from collections import deque
from dataclasses import dataclass, field

from chairlift.core.ports import Executor
from chairlift.core.types import PENDING, Draw, Logprobs, Plan, Sampling, Work

BLOCKS_EACH = 3

Steps = list[list[tuple[int, int]]]
"""For each step, numbers of sequences and how many tokens they compute at most."""


@dataclass
class Text:
    """A sequence as a scheduler sees it: tokens that are in flight are PENDING until their result is there."""

    number: int
    sampling: Sampling
    tokens: "array[int]"
    prompt_len: int
    computed: int = 0
    told: list[tuple[Logprobs, ...]] = field(default_factory=list[tuple[Logprobs, ...]])

    def work(self, most: int) -> Work:
        end = min(len(self.tokens), self.computed + most)
        start, self.computed = self.computed, end
        blocks = range(BLOCKS_EACH * self.number, BLOCKS_EACH * (self.number + 1))
        draws = (Draw(0, self.sampling, history=self.tokens, prompt_len=self.prompt_len),) if end == len(self.tokens) else ()
        work = Work(str(self.number), start, self.tokens[start:end], array("i", blocks), draws)
        if draws:
            self.tokens.append(PENDING)
        return work


def answers(executor: Executor, prompts: list[tuple[Sampling, list[int]]], steps: Steps, *, depth: int) -> list[Text]:
    texts = [Text(number, sampling, array("i", prompt), len(prompt)) for number, (sampling, prompt) in enumerate(prompts)]
    flights: deque[Plan] = deque()

    def collect() -> None:
        plan, result = flights.popleft(), executor.collect()
        assert (result.step, result.failed) == (plan.step, ())
        ends = {work.seq_id: work.end for work in plan.work}
        for answer in result.rows:
            text = texts[int(answer.seq_id)]
            text.tokens[ends[answer.seq_id]] = answer.tokens[0]
            text.told.append(answer.logprobs)

    for number, step in enumerate(steps):
        plan = Plan(number, tuple(texts[at].work(most) for at, most in step))
        executor.launch(plan)
        flights.append(plan)
        while len(flights) >= depth:
            collect()
    while flights:
        collect()
    return texts
