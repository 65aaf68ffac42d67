"""The engine's step: schedule, execute, commit. It knows a scheduler, an executor and an inbox, but no clock.

With two steps in flight the next one is decided and launched before the result of the last is there:

    depth 1   decide 0 | compute 0 | commit 0 | decide 1 | compute 1 | commit 1 | …
    depth 2   decide 0 | compute 0            | compute 1            | compute 2            | …
                       | decide 1   commit 0  | decide 2   commit 1  | …

Server and simulator run this very class.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from chairlift.cache.prefix import prefix_index
from chairlift.core.config import EngineConfig
from chairlift.core.events import Admitted, End, Step, Submit, Told
from chairlift.core.ports import Executor, Perishable
from chairlift.core.types import Plan, Result, Snapshot, Standing
from chairlift.schedule.presets import preset
from chairlift.schedule.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Ask:
    """Tell how everyone stands. `answer` is called by the thread that steps."""

    answer: Callable[[tuple[Standing, ...]], None]


Command = Told | Ask


class _Flight(NamedTuple):
    """A decision whose result has not been reported yet."""

    plan: Plan
    snapshot: Snapshot
    admitted: tuple[Admitted, ...]
    ahead: bool
    """It was made before the result of the one before was there."""


class EngineCore:
    """One engine. `inbox` takes commands from any thread, in order; everything else belongs to the thread that steps."""

    def __init__(self, config: EngineConfig, executor: Executor) -> None:
        index = prefix_index(config.block_size, enabled=config.shares_prefixes)
        self.scheduler = Scheduler(config, preset(config, index), index)
        self.inbox: deque[Command] = deque()
        self._executor = executor
        self._depth = config.depth
        self._flights: deque[_Flight] = deque()
        self._executing = False
        self._launching: int | None = None
        """The number of the plan that is being launched."""
        self._began = 0.0
        """When the running step began."""
        self._taken: list[Told] = []
        self._within: list[Told] = []

    def step(self, now: float) -> Step:
        """One turn. What ends while the executor works is taken in before its result: an abort beats a finish."""
        self._take_commands(self._taken)
        self._began = now
        while self._may_decide():
            self._decide(now)
        flight = self._flights[0]
        result = self._collect() if flight.plan.work else None
        del self._flights[0]
        if result is None:
            return self._report(now, flight)
        self._take_commands(self._within)
        self.scheduler.commit(flight.plan, result)
        failed = tuple(seq_id for seq_id, _ in result.failed)
        return self._report(now, flight, result.elapsed_s, failed=failed)

    def fail_step(self, now: float, message: str) -> Step | None:
        """After `step` raised: looks for who is to blame, one at a time. None if it was not the executor that raised.

        Everything is computed again, and the prefix index is emptied, as nobody knows any more what the executor has written.
        """
        if not self._executing:
            return None
        launching, self._executing, self._launching = self._launching, False, None
        self._take_commands(self._within)
        flights = list(self._flights)
        self._flights.clear()
        preempted = self.scheduler.take_back([flight.plan for flight in flights], message)
        admitted = tuple(one for flight in flights for one in flight.admitted)
        plan = flights[0].plan._replace(preempted=preempted, displaced=None)
        failed = _Flight(plan, self.scheduler.snapshot(), admitted, ahead=False)
        return self._report(self._began, failed, now - self._began, raised=True, launching=launching)

    @property
    def doubts(self) -> int:
        """Failures in a row that no request explains."""
        return self.scheduler.doubts

    def abandon(self, now: float, message: str) -> Step:
        """Ends all requests with an error: the engine has failed for good. The plan of this last step has the number -1."""
        self._take_commands(self._taken)
        for sequence in list(self.scheduler.sequences):
            self.scheduler.end(sequence.id, "error", message)
        return self._report(now, _Flight(Plan(step=-1, work=()), self.scheduler.snapshot(), (), ahead=False))

    def watch(self, lost: Callable[[str], None]) -> None:
        """`lost` is called, by any thread, if the executor is lost without being asked for anything."""
        if isinstance(self._executor, Perishable):
            self._executor.watch(lost)

    def close(self) -> None:
        self._executor.close()

    def _may_decide(self) -> bool:
        """One without work, and one that tries somebody alone, come before whatever is decided with their results."""
        if not self._flights:
            return True
        return len(self._flights) < self._depth and bool(self._flights[-1].plan.work) and not self.scheduler.tries

    def _decide(self, now: float) -> None:
        plan = self.scheduler.schedule(now)
        snapshot = self.scheduler.snapshot()  # of this moment: later, who has just been preempted or ended is in between
        self._flights.append(_Flight(plan, snapshot, self.scheduler.drain_admitted(), ahead=bool(self._flights)))
        if plan.work:
            self._executing, self._launching = True, plan.step
            self._executor.launch(plan)
            self._executing, self._launching = False, None

    def _collect(self) -> Result:
        self._executing = True
        result = self._executor.collect()
        self._executing = False
        return result

    def _take_commands(self, told: list[Told]) -> None:
        """Adds to `told` what changes decisions; answering a question does not."""
        while self.inbox:
            command = self.inbox.popleft()
            match command:
                case Submit(request):
                    self.scheduler.add(request)
                case End(choice, finish, reason):
                    self.scheduler.end(choice, finish, reason)
                case Ask(answer):
                    answer(self.scheduler.standings())
                    continue
            told.append(command)

    def _report(
        self,
        now: float,
        flight: _Flight,
        elapsed_s: float = 0.0,
        *,
        failed: tuple[str, ...] = (),
        raised: bool = False,
        launching: int | None = None,
    ) -> Step:
        scheduler = self.scheduler
        taken, self._taken = self._taken, []
        within, self._within = self._within, []
        wake_at = None if flight.plan.work else now if flight.ahead else scheduler.wake_at()
        return Step(
            now=now,
            plan=flight.plan,
            outputs=scheduler.drain(),
            admitted=flight.admitted,
            snapshot=flight.snapshot,
            elapsed_s=elapsed_s,
            wake_at=wake_at,
            blamed=scheduler.drain_blamed(),
            put_back=scheduler.drain_put_back(),
            taken=tuple(taken),
            within=tuple(within),
            failed=failed,
            raised=raised,
            launching=launching,
        )
