"""Prefix hits over a trace with shared prompts: those of the engine's own scheduler beside an independent count.

Requests go through an engine core one after another, or some at a time, in the order of the trace; when they came is left out,
as nothing is computed and no step takes any time. Every answer is unlike all others.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from chairlift.core.config import EngineConfig
from chairlift.core.errors import ConfigError
from chairlift.core.events import Step
from chairlift.core.types import Plan, Result, Row
from chairlift.engine.core import EngineCore, Submit
from chairlift.workload.lru import Lru
from chairlift.workload.requests import FIRST_ID, request
from chairlift.workload.traces import HASHED_TOKENS, Arrival

TOKENS_A_STEP = 16_384


@dataclass(frozen=True, slots=True)
class Difference:
    """A request of which the engine found another number of tokens than the independent count. `number` is from 0."""

    number: int
    engine: int
    counted: int


@dataclass(frozen=True, slots=True)
class Hits:
    """Tokens of prompts, and how many of them were found in a cache of `blocks` blocks (None: of as many as are needed)."""

    blocks: int | None
    in_flight: int
    requests: int
    prompt_tokens: int
    cached_tokens: int
    counted_tokens: int
    differences: tuple[Difference, ...]

    @property
    def rate(self) -> float:
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def measure(
    arrivals: Sequence[Arrival],
    *,
    blocks: int | None = None,
    in_flight: int = 1,
    tokens_a_step: int = TOKENS_A_STEP,
    on_done: Callable[[int], None] = lambda _: None,
) -> Hits:
    """Sends all requests through an engine of blocks of 512 tokens. `on_done` hears how many of them ended."""
    if not all(arrival.hash_ids for arrival in arrivals):
        raise ConfigError("the trace does not say which prompts are alike: it has no hash ids")
    needs = [-(-(one.prompt_tokens + one.answer_tokens) // HASHED_TOKENS) for one in arrivals]
    if blocks is not None and blocks < max(needs, default=0):
        raise ConfigError(f"{blocks} blocks are too few for the longest request, which takes {max(needs)}")
    config = EngineConfig(
        max_model_len=max(2, *needs, 0) * HASHED_TOKENS,
        num_blocks=blocks or sum(needs) or 1,
        block_size=HASHED_TOKENS,
        max_num_seqs=in_flight,
        max_num_batched_tokens=max(tokens_a_step, in_flight),
        scheduling_policy="fcfs",
        headroom="reserve",  # nobody is preempted, so a request is looked up once
    )
    words = _Words(arrivals)
    count = _Count(Lru(blocks, HASHED_TOKENS), words)
    for step in _ride(EngineCore(config, words), words, in_flight):
        ended = count.take(step)
        if ended:
            on_done(ended)
    return count.hits(blocks, in_flight)


def _ride(core: EngineCore, words: "_Words", in_flight: int) -> Iterator[Step]:
    """All steps. A prompt is made when its request gets on, and not before: all of them together are large."""
    coming = deque(range(len(words.arrivals)))
    flying, now = 0, 0.0
    while coming or flying:
        while coming and flying < in_flight:
            number = coming.popleft()
            arrival = words.arrivals[number]
            core.inbox.append(Submit(request(arrival, number, max_tokens=arrival.answer_tokens)))
            flying += 1
        step = core.step(now)
        flying -= sum(output.finish is not None for output in step.outputs)
        now += 1.0
        yield step


class _Words:
    """An executor that computes nothing. All tokens of a request's answer are the same one, which nobody else has."""

    def __init__(self, arrivals: Sequence[Arrival]) -> None:
        self.arrivals = arrivals
        self._first = FIRST_ID + 1 + max((max(one.hash_ids) for one in arrivals), default=0)
        self._plan: Plan | None = None

    def word(self, number: int) -> int:
        return self._first + number

    def launch(self, plan: Plan) -> None:
        self._plan = plan

    def collect(self) -> Result:
        plan, self._plan = self._plan, None
        assert plan is not None, "a plan is launched before its result is collected"
        return Result(plan.step, tuple(Row(work.seq_id, (self.word(int(work.seq_id)),)) for work in plan.work if work.draws))

    def close(self) -> None: ...


@dataclass(slots=True)
class _Count:
    """Tells the independent count what the engine did, and compares what both found."""

    lru: Lru
    words: _Words
    requests: int = 0
    prompt_tokens: int = 0
    cached: int = 0
    counted: int = 0
    differences: list[Difference] = field(default_factory=list[Difference])

    def take(self, step: Step) -> int:
        """Takes in a step. Returns how many requests ended with it."""
        assert not step.plan.preempted, "nobody yields to others where everybody's blocks are reserved"
        new = {one.request.id: one.cached for one in step.admitted}
        for work in step.plan.work:
            if work.seq_id in new:
                self._get_on(int(work.seq_id), new[work.seq_id])
            self.lru.grow(work.seq_id, work.start + len(work.tokens))
        ended = {output.seq_id for output in step.outputs if output.finish}
        for work in step.plan.work:
            self.lru.compute(work.seq_id, work.start + len(work.tokens))
            if work.seq_id in ended:
                self.lru.leave(work.seq_id)
        return len(ended)

    def hits(self, blocks: int | None, in_flight: int) -> Hits:
        differences = tuple(self.differences)
        return Hits(blocks, in_flight, self.requests, self.prompt_tokens, self.cached, self.counted, differences)

    def _get_on(self, number: int, cached: int) -> None:
        counted = self.lru.get_on(str(number), self._ids(number), self.words.arrivals[number].prompt_tokens)
        self.requests += 1
        self.prompt_tokens += self.words.arrivals[number].prompt_tokens
        self.cached += cached
        self.counted += counted
        if cached != counted:
            self.differences.append(Difference(number, cached, counted))

    def _ids(self, number: int) -> list[int]:
        """Of all blocks that it will fill. Those with something of its answer are its own."""
        arrival = self.words.arrivals[number]
        prompt = arrival.hash_ids[: arrival.prompt_tokens // HASHED_TOKENS]
        blocks = (arrival.prompt_tokens + arrival.answer_tokens) // HASHED_TOKENS
        return [*prompt, *([-1 - number] * (blocks - len(prompt)))]
