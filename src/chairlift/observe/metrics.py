"""Counts what an engine says about itself. Knows steps and refusals; does not know how anyone reads the figures.

Counters only rise, and every accepted request is counted as ended exactly once, whatever its end. Tokens of requests that were
aborted count as generated: they were computed.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import get_args

from chairlift.core.events import Step
from chairlift.core.types import Finish

REFUSALS = ("max_num_queued_reqs", "max_num_queued_tokens", "never_fits", "other")
"""Reasons of refusals that are told apart; whatever else comes is "other", so that the number of series is bounded."""


@dataclass(frozen=True, slots=True)
class Tally:
    """All figures at one moment. Counters are totals since the start."""

    running: int = 0
    waiting: int = 0
    kv_cache_usage: float = 0.0
    """Share of the blocks that running requests hold, 0 to 1."""
    swapped: int = 0
    """Of those that wait, whose keys and values are in host memory."""
    host_cache_usage: float = 0.0
    """Share of the blocks there that they hold, 0 to 1."""
    swapped_out: int = 0
    """Blocks that were stored there; `swapped_in` came back."""
    swapped_in: int = 0
    preemptions: int = 0
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix index when their requests were first admitted; `prefix_hits` were found."""
    prefix_hits: int = 0
    prompt_tokens: int = 0
    """Prompt tokens of admitted requests; `prompt_tokens_cached` of them did not have to be computed."""
    prompt_tokens_cached: int = 0
    generation_tokens: int = 0
    finished: Mapping[Finish, int] = field(default_factory=lambda: dict.fromkeys(get_args(Finish), 0))
    refused: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(REFUSALS, 0))


class Metrics:
    """A sink that keeps the tally. The engine's thread writes it; anyone may read it at any time."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._tally = Tally()

    def read(self) -> Tally:
        return self._tally

    def on_step(self, step: Step) -> None:
        with self._turn:
            self._tally = _after(self._tally, step)

    def on_refusal(self, reason: str) -> None:
        known = reason if reason in REFUSALS else "other"
        with self._turn:
            refused = {**self._tally.refused, known: self._tally.refused[known] + 1}
            self._tally = replace(self._tally, refused=refused)


def _after(tally: Tally, step: Step) -> Tally:
    snapshot = step.snapshot
    finished = dict(tally.finished)
    for output in step.outputs:
        if output.finish is not None:
            finished[output.finish] += 1
    kinds = [move.kind for move in step.plan.moves]
    cached = sum(admitted.cached for admitted in step.admitted)
    return replace(
        tally,
        running=snapshot.running,
        waiting=snapshot.waiting,
        kv_cache_usage=1 - snapshot.free_blocks / max(1, snapshot.total_blocks),
        swapped=snapshot.swapped,
        host_cache_usage=1 - snapshot.free_host_blocks / snapshot.total_host_blocks if snapshot.total_host_blocks else 0.0,
        swapped_out=tally.swapped_out + kinds.count("store"),
        swapped_in=tally.swapped_in + kinds.count("load"),
        preemptions=tally.preemptions + len(step.yielded),
        prefix_queries=tally.prefix_queries + sum(admitted.queried for admitted in step.admitted),
        prefix_hits=tally.prefix_hits + cached,
        prompt_tokens=tally.prompt_tokens + sum(len(admitted.request.prompt) for admitted in step.admitted),
        prompt_tokens_cached=tally.prompt_tokens_cached + cached,
        generation_tokens=tally.generation_tokens + sum(len(output.tokens) for output in step.outputs),
        finished=finished,
    )
