"""Drives an engine core in virtual time: no threads, no sleeping, one second of engine clock per step."""

from collections import defaultdict
from collections.abc import Iterable

from chairlift.cache.check import check, check_host, check_runs
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
        self.swapped = 0
        """Steps in which somebody got back what was stored of him."""

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
        lost, made_way = set(step.plan.preempted), () if step.plan.displaced is None else step.plan.displaced.seq_ids
        assert lost.issuperset(made_way)
        assert not (lost.difference(made_way) and step.admitted), "no admission in a step that took memory from somebody"
        assert lost.isdisjoint(work.seq_id for work in step.plan.work if not work.pad), "whoever lost his blocks has no row"
        scheduler = self.core.scheduler
        check(scheduler.pool, scheduler.index, scheduler.sequences, scheduler.config.block_size)
        if isinstance(scheduler._memory.device, Contiguous):
            check_runs(scheduler._memory.device.runs, scheduler.pool, scheduler.sequences)
        stored = [(one, scheduler._memory.stored(one)) for one in scheduler.sequences]
        there = [(one, found) for one, found in stored if found is not None]
        assert scheduler._memory.away == len(there), "something is stored of somebody who has ended"
        assert not any(one.running for one, _ in there), "something is stored of somebody who runs"
        check_host(scheduler._memory.host, [found.blocks for _, found in there])
        self.swapped += any(move.kind == "load" for move in step.plan.moves)
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
        """Nobody runs or waits, and all blocks are free, those of the host as well."""
        snapshot = self.core.scheduler.snapshot()
        nobody = (snapshot.running, snapshot.waiting, snapshot.swapped) == (0, 0, 0)
        free = (snapshot.free_blocks, snapshot.free_host_blocks)
        return nobody and free == (snapshot.total_blocks, snapshot.total_host_blocks)
