"""Faults that users of other servers reported, in virtual time: each test is one of them, and says what is right instead."""

import gc
import random
import sys
from collections import Counter, defaultdict

import pytest
from engines import NEXT, config, ride
from executors import solo
from virtual import Ride, request

from chairlift.core.types import Limits, Request
from chairlift.engine.client import EngineClient
from chairlift.engine.core import EngineCore, Submit
from chairlift.observe.metrics import Metrics
from chairlift.schedule.presets import ORDERS
from chairlift.sim.cost import Linear
from chairlift.sim.executor import SimExecutor

# ── who is thrown out, and comes back ─────────────────────────────────────────────────────────────────────────────────────


def test_whoever_is_thrown_out_twice_comes_back_with_a_table_of_its_own_length():
    """Elsewhere the list of new blocks outlived the preemption, and the table was shifted."""
    engine = ride(scheduling_policy="priority", num_blocks=16, max_num_seqs=2)
    engine.submit(request("low", range(18), 30, priority=1))
    for number in range(2):
        for _ in range(9):
            engine.step()
        engine.submit(request(f"urgent{number}", range(100 * number, 100 * number + 48), 2, arrival=engine.now))
    while not engine.endings["low"]:
        known = 18 + len(engine.tokens["low"])
        for work in engine.step().plan.work:
            if work.seq_id == "low":
                assert len(work.blocks) == -(-known // 4)
    assert [step.plan.preempted for step in engine.steps if step.plan.preempted] == [("low",)] * 2
    assert tuple(engine.tokens["low"]) == solo(tuple(range(18)), NEXT, 30)
    engine.run()
    assert engine.free_again


def test_streams_that_are_thrown_out_late_skip_no_token_and_repeat_none():
    """Elsewhere only the prompt was computed again, an old token was fed twice, or the length counted from the resumption."""
    engine = ride(scheduling_policy="priority", num_blocks=60, max_model_len=240, max_num_batched_tokens=32)
    prompts = {name: tuple(range(place, place + 10)) for place, name in enumerate("abc")}
    engine.submit(*(request(name, prompt, 120, priority=9) for name, prompt in prompts.items()))
    while min(len(engine.tokens[name]) for name in "abc") < 40:
        engine.step()
    engine.submit(request("urgent", range(30, 230), 4, arrival=engine.now))
    engine.run()
    thrown_out = Counter(name for step in engine.steps for name in step.plan.preempted)
    assert set(thrown_out) == set("abc")
    drawn: defaultdict[str, list[int]] = defaultdict(list)
    for step in engine.steps:
        for work in step.plan.work:
            drawn[work.seq_id] += [work.end - draw.prompt_len for draw in work.draws]
    for name, prompt in prompts.items():
        assert drawn[name] == list(range(120))
        assert tuple(engine.tokens[name]) == solo(prompt, NEXT, 120)
        assert engine.endings[name] == ["length"]


def test_whoever_finds_no_block_costs_no_other_a_token():
    """Elsewhere the first of the running that got no block ended the pass, and all behind it missed the step."""
    engine = ride(num_blocks=14, max_model_len=56, max_num_batched_tokens=64)
    engine.submit(*(request(str(number), range(number, number + 6), 40, arrival=float(number)) for number in range(4)))
    engine.run()
    rows = [len(step.plan.work) for step in engine.steps if step.plan.preempted]
    assert rows == [step.snapshot.running for step in engine.steps if step.plan.preempted]
    assert max(rows) > 1


@pytest.mark.parametrize("policy", [name for name in ORDERS if name != "deadline"])
def test_whoever_was_thrown_out_goes_on_before_all_who_came_later(policy: str):
    """Elsewhere later arrivals of the same class overtook it again and again, and its work was lost each time."""
    engine = ride(num_blocks=16, max_model_len=56, scheduling_policy=policy)
    for number in range(30):
        length = 6 if number % 3 == 2 else 24
        engine.submit(request(str(number), range(number, number + 9), length, arrival=number * 0.5))
        engine.step()
    engine.run()
    waiting: set[str] = set()
    """Who has been thrown out, and is not back."""
    overtaken: set[tuple[str, str]] = set()
    for step in engine.steps:
        waiting -= {work.seq_id for work in step.plan.work}
        begun = {admitted.request.id for admitted in step.admitted}
        overtaken |= {(early, late) for early in waiting for late in begun if int(late) > int(early)}
        waiting |= set(step.plan.preempted)
    thrown_out = Counter(name for step in engine.steps for name in step.plan.preempted)
    assert overtaken == set()
    assert 1 <= max(thrown_out.values()) <= 3


# ── crowds that come and go ───────────────────────────────────────────────────────────────────────────────────────────────

SOAK_STEPS = 500
WAIT_S = 3
"""How long dynamic groups fill; a step is a second."""


class Soak:
    """Mixed requests come, leave and run out of time at random, in an engine that is always short of memory."""

    def __init__(self, **names: str) -> None:
        self.chance = random.Random(1)
        sizes = {"num_blocks": 16, "max_model_len": 60, "max_num_seqs": 5}
        self.engine = ride(NEXT, batch_wait_s=float(WAIT_S), **sizes, **names)
        self.asked: dict[str, Request] = {}

    def run(self) -> None:
        for _ in range(SOAK_STEPS):
            if self.chance.random() < 0.25:
                self._come()
            alive = [name for name in self.asked if not self.engine.endings[name]]
            if alive and self.chance.random() < 0.05:
                self.engine.end(self.chance.choice(alive))
            self.engine.step()
        self.engine.run()

    def _come(self) -> None:
        chance, now = self.chance, self.engine.now
        one = request(
            str(len(self.asked)),
            [chance.randrange(2) for _ in range(chance.choice([1, 3, 8, 20, 30]))],
            chance.choice([1, 4, 12, 30]),
            arrival=now,
            priority=chance.choice([0, 0, 0, -1, 3]),
            tenant=chance.choice("abc"),
            cache_salt=chance.choice(["", "", "s"]),
            limits=chance.choice([Limits()] * 9 + [Limits(queue_until=now + 20.0, finish_until=now + 40.0, stall_s=10.0)]),
        )
        self.asked[one.id] = one
        self.engine.submit(one)


SOAKS = [
    ("continuous", "fcfs", "chunked", "optimistic", "paged"),
    ("continuous", "fair", "balanced", "expected", "paged"),
    ("continuous", "priority", "whole", "optimistic", "paged"),
    ("continuous", "prefix", "chunked", "reserve", "paged"),
    ("continuous", "fair", "chunked", "optimistic", "contiguous"),
    ("prefill-first", "shortest", "chunked", "optimistic", "paged"),
    ("static", "fair", "whole", "optimistic", "paged"),
    ("dynamic", "deadline", "chunked", "optimistic", "paged"),
]


@pytest.fixture(scope="module", params=SOAKS, ids="-".join)
def soak(request: pytest.FixtureRequest) -> Soak:
    names = ("preset", "scheduling_policy", "split", "headroom", "kv_layout")
    soak = Soak(**dict(zip(names, request.param, strict=True)))
    soak.run()
    return soak


def test_while_somebody_waits_something_is_computed(soak: Soak):
    """Elsewhere requests waited for minutes while nobody ran and the cache was empty, and the server called itself healthy.

    Here nothing is computed only while a dynamic group fills, or in the one step in which all made way for an urgent one.
    """
    idle = longest = 0
    for step in soak.engine.steps:
        idle = 0 if step.plan.work or not step.snapshot.waiting else idle + 1
        longest = max(longest, idle)
    assert longest <= max(1, WAIT_S * (soak.engine.core.scheduler.config.preset == "dynamic"))
    assert soak.engine.free_again
    assert soak.engine.preemptions > 0


def test_everybody_of_a_crowd_is_answered_once_and_with_its_own_text(soak: Soak):
    assert soak.engine.endings == {name: [finish] for name, (finish, *_) in soak.engine.endings.items()}
    assert soak.engine.endings.keys() == soak.asked.keys()
    for name, one in soak.asked.items():
        text = tuple(soak.engine.tokens[name])
        assert text == solo(one.prompt, NEXT, len(text))


COUNTERS = ("preemptions", "prefix_queries", "prefix_hits", "prompt_tokens", "prompt_tokens_cached", "generation_tokens")


def test_counters_of_a_crowd_only_rise_and_count_everybody_once(soak: Soak):
    """Elsewhere preemptions and hits made a counter fall, which ended the engine; cancelled requests were in half of them."""
    metrics, before = Metrics(), Metrics().read()
    for step in soak.engine.steps:
        metrics.on_step(step)
        now = metrics.read()
        for name in COUNTERS:
            assert getattr(now, name) >= getattr(before, name)
        assert all(now.finished[finish] >= count for finish, count in before.finished.items())
        before = now
    started = {admitted.request.id for step in soak.engine.steps for admitted in step.admitted}
    assert before.finished == {"stop": 0, "error": 0} | Counter(finish for (finish,) in soak.engine.endings.values())
    assert before.generation_tokens == sum(map(len, soak.engine.tokens.values()))
    assert before.prompt_tokens == sum(len(soak.asked[name].prompt) for name in started)
    assert before.prefix_hits < before.prefix_queries == before.prompt_tokens


# ── whoever waits holds nothing ───────────────────────────────────────────────────────────────────────────────────────────


def references(engine: Ride) -> list[int]:
    pool = engine.core.scheduler.pool
    return [pool.references(block) for block in range(pool.total)]


@pytest.mark.parametrize("ends", ["leaves", "in time"])
def test_whoever_never_gets_on_lets_go_of_the_cached_prefix_that_it_waited_for(ends: str):
    """Elsewhere a waiting request had pinned the blocks that it would share, and ended without giving them back."""
    engine = ride(num_blocks=24, max_num_seqs=1)
    engine.submit(request("seed", range(41), 1))
    engine.run()
    engine.submit(request("busy", range(100, 116), 40, arrival=engine.now))
    engine.step()
    before = references(engine)
    for _ in range(4):
        names = [f"{engine.now}-{number}" for number in range(25)]
        limits = Limits(queue_until=engine.now + 2.0 if ends == "in time" else None)
        engine.submit(*(request(name, range(50), 4, arrival=engine.now, limits=limits) for name in names))
        engine.step()
        assert engine.core.scheduler.snapshot().waiting == 25
        if ends == "leaves":
            for name in names:
                engine.end(name)
        engine.step()
        engine.step()
        assert not any(engine.work_of(name) for name in names)
    assert sum(references(engine)) == sum(before) + 3  # of the one that runs
    engine.run()
    engine.submit(request("next", range(50), 4, arrival=engine.now))
    assert engine.step().admitted[0].cached == 40


# ── prompts in chunks ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_told_of_a_prompt_before_its_last_chunk():
    """Elsewhere every chunk gave a token of no meaning, and the first of them was taken for the first of the answer."""
    engine = ride(num_blocks=40)
    engine.submit(request("a", range(60), 2))
    engine.run()
    assert [[output.tokens for output in step.outputs] for step in engine.steps[:5]] == [
        [],
        [],
        [],
        [(engine.tokens["a"][0],)],
        [(engine.tokens["a"][1],)],
    ]


@pytest.mark.parametrize("length", [15, 16, 17, 33])
def test_a_prompt_may_come_token_by_token(length: int):
    engine = ride(max_num_seqs=1, max_num_batched_tokens=1)
    engine.submit(request("a", range(length), 8))
    engine.run()
    assert tuple(engine.tokens["a"]) == solo(tuple(range(length)), NEXT, 8)


# ── one engine, used again and again ──────────────────────────────────────────────────────────────────────────────────────


def test_a_second_batch_of_the_same_names_has_answers_of_its_own():
    """Elsewhere the second call's answers were looked for under the first call's names, and lost."""
    engine = ride()
    for first in (0, 10):
        prompts = {name: tuple(range(first + place, first + place + 3)) for place, name in enumerate("abcd")}
        engine.submit(*(request(name, prompt, 5) for name, prompt in prompts.items()))
        engine.run()
        assert {name: tuple(engine.tokens[name]) for name in prompts} == {n: solo(p, NEXT, 5) for n, p in prompts.items()}
        engine.tokens.clear()
        engine.endings.clear()


def allocated() -> int:
    gc.collect()  # which also empties the interpreter's own lists of free objects
    return sys.getallocatedblocks()


@pytest.mark.parametrize("policy", ORDERS)
def test_requests_that_have_ended_leave_no_memory_behind(policy: str):
    """Elsewhere something was kept of every request: a name, a digest, an entry in a list that nobody reads."""
    settings = config(scheduling_policy=policy, max_num_seqs=1, num_blocks=8, max_model_len=8)
    core = EngineCore(settings, SimExecutor(Linear(step_s=1.0), {}))

    def serve(numbers: range) -> None:
        for number in numbers:
            now, limits = float(number), Limits(finish_until=number + 50.0)
            one = request(str(number), (number, 1, 2, 3, 4), 1, arrival=now, tenant=str(number % 5), limits=limits)
            core.inbox.append(Submit(one))
            core.step(now)

    serve(range(500))
    before = allocated()
    serve(range(500, 1500))
    assert allocated() - before < 500  # of a thousand requests; each would leave at least one


async def test_streams_that_have_ended_leave_no_memory_behind():
    settings = config(num_blocks=8, max_model_len=8)
    client = EngineClient(settings, SimExecutor(Linear(), {})).start()

    async def serve(numbers: range) -> None:
        for number in numbers:
            async with client.submit(request(str(number), (number, 1, 2, 3, 4), 1 + number % 3)) as stream:
                async for _ in stream:
                    if number % 2:
                        break

    await serve(range(300))
    before = allocated()
    await serve(range(300, 900))
    grown = allocated() - before
    await client.close()
    assert grown < 300  # of six hundred
