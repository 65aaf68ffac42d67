"""How many requests get their first token in time under an overload: by an order, and by those who know everything.

Knows targets and journeys; knows no way to meet them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from chairlift.core.config import EngineConfig
from chairlift.sim.cost import Linear
from chairlift.sim.loop import Journey
from chairlift.sim.trials.clairvoyant import STYLES, clairvoyant
from chairlift.sim.trials.engines import Ask, OrderOf, ride

CLASSES: Mapping[float, float] = {0.5: 0.2, 2.0: 0.5, 10.0: 0.3}
"""Targets for the first token in seconds, and how many of all requests have them."""

OVERLOAD = 1.3
"""Requests that come, to those that the engine can serve."""


def with_targets(rides: Iterable[Ask], targets: Iterable[float]) -> list[Ask]:
    return [
        replace(one, request=replace(one.request, ttft_target_s=target)) for one, target in zip(rides, targets, strict=True)
    ]


def in_time(journeys: Iterable[Journey]) -> dict[float, int]:
    """Requests whose first token was there within their target, by target."""
    kept: dict[float, int] = {}
    for journey in journeys:
        target, ttft = journey.request.ttft_target_s, journey.ttft_s
        if target is not None:
            kept[target] = kept.get(target, 0) + (ttft is not None and ttft <= target)
    return kept


def kept(config: EngineConfig, cost: Linear, rides: Sequence[Ask], *, order: OrderOf | None = None) -> dict[float, int]:
    """The same of a trial, which is left when nobody can be in time any more."""
    over = max(one.request.arrival + (one.request.ttft_target_s or 0.0) for one in rides)
    return in_time(ride(config, cost, rides, order=order, until=over).values())


def foreseen(config: EngineConfig, cost: Linear, rides: Sequence[Ask]) -> list[int]:
    """How many each clairvoyant keeps in time."""
    return [sum(kept(config, cost, rides, order=clairvoyant(style, rides, cost)).values()) for style in STYLES]
