"""Workloads in which the length of an answer can partly be guessed: kinds of requests that differ in both lengths.

What a kind is nobody is told; prompts of like length, or of one tenant, have answers of like length. All chance comes in.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from chairlift.sim.trials.chance import Chance
from chairlift.sim.trials.engines import Ask, asks
from chairlift.workload.traces import Arrival


@dataclass(frozen=True, slots=True)
class Kind:
    """Medians of its lengths in tokens, how widely they spread (of their logarithms), and its part of all requests."""

    name: str
    prompt: float
    answer: float
    part: float
    spread: float = 0.3


KINDS = (
    Kind("label", 300, 6, 0.55),
    Kind("chat", 120, 80, 0.3),
    Kind("write", 40, 900, 0.15),
)
"""Labels for texts, chats, and long texts that are written from a line: the last are few, and three quarters of the work."""


def of_kinds(
    kinds: Sequence[Kind], moments: Sequence[float], chance: Chance, *, max_tokens: int, tenants: bool = False
) -> list[Ask]:
    """A request for each moment. With `tenants` each kind is a tenant's."""
    drawn = [chance.choices(kinds, [kind.part for kind in kinds])[0] for _ in moments]
    arrivals = [
        Arrival(moment, _length(kind.prompt, kind, chance), min(_length(kind.answer, kind, chance), max_tokens))
        for moment, kind in zip(moments, drawn, strict=True)
    ]
    rides = asks(arrivals, max_tokens=max_tokens)
    if not tenants:
        return rides
    return [replace(one, request=replace(one.request, tenant=kind.name)) for one, kind in zip(rides, drawn, strict=True)]


def _length(median: float, kind: Kind, chance: Chance) -> int:
    return max(1, round(median * chance.lognormvariate(0.0, kind.spread)))
