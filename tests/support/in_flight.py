"""Sequences as a scheduler has them who decides ahead: what an executor is asked for, and what becomes of its answers."""

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from tiny_decoders import row

from chairlift.core.ports import Executor
from chairlift.core.types import PENDING, Draw, Logprobs, Plan, Sampling, Work

SAMPLINGS = (
    Sampling(temperature=0),
    Sampling(seed=4, temperature=2.0),
    Sampling(seed=5, repetition_penalty=1.5, frequency_penalty=0.7, logprobs=2),
    Sampling(temperature=0, presence_penalty=5.0, logit_bias=((3, 2.0),)),
)
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
    drawn: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    told: list[tuple[Logprobs, ...]] = field(default_factory=list[tuple[Logprobs, ...]])

    def work(self, most: int, choices: int) -> Work:
        end = min(len(self.tokens), self.computed + most)
        start, self.computed = self.computed, end
        blocks = range(BLOCKS_EACH * self.number, BLOCKS_EACH * (self.number + 1))
        draws = tuple(
            Draw(choice, self.sampling, history=self.tokens, prompt_len=self.prompt_len)
            for choice in range(choices if end == len(self.tokens) else 0)
        )
        work = Work(str(self.number), start, self.tokens[start:end], array("i", blocks), draws)
        if draws:
            self.tokens.append(PENDING)
        return work


def answers(
    executor: Executor,
    prompts: list[tuple[Sampling, list[int]]],
    steps: Steps,
    *,
    depth: int,
    choices: int = 1,
    pads: Sequence[int] = (),
) -> list[Text]:
    """Every row that draws draws for so many `choices`. `pads` are those of the first steps."""
    texts = [Text(number, sampling, array("i", prompt), len(prompt)) for number, (sampling, prompt) in enumerate(prompts)]
    flights: deque[Plan] = deque()

    def collect() -> None:
        plan, result = flights.popleft(), executor.collect()
        assert (result.step, result.failed) == (plan.step, ())
        ends = {work.seq_id: work.end for work in plan.work}
        for answer in result.rows:
            text = texts[int(answer.seq_id)]
            text.tokens[ends[answer.seq_id]] = answer.tokens[0]
            text.drawn.append(answer.tokens)
            text.told.append(answer.logprobs)

    for number, step in enumerate(steps):
        padding = pads[number] if number < len(pads) else 0
        work = [texts[at].work(most, choices) for at, most in step]
        work += [row([9], seq_id=f"pad {at}", pad=True) for at in range(padding)]
        plan = Plan(number, tuple(work))
        executor.launch(plan)
        flights.append(plan)
        while len(flights) >= depth:
            collect()
    while flights:
        collect()
    return texts
