"""The engine's step: schedule, execute, commit. It knows a scheduler, an executor and an inbox, but no clock.

Server and simulator run this very class.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from chairlift.cache.prefix import prefix_index
from chairlift.core.config import EngineConfig
from chairlift.core.events import End, Step, Submit, Told
from chairlift.core.ports import Executor
from chairlift.core.types import Plan, Result, Snapshot, Standing
from chairlift.schedule.presets import preset
from chairlift.schedule.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Ask:
    """Tell how everyone stands. `answer` is called by the thread that steps."""

    answer: Callable[[tuple[Standing, ...]], None]


Command = Told | Ask


class EngineCore:
    """One engine. `inbox` takes commands from any thread, in order; everything else belongs to the thread that steps."""

    def __init__(self, config: EngineConfig, executor: Executor) -> None:
        index = prefix_index(config.block_size, enabled=config.shares_prefixes)
        self.scheduler = Scheduler(config, preset(config, index), index)
        self.inbox: deque[Command] = deque()
        self._executor = executor
        self._executing: Plan | None = None
        self._began = 0.0
        """When the step that is being executed was decided."""
        self._taken: list[Told] = []
        self._within: list[Told] = []

    def step(self, now: float) -> Step:
        """One turn. What ends while the executor works is taken in before its result: an abort beats a finish."""
        self._take_commands(self._taken)
        self._began = now
        plan = self.scheduler.schedule(now)
        snapshot = self.scheduler.snapshot()  # of this step: after it, who has just been preempted or ended is in between
        if not plan.work:
            return self._report(now, plan, snapshot)
        result = self._execute(plan)
        self._take_commands(self._within)
        self.scheduler.commit(plan, result)
        failed = tuple(seq_id for seq_id, _ in result.failed)
        return self._report(now, plan, snapshot, result.elapsed_s, failed=failed)

    def fail_step(self, now: float, message: str) -> Step | None:
        """After `step` raised: looks for who is to blame, one at a time. None if it was not the executor that raised.

        Everything is computed again, and the prefix index is emptied, as nobody knows any more what the executor has written.
        """
        plan, self._executing = self._executing, None
        if plan is None:
            return None
        self._take_commands(self._within)
        plan = plan._replace(preempted=self.scheduler.take_back(plan, message))
        return self._report(self._began, plan, self.scheduler.snapshot(), now - self._began, raised=True)

    @property
    def doubts(self) -> int:
        """Failures in a row that no request explains."""
        return self.scheduler.doubts

    def abandon(self, now: float, message: str) -> Step:
        """Ends all requests with an error: the engine has failed for good. The plan of this last step has the number -1."""
        self._take_commands(self._taken)
        for sequence in list(self.scheduler.sequences):
            self.scheduler.end(sequence.id, "error", message)
        return self._report(now, Plan(step=-1, work=()), self.scheduler.snapshot())

    def close(self) -> None:
        self._executor.close()

    def _execute(self, plan: Plan) -> Result:
        self._executing = plan
        self._executor.launch(plan)
        result = self._executor.collect()
        self._executing = None
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
        plan: Plan,
        snapshot: Snapshot,
        elapsed_s: float = 0.0,
        *,
        failed: tuple[str, ...] = (),
        raised: bool = False,
    ) -> Step:
        scheduler = self.scheduler
        taken, self._taken = self._taken, []
        within, self._within = self._within, []
        return Step(
            now=now,
            plan=plan,
            outputs=scheduler.drain(),
            admitted=scheduler.drain_admitted(),
            snapshot=snapshot,
            elapsed_s=elapsed_s,
            wake_at=None if plan.work else scheduler.wake_at(),
            blamed=scheduler.drain_blamed(),
            put_back=scheduler.drain_put_back(),
            taken=tuple(taken),
            within=tuple(within),
            failed=failed,
            raised=raised,
        )
