"""How long requests take from arrival to end, and streams from token to token: by quantiles. Knows journeys only."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chairlift.sim.loop import Journey


def quantile(values: Iterable[float], part: float) -> float:
    """The smallest value that at least this part of all values does not exceed. There must be one."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-round(part * 10_000) * len(ordered) // 10_000) - 1))]


@dataclass(frozen=True, slots=True)
class Latency:
    """Of requests that have ended, in seconds."""

    mean_s: float
    p99_s: float


def latency(journeys: Iterable[Journey]) -> Latency:
    times = [journey.latency_s for journey in journeys if journey.latency_s is not None]
    return Latency(sum(times) / len(times), quantile(times, 0.99))


def itl_p99_s(journeys: Iterable[Journey]) -> float:
    """Of all gaps between neighbouring tokens of all streams."""
    return quantile((gap for journey in journeys for gap in journey.itl_s), 0.99)


def tokens_per_s(journeys: Sequence[Journey]) -> float:
    """Tokens of prompts and answers of all who have ended, over the time until the last one has."""
    ended = [journey for journey in journeys if journey.finished_at is not None]
    tokens = sum(len(journey.request.prompt) + len(journey.token_times) for journey in ended)
    return tokens / max(journey.finished_at or 0.0 for journey in ended)
