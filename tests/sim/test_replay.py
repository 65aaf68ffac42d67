"""A recorded run, played again, decides the same: in virtual time for anything that can happen, and for a real engine."""

import asyncio
import json
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict
from typing import Any

import pytest
from engines import NEXT, config
from executors import ShadowExecutor
from hypothesis import event, given, settings
from hypothesis import strategies as st
from taped import Tape
from virtual import request

from chairlift.core.config import KV_LAYOUTS, EngineConfig
from chairlift.core.errors import ChairliftError, NeverFits, RecordError, Unavailable
from chairlift.core.events import End, Told
from chairlift.core.types import Limits, Plan, Result, Stopping, choice_id
from chairlift.engine.client import EngineClient, Stream
from chairlift.engine.core import EngineCore, Submit
from chairlift.engine.tape import MAX_LINE_CHARS
from chairlift.schedule import door
from chairlift.schedule.presets import HEADROOMS, ORDERS, PRESETS, SPLITS
from chairlift.sim.replay import replay

EOS = 3


class Meddled(ShadowExecutor):
    """While it computes, commands arrive, rows fail, or the launch or the whole step does, as it was told to happen next."""

    def __init__(self, settings: EngineConfig) -> None:
        super().__init__(settings.num_blocks, settings.block_size, NEXT, num_host_blocks=settings.num_host_blocks)
        self.inbox: deque[Any] = deque()
        self.arriving: list[Told] = []
        self.mishap = ""

    def launch(self, plan: Plan) -> None:
        if self.mishap == "launch":
            self._break()
        super().launch(plan)

    def collect(self) -> Result:
        if self.mishap == "step":
            self._break()
        self._arrive()
        mishap, self.mishap = self.mishap, ""
        result = super().collect()
        if mishap == "row" and result.rows:
            return result._replace(failed=((result.rows[0].seq_id, "broken"),), elapsed_s=0.25)
        return result._replace(elapsed_s=0.125)

    def _arrive(self) -> None:
        self.inbox.extend(self.arriving)
        self.arriving = []

    def _break(self) -> None:
        self._arrive()
        self.mishap = ""
        self.drop()
        raise ValueError("the adder is broken")


class Recorded:
    """An engine in virtual time that is recorded. Time goes as it is told to."""

    def __init__(self, settings: EngineConfig) -> None:
        self.executor = Meddled(settings)
        self.core = EngineCore(settings, self.executor)
        self.executor.inbox = self.core.inbox
        self.tape = Tape(settings)
        self.now = 0.0
        self.plans: list[Plan] = []
        self.preemptions = 0

    def step(self, took_s: float = 1.0) -> bool:
        """False when nothing is left to do."""
        try:
            step = self.core.step(self.now)
        except ValueError:
            failed = self.core.fail_step(self.now + took_s, "broken")
            assert failed is not None
            step = failed
        self.now += took_s
        self.tape.on_step(step)
        self.plans.append(step.plan)
        self.preemptions += len(step.yielded)
        return bool(step.plan.work or step.wake_at is not None or self.core.inbox)


