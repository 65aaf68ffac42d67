"""Drives an engine core in virtual time: no threads, no sleeping, one second of engine clock per step."""

from collections import defaultdict
from collections.abc import Iterable

from chairlift.cache.check import check, check_runs
from chairlift.core.events import Step
from chairlift.core.types import Finish, Limits, Output, Request, Sampling, Stopping
from chairlift.engine.core import End, EngineCore, Submit
from chairlift.schedule.layouts import Contiguous

GREEDY = Sampling(temperature=0.0)
UNLIMITED = Limits()


def request(
    request_id: str,
    prompt: Iterable[int],
    max_tokens: int = 4,
    *,
    arrival: float = 0.0,
    stopping: Stopping | None = None,
    priority: int = 0,
    tenant: str = "",
    ttft_target_s: float | None = None,
    cache_salt: str = "",
    sampling: Sampling = GREEDY,
    limits: Limits = UNLIMITED,
    samples: int = 1,
) -> Request:
    """A greedy request that ends at its length."""
    return Request(
        id=request_id,
        prompt=tuple(prompt),
        stopping=stopping or Stopping(max_tokens=max_tokens),
        sampling=sampling,
        arrival=arrival,
        priority=priority,
        tenant=tenant,
        ttft_target_s=ttft_target_s,
        cache_salt=cache_salt,
        limits=limits,
        samples=samples,
    )


class Ride:
    """An engine core with a clock of its own, and a record of everything that came out of it."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.now = 0.0
        self.steps: list[Step] = []
        self.tokens: defaultdict[str, list[int]] = defaultdict(list)
        self.endings: defaultdict[str, list[Finish]] = defaultdict(list)
        self.preemptions = 0

    def submit(self, *requests: Request) -> None:
        for one in requests:
            self.core.inbox.append(Submit(one))

    def end(self, request_id: str, finish: Finish = "abort") -> None:
        self.core.inbox.append(End(request_id, finish))

    def step(self) -> Step:
        """One step, then all invariants of the memory."""
        step = self.core.step(self.now)
        self.now += 1.0
        self.steps.append(step)
        self.preemptions += len(step.plan.preempted)
        for output in step.outputs:
            self.take(output)
        assert not (step.plan.preempted and step.admitted), "no admission in a step that preempted"
        scheduler = self.core.scheduler
        check(scheduler.pool, scheduler.index, scheduler.sequences, scheduler.config.block_size)
        if isinstance(scheduler._memory, Contiguous):
            check_runs(scheduler._memory.runs, scheduler.pool, scheduler.sequences)
        return step

    def take(self, output: Output) -> None:
        assert not self.endings[output.seq_id], f"{output.seq_id} is answered after its end"
        self.tokens[output.seq_id] += output.tokens
        if output.finish:
            self.endings[output.seq_id].append(output.finish)

    def run(self, limit: int = 10_000) -> None:
        """Steps until nothing is left to do."""
        for _ in range(limit):
            step = self.step()
            if not step.plan.work and step.wake_at is None:
                return
        raise AssertionError(f"not finished after {limit} steps")

    def work_of(self, request_id: str) -> list[tuple[int, int]]:
        """The rows that a request got: (number of the step, tokens)."""
        return [(s.plan.step, len(w.tokens)) for s in self.steps for w in s.plan.work if w.seq_id == request_id and not w.pad]

    @property
    def free_again(self) -> bool:
        """Nobody runs or waits, and all blocks are free."""
        snapshot = self.core.scheduler.snapshot()
        return (snapshot.running, snapshot.waiting, snapshot.free_blocks) == (0, 0, snapshot.total_blocks)
