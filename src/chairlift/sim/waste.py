"""How much of the KV memory that sequences hold is empty: in blocks as they are given out, and in runs reserved at the start.

It runs an engine core in virtual time over a trace and looks at those that run after every step. Waste is 1 - tokens stored /
tokens that fit into what is held, and its mean is over all steps after which somebody holds memory, each step alike.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from chairlift.core import types
from chairlift.core.config import EngineConfig
from chairlift.core.errors import ConfigError
from chairlift.engine.core import EngineCore
from chairlift.sim.cost import Cost
from chairlift.sim.executor import END, SimExecutor
from chairlift.sim.loop import moments
from chairlift.workload.requests import request
from chairlift.workload.traces import Arrival

TRUE_LENGTH = 0
"""Stands for a client who asks for exactly as many tokens as his answer will have: nobody reserves less."""


@dataclass(frozen=True, slots=True)
class Waste:
    """Means over steps. `paged` is what the blocks waste that the engine gave out.

    `reserved` is what one run of blocks for each of the same sequences would waste, by the `max_tokens` that clients ask for:
    as long as prompt and longest answer together, less the last token, which is never stored. What is lost between such runs
    is not counted. `live` are sequences that hold memory, and `most_blocks` the largest number of blocks held at once.
    """

    block_size: int
    requests: int
    steps: int
    preemptions: int
    live: float
    most_blocks: int
    paged: float
    reserved: Mapping[int, float]


def measure(
    arrivals: Sequence[Arrival],
    config: EngineConfig,
    cost: Cost,
    *,
    max_tokens: Iterable[int] = (TRUE_LENGTH,),
    on_done: Callable[[int], None] = lambda _: None,
) -> Waste:
    """Waste of all steps until every request is answered. `on_done` hears how many requests ended. Prefixes are not shared."""
    if config.enable_prefix_caching:
        raise ConfigError("prompts of a trace without texts are all alike: waste is measured without prefix caching")
    requests = [request(one, n, max_tokens=one.answer_tokens, eos_ids=frozenset({END})) for n, one in enumerate(arrivals)]
    core = EngineCore(config, SimExecutor(cost, {one.id: one.stopping.max_tokens for one in requests}))
    held = _Held(config.block_size, arrivals, tuple(max_tokens))
    preemptions = 0
    for moment in moments(core, requests):
        held.look_at(core.scheduler.running)
        preemptions += len(moment.step.yielded)
        ended = sum(output.finish is not None for output in moment.step.outputs)
        if ended:
            on_done(ended)
    return held.waste(len(requests), preemptions)


class _Held:
    """Adds up what is held and what is stored, step by step."""

    def __init__(self, block_size: int, arrivals: Sequence[Arrival], max_tokens: tuple[int, ...]) -> None:
        self._size = block_size
        self._runs = {most: [_run(one, most, block_size) for one in arrivals] for most in max_tokens}
        self._steps = 0
        self._live = 0
        self._most = 0
        self._paged = 0.0
        self._reserved = dict.fromkeys(max_tokens, 0.0)

    def look_at(self, live: Sequence[types.Sequence]) -> None:
        blocks = sum(len(one.blocks) for one in live)
        if not blocks:
            return
        stored = sum(one.computed for one in live)
        self._steps += 1
        self._live += len(live)
        self._most = max(self._most, blocks)
        self._paged += 1 - stored / (self._size * blocks)
        for most, runs in self._runs.items():
            self._reserved[most] += 1 - stored / (self._size * sum(runs[one.number] for one in live))

    def waste(self, requests: int, preemptions: int) -> Waste:
        steps = max(1, self._steps)
        return Waste(
            block_size=self._size,
            requests=requests,
            steps=self._steps,
            preemptions=preemptions,
            live=self._live / steps,
            most_blocks=self._most,
            paged=self._paged / steps,
            reserved={most: total / steps for most, total in self._reserved.items()},
        )


def _run(arrival: Arrival, max_tokens: int, block_size: int) -> int:
    """Blocks in a row that are reserved for a request when it gets on."""
    longest = arrival.prompt_tokens + max(arrival.answer_tokens, max_tokens) - 1
    return -(-longest // block_size)