@st.composite
def configs(draw: st.DrawFn) -> EngineConfig:
    size = draw(st.integers(1, 5))
    blocks = draw(st.integers(max(2, 34 // size), 44 // size))
    seqs = draw(st.integers(1, 5))
    return config(
        block_size=size,
        num_blocks=blocks,
        max_model_len=min(blocks * size, 60),
        max_num_seqs=seqs,
        max_num_batched_tokens=draw(st.integers(seqs, 40)),
        enable_prefix_caching=draw(st.sampled_from([True, True, False])),
        kv_layout=draw(st.sampled_from(["paged", "paged", *KV_LAYOUTS])),
        num_host_blocks=draw(st.sampled_from([0, 5, 60])),
        preset=draw(st.sampled_from(["continuous", "continuous", *PRESETS])),
        scheduling_policy=draw(st.sampled_from(sorted(ORDERS))),
        split=draw(st.sampled_from(sorted(SPLITS))),
        itl_target_s=draw(st.sampled_from([None, None, 0.5])),
        headroom=draw(st.sampled_from(["optimistic", "optimistic", *HEADROOMS])),
        batch_wait_s=draw(st.sampled_from([0.0, 2.5])),
        depth=draw(st.sampled_from([1, 2, 2])),
    )


STOPPINGS = st.builds(
    lambda most, least, eos: Stopping(most, min(least, most), frozenset({EOS} if eos else []), frozenset({4} if eos else [])),
    st.integers(1, 24),
    st.integers(0, 4),
    st.booleans(),
)
ASKED = st.fixed_dictionaries(
    {
        "prompt": st.lists(st.integers(0, 1), min_size=1, max_size=25),
        "stopping": STOPPINGS,
        "priority": st.sampled_from([0, 0, 1, -200]),
        "tenant": st.sampled_from(["", "a", "b"]),
        "cache_salt": st.sampled_from(["", "", "s"]),
        "ttft_target_s": st.sampled_from([None, 2.0]),
        "limits": st.builds(Limits, st.none(), st.none(), st.sampled_from([None, 1.5])),
        "samples": st.sampled_from([1, 1, 1, 2, 3]),
    }
)
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), ASKED, st.booleans()),
        st.tuples(st.just("end"), st.integers(0, 30), st.booleans()),
        st.tuples(st.just("step"), st.floats(0.001, 3.0), st.sampled_from(["", "", "", "", "", "row", "step", "launch"])),
    ),
    min_size=15,
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(settings=configs(), acts=ACTS)
def test_whatever_happened_is_decided_again(settings: EngineConfig, acts: list[Any]):
    run = Recorded(settings)
    count = 0
    for kind, what, how in acts:
        if kind == "submit":
            one = request(f"r{count}", **what, arrival=run.now)
            try:
                door.check(one, settings)
            except NeverFits:
                continue
            count += 1
            (run.executor.arriving if how else run.core.inbox).append(Submit(one))
        elif kind == "end" and count:
            name = choice_id(f"r{what % count}", what // count % 3)
            (run.executor.arriving if how else run.core.inbox).append(End(name, "abort"))
        elif kind == "step":
            run.executor.mishap = how
            run.step(what)
    run.core.inbox.extend(run.executor.arriving)
    run.executor.arriving = []
    while run.step():
        pass
    played = replay(run.tape.lines)
    event(f"preempted: {run.preemptions > 0}")
    event(f"policy: {settings.scheduling_policy}, preset: {settings.preset}")
    assert played.difference is None
    assert (played.steps, played.requests, played.preemptions) == (len(run.plans), count, run.preemptions)


def small_run() -> list[str]:
    run = Recorded(config())
    run.core.inbox.extend(Submit(request(name, range(start, start + 6), 5)) for start, name in enumerate("abc"))
    while run.step():
        pass
    return run.tape.lines


def test_the_first_plan_that_is_another_is_named():
    lines = small_run()
    place = next(index for index, line in enumerate(lines) if '"step":2' in line)
    fields = json.loads(lines[place])
    lines[place] = json.dumps(fields | {"plan": "0" * 16}) + "\n"
    played = replay(lines)
    rows, tokens = fields["rows"], fields["tokens"]
    assert played.difference == (
        f"step 2: the recorded plan has {rows} rows and {tokens} tokens; so has the replayed one, but they are others"
    )
    assert played.steps == 3


def test_a_lost_line_is_a_difference():
    lines = [line for line in small_run() if '"submit":"b"' not in line]
    assert replay(lines).difference == (
        "step 0: the recorded plan has 3 rows and 16 tokens, the replayed one 2 rows and 12 tokens"
    )


def test_another_engine_is_a_difference():
    lines = small_run()
    header = json.loads(lines[0])
    header["engine"]["max_num_seqs"] = 2
    assert replay([json.dumps(header) + "\n", *lines[1:]]).difference is not None


@pytest.mark.parametrize(
    ("find", "fields", "message"),
    [('"submit":"b"', {"submit": "a"}, "step 0: request a is submitted twice"), ('"submit":"b"', {"max_tokens": 999}, "999")],
)
def test_a_request_that_no_door_lets_through_is_refused(find: str, fields: dict[str, Any], message: str):
    lines = [json.dumps(json.loads(line) | fields) + "\n" if find in line else line for line in small_run()]
    with pytest.raises(RecordError, match=message):
        replay(lines)


WRONG = [-1, 0, 2.5, 10**9, 10**30, float("inf"), float("nan"), "x", "", None, True, [1], [[]], [["t", "w"]], {"a": 1}]
FIELDS = [
    *((0, ("engine", name)) for name in asdict(config())),
    *((place, (name,)) for place, line in enumerate(small_run()[:6]) for name in json.loads(line)),
    *((1, (name,)) for name in ("samples", "min_tokens", "priority", "ttft_target_s", "limits", "within", "salt", "tenant")),
    *((1, ("limits", name)) for name in asdict(Limits())),
    *((4, (name,)) for name in ("drawn", "failed", "raised", "held", "launching")),
    (1, ("end",)),
]


@settings(max_examples=300, deadline=None)
@given(changes=st.lists(st.tuples(st.sampled_from(FIELDS), st.sampled_from(WRONG)), min_size=1, max_size=3))
def test_whatever_a_field_holds_it_is_an_error_of_ours_or_none(changes: list[Any]):
    lines = [json.loads(line) for line in small_run()]
    for (place, (*outer, name)), value in changes:
        holder = lines[place]
        for key in outer:
            holder = holder.setdefault(key, {})
            if not isinstance(holder, dict):
                return
        holder[name] = deepcopy(value)
    with suppress(ChairliftError):
        replay([json.dumps(line) + "\n" for line in lines])


@pytest.mark.parametrize(("name", "value"), [("max_num_seqs", 2.5), ("num_blocks", "9"), ("num_blocks", 10**9), ("preset", 5)])
def test_an_engine_whose_settings_are_of_the_wrong_kind_is_not_built(name: str, value: Any):
    lines = small_run()
    header = json.loads(lines[0])
    header["engine"][name] = value
    with pytest.raises(RecordError, match="cannot be built"):
        replay([json.dumps(header) + "\n", *lines[1:]])


def test_a_line_without_end_is_not_read():
    lines = small_run()
    with pytest.raises(RecordError, match="line 2 is longer than"):
        replay([lines[0], "x" * (MAX_LINE_CHARS + 1)])


class Faulty(ShadowExecutor):
    """A real engine's executor. In some steps it waits until the first of its rows has been cancelled; at others it fails."""

    def __init__(self, settings: EngineConfig, *, raising: frozenset[int] = frozenset()) -> None:
        super().__init__(settings.num_blocks, settings.block_size, NEXT)
        self.raising = raising
        self.cancel: Callable[[str], None] = lambda seq_id: None
        """Cancels a request from the engine's thread, and returns when that has been told to the engine."""

    def collect(self) -> Result:
        plan = self.next_up
        if plan.step in self.raising:
            self.drop()
            raise ValueError("the adder is broken")
        result = super().collect()
        if plan.step % 10 == 7:
            self.cancel(plan.work[0].seq_id)
        return result._replace(elapsed_s=0.001)


def cancels(client: EngineClient) -> Callable[[str], None]:
    home = asyncio.get_running_loop()

    def cancel(seq_id: str) -> None:
        done = threading.Event()
        home.call_soon_threadsafe(lambda: (client.cancel(seq_id), done.set()))
        assert done.wait(5)

    return cancel


async def read_some(stream: Stream, most: int) -> None:
    """Leaves after so many tokens."""
    count = 0
    async with stream:
        async for delta in stream:
            count += len(delta.tokens)
            if count >= most:
                break


async def recorded_run(settings: EngineConfig, executor: Faulty) -> Tape:
    """Thirty requests of three tenants and classes, whose prompts begin alike; every third one is left early."""
    tape = Tape(settings)
    client = EngineClient(settings, executor, sinks=[tape])
    executor.cancel = cancels(client)
    client.start()
    reading: list[asyncio.Task[None]] = []
    for number in range(30):
        one = request(
            f"r{number}",
            [number % 3] * 9 + [number % 5, number],
            12 + number % 7,
            arrival=client.now(),
            tenant="abc"[number % 3],
            priority=number % 2,
            stopping=Stopping(12 + number % 7, 2, frozenset({EOS})) if number % 4 == 0 else None,
        )
        try:
            stream = client.submit(one)
        except Unavailable:  # it has given up
            break
        reading.append(asyncio.create_task(read_some(stream, 3 if number % 3 == 0 else 99)))
        await asyncio.sleep(0)
    await asyncio.gather(*reading)
    await client.close()
    return tape


@pytest.mark.parametrize("depth", [1, 2])
async def test_a_real_run_is_decided_again(depth: int):
    settings = config(num_blocks=14, max_model_len=56, max_num_seqs=5, depth=depth)
    tape = await recorded_run(settings, Faulty(settings))
    played = replay(tape.lines)
    assert played.difference is None
    assert played.requests == 30
    assert played.preemptions > 0
    ends = [line for line in tape.lines if line.startswith('{"end"')]
    assert any('"within":true' in line for line in ends), "somebody was cancelled in the midst of a step"


@pytest.mark.parametrize("depth", [1, 2])
async def test_a_real_run_whose_steps_fail_is_decided_again(depth: int):
    settings = config(num_blocks=14, max_model_len=56, max_num_seqs=5, depth=depth)
    tape = await recorded_run(settings, Faulty(settings, raising=frozenset({4, 11})))
    played = replay(tape.lines)
    assert played.difference is None
    assert sum('"raised":true' in line for line in tape.lines) == 2


async def test_an_engine_that_gave_up_is_followed_to_its_end():
    settings = config(max_num_seqs=2)
    tape = await recorded_run(settings, Faulty(settings, raising=frozenset(range(3, 99))))
    played = replay(tape.lines)
    assert played.difference is None
    assert '"step":-1' in tape.lines[-1]
