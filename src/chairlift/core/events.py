"""What the engine says about itself after every step. Sinks consume it; nothing in the core ever reads it."""

from dataclasses import dataclass
from typing import Literal

from chairlift.core.types import Output, Plan, Request, Snapshot


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request got on for the first time; `queried` and `cached` count its prompt tokens looked up and found in the cache."""

    request: Request
    queried: int
    cached: int


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of the loop: what was decided, what came of it, and when to look again if nothing was to be done.

    `snapshot` is of the moment when it was decided: `running` are those that it was planned for. `wake_at` is a time of the
    engine's clock, or None: then only a new request can change anything.
    """

    now: float
    plan: Plan
    outputs: tuple[Output, ...]
    admitted: tuple[Admitted, ...]
    snapshot: Snapshot
    elapsed_s: float = 0.0
    wake_at: float | None = None
    blamed: tuple[Request, ...] = ()
    """Requests that made a step fail in which they were alone, while the executor was sound."""


Health = Literal["ok", "stalled", "failed", "closed"]
"""`stalled`: a step has been running for longer than the stated time. `failed`: the engine has ended by a fault."""
