"""The real `openai` client, which tries again by itself, at twice the load that the server can bear: it must not make it more.

The clock is the test's own: a step takes a second of it, and so long as a client says that it sleeps, it sleeps. Nobody waits.
"""

import asyncio
import contextlib
import importlib
import math
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from executors import ShadowExecutor
from tiny import Server, serving

from chairlift.core.config import EngineConfig
from chairlift.core.types import Plan
from chairlift.server.settings import Settings

STEP_S = 1.0
PLACES, ANSWER = 2, 4
CAPACITY = PLACES / (ANSWER * STEP_S)
"""Answers in a second."""
CALLS = 80
RETRIES = 2
CONFIG = EngineConfig(
    max_model_len=64, num_blocks=64, max_num_seqs=PLACES, max_num_batched_tokens=64, max_num_queued_reqs=PLACES * 2
)


class Clock:
    """Stands still until it is moved. Whoever sleeps by it is woken when it comes to his time."""

    def __init__(self) -> None:
        self.now = 100.0
        self._sleeping: list[tuple[float, asyncio.Event]] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, delay_s: float) -> None:
        woken = asyncio.Event()
        self._sleeping.append((self.now + delay_s, woken))
        await woken.wait()

    @property
    def sleeping(self) -> int:
        return len(self._sleeping)

    @property
    def next(self) -> list[float]:
        return [time for time, _ in self._sleeping]

    def move(self, to: float) -> None:
        self.now = to
        for time, woken in self._sleeping:
            if time <= to:
                woken.set()
        self._sleeping = [(time, woken) for time, woken in self._sleeping if time > to]


class Paced(ShadowExecutor):
    """Every step takes STEP_S of the clock. `due`: when the present one ends, if there is one."""

    def __init__(self, num_blocks: int, block_size: int, next_token: Callable[[tuple[int, ...]], int]) -> None:
        super().__init__(num_blocks, block_size, next_token)
        self.clock = Clock()
        self.due: float | None = None
        self._moved = threading.Condition()

    def launch(self, plan: Plan) -> None:
        super().launch(plan)
        with self._moved:
            due = self.due = self.clock.now + STEP_S
            self._moved.wait_for(lambda: self.clock.now >= due)
            self.due = None

    def move(self, to: float) -> None:
        with self._moved:
            self.clock.move(to)
            self._moved.notify_all()


@dataclass(frozen=True)
class Tried:
    """A request that has arrived, as its client saw the answer."""

    at: float
    answered_at: float
    status: int
    retry_after_s: float | None


Log = dict[str, list[Tried]]
"""By the name of the call, which stays the same when the client tries again."""


