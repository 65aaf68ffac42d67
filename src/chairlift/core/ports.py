"""What the core asks of the world. Anything that has these methods will do; nothing inherits from them."""

from typing import Protocol

from chairlift.core.events import Step
from chairlift.core.types import Plan, Result


class Executor(Protocol):
    """Computes plans, one at a time. `launch` starts one, `collect` waits for its result; either may raise.

    An executor keeps keys and values in blocks of the size and number it was built with. It knows no requests: rows say all.
    """

    def launch(self, plan: Plan) -> None: ...
    def collect(self) -> Result: ...
    def close(self) -> None: ...


class Sink(Protocol):
    """Consumes what happened: metrics, traces, records. It must not block; one that raises is switched off and logged.

    It is called by the engine's thread and by the one that submits requests, but never by both at the same time.
    """

    def on_step(self, step: Step) -> None: ...
    def on_refusal(self, reason: str) -> None: ...
