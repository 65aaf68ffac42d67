"""What the core asks of the world. Anything that has these methods will do; nothing inherits from them."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from chairlift.core.costs import Limits, ModelCost
from chairlift.core.events import Step
from chairlift.core.types import Plan, Result


class Executor(Protocol):
    """Computes plans, one after another. `launch` starts one, `collect` waits for the result of the oldest; either may raise.

    As many plans may be in flight as the engine's configuration says (`depth`). They are done in the order in which they were
    launched, each as if the one before had ended: blocks that an earlier plan wrote may be written again. The rows of a plan in
    flight may belong to somebody who has ended meanwhile; they are computed all the same. After one of the two has raised,
    nothing is in flight any more, and plans can be launched again; but after ExecutorLost nothing can be done but to close it.

    An executor keeps keys and values in blocks of the size and number it was built with. It knows no requests: rows say all.
    """

    def launch(self, plan: Plan) -> None: ...
    def collect(self) -> Result: ...
    def close(self) -> None: ...


@runtime_checkable
class Perishable(Protocol):
    """An executor that may be lost while it has nothing to do."""

    def watch(self, lost: Callable[[str], None]) -> None:
        """`lost` is called once, by some thread, if nothing can be computed any more, and is told why."""
        ...


class Gauge(Protocol):
    """What an executor tells about itself to whoever measures it."""

    @property
    def cost(self) -> ModelCost: ...

    @property
    def computed(self) -> tuple[float, float]:
        """When the computation of the last plan began and when it ended, by the clock that the executor was built with.

        What the executor itself does in Python before and after is not part of it.
        """
        ...

    @property
    def threads(self) -> int | None:
        """None if the executor does not choose how many."""
        ...

    @property
    def isa(self) -> str | None:
        """The instruction set, if the executor chooses one."""
        ...

    def limits(self) -> Limits | None:
        """What the machine can do on the executor's own threads, measured now. None if it has no way to measure that."""
        ...


class GaugedExecutor(Executor, Gauge, Protocol):
    """Both at once, as every executor of ours is."""


class Sink(Protocol):
    """Consumes what happened: metrics, traces, records. It must not block; one that raises is switched off and logged.

    It is called by the engine's thread and by the one that submits requests, but never by both at the same time.
    """

    def on_step(self, step: Step) -> None: ...
    def on_refusal(self, reason: str) -> None: ...
