"""What the engine is told, and what it says about itself after every step. Sinks consume that; nothing in the core reads it."""

from dataclasses import dataclass
from typing import Literal

from chairlift.core.types import Finish, Output, Plan, Request, Snapshot


@dataclass(frozen=True, slots=True)
class Submit:
    """Queue this request; it has passed the door."""

    request: Request


@dataclass(frozen=True, slots=True)
class End:
    """End a choice from outside: its client left ("abort"), or its text is complete ("stop")."""

    choice: str
    finish: Finish
    reason: str | None = None


Told = Submit | End
"""What is told to an engine and changes what it decides."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request got on for the first time; `queried` and `cached` count its prompt tokens looked up and found in the cache."""

    request: Request
    queried: int
    cached: int


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of the loop: what was decided, what came of it, and when to look again if nothing was to be done.

    `now` is when the turn began. `plan` is the one whose result came in it: with two steps in flight it was decided a turn
    before, and whoever has ended in that one may still have a row in it. `admitted` got on with this plan. `snapshot` is of the
    moment when it was decided: `running` are those that it was planned for. `wake_at` is a time of the engine's clock, or None:
    then only a new request can change anything.
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
    put_back: tuple[str, ...] = ()
    """Choices that got their first token in this step, and wait to go on because memory is short."""
    taken: tuple[Told, ...] = ()
    """What was taken in at the beginning, before anything was decided, in order; `within`: right before the result was."""
    within: tuple[Told, ...] = ()
    failed: tuple[str, ...] = ()
    """Rows that the executor named as failed."""
    raised: bool = False
    """The executor failed at the whole step, and at all others in flight. It took `elapsed_s` until then."""
    launching: int | None = None
    """The number of the plan that it failed to launch, if it was that."""

    @property
    def yielded(self) -> tuple[str, ...]:
        """Who lost his blocks to make room or way for others: these are the preemptions that are counted.

        Whoever is computed again because a step failed, or waits while one is tried alone, is not among them.
        """
        held, displaced = self.plan.held, self.plan.displaced
        usual = not self.raised and (displaced is not None or (held is not None and held.reason == "no_block"))
        return (self.plan.preempted if usual else ()) + self.put_back


Health = Literal["ok", "stalled", "failed", "closed"]
"""`stalled`: a step has been running for longer than the stated time. `failed`: the engine has ended by a fault."""