class Load:
    """Calls of one client, one after another by the clock, while an engine with a paced executor answers."""

    def __init__(self, server: Server, clock: Clock) -> None:
        assert isinstance(server.executor, Paced)
        server.executor.clock = clock
        self._server, self._executor, self._clock = server, server.executor, clock
        self._live: set[asyncio.Task[None]] = set()
        self._asked: dict[int, float] = {}
        self.log: Log = defaultdict(list)

    async def run(self, calls: int, *, every_s: float, **fields: Any) -> Log:
        """Every second call has the fields."""
        starts = [self._clock.now + number * every_s for number in range(calls)]
        async with self._client() as client:
            while starts or self._live:
                await self._quiet()
                times = [*starts[:1], *self._clock.next, *([] if self._executor.due is None else [self._executor.due])]
                if not times:
                    break
                self._executor.move(min(times))
                if starts and starts[0] <= self._clock.now:
                    number = calls - len(starts)
                    task = asyncio.create_task(self._call(client, f"call-{number}", fields if number % 2 else {}))
                    self._live.add(task)
                    task.add_done_callback(self._live.discard)
                    del starts[0]
        return self.log

    def _client(self) -> openai.AsyncOpenAI:
        # It brings its own httpx, which is not the same in all of its versions.
        library = importlib.import_module(openai.DefaultAsyncHttpxClient.__mro__[1].__module__.partition(".")[0])
        http = openai.DefaultAsyncHttpxClient(
            transport=library.ASGITransport(self._server.app),
            event_hooks={"request": [self._asks], "response": [self._answered]},
        )
        return openai.AsyncOpenAI(base_url="http://test/v1", api_key="k", max_retries=RETRIES, http_client=http)

    async def _call(self, client: openai.AsyncOpenAI, name: str, fields: dict[str, Any]) -> None:
        with contextlib.suppress(openai.APIStatusError):
            await client.completions.create(
                model="tiny", prompt="q\n", max_tokens=ANSWER, extra_headers={"x-request-id": name}, extra_body=fields
            )

    async def _asks(self, request: Any) -> None:
        self._asked[id(request)] = self._clock.now

    async def _answered(self, response: Any) -> None:
        after = response.headers.get("retry-after")
        tried = Tried(
            at=self._asked.pop(id(response.request)),
            answered_at=self._clock.now,
            status=response.status_code,
            retry_after_s=None if after is None else float(after),
        )
        self.log[response.request.headers["x-request-id"]].append(tried)

    async def _quiet(self) -> None:
        """Waits until nothing happens any more at this time: calls are in the engine or asleep, and it computes or idles."""
        seen = 0
        async with asyncio.timeout(10):
            while seen < 3:
                await asyncio.sleep(0 if seen else 0.0002)
                streams, due = len(self._server.client._streams), self._executor.due
                computes = due is not None and due > self._clock.now
                settled = len(self._live) == self._clock.sleeping + streams and (computes or not streams)
                seen = seen + 1 if settled else 0


async def overloaded(monkeypatch: pytest.MonkeyPatch, settings: Settings, **fields: Any) -> tuple[Log, list[Plan]]:
    """What became of the calls at twice the capacity, and what was computed for it."""
    clock = Clock()
    monkeypatch.setattr("openai._base_client.anyio", SimpleNamespace(sleep=clock.sleep))
    async with serving(executor=Paced, config=CONFIG, settings=settings, clock=clock) as server:
        assert isinstance(server.executor, Paced)
        try:
            log = await Load(server, clock).run(CALLS, every_s=1 / (2 * CAPACITY), **fields)
        finally:
            server.executor.move(math.inf)
        await server.settled()
        return log, server.executor.plans


def statuses(log: Log) -> Counter[int]:
    return Counter(tried.status for tries in log.values() for tried in tries)


@pytest.mark.parametrize(
    ("settings", "fields"), [(Settings(queue_timeout_s=5.0), {}), (Settings(), {"timeout_s": 2})], ids=["queue", "request"]
)
async def test_a_request_whose_time_was_over_never_comes_again(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, fields: dict[str, Any]
) -> None:
    log, _ = await overloaded(monkeypatch, settings, **fields)
    assert len(log) == CALLS
    assert statuses(log)[408] > CALLS / 10
    assert {tried.status for tries in log.values() for tried in tries[:-1]} <= {429}


async def test_a_request_that_was_turned_away_comes_again_only_when_it_was_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    log, _ = await overloaded(monkeypatch, Settings())
    assert statuses(log)[429] > CALLS / 2
    for tries in log.values():
        for refused, again in pairwise(tries):
            assert refused.retry_after_s is not None
            assert again.at - refused.answered_at >= refused.retry_after_s >= 1


@pytest.mark.parametrize("settings", [Settings(), Settings(queue_timeout_s=5.0)])
async def test_retries_cost_the_engine_nothing(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    """At most three requests come of a call, and all that is computed is computed for answers that are given."""
    log, plans = await overloaded(monkeypatch, settings)
    told = statuses(log)
    assert told.total() <= (1 + RETRIES) * CALLS
    assert len({work.seq_id for plan in plans for work in plan.work}) == told[200]
    busy = [plan for plan in plans if plan.work]
    assert sum(len(plan.work) for plan in busy) == told[200] * ANSWER
    assert told[200] * ANSWER >= 0.9 * PLACES * len(busy)
