"""What must hold whatever is asked of the scheduler: a state machine over add, abort and step, and invariance of all texts.

The executor of these tests writes a token that depends on the whole prefix, read back through the block table out of a shadow
KV store: a wrong block, position, chunk or hit changes a text or fails at once.
"""

import math
from typing import Any

from engines import NEXT, config, shadow
from executors import ShadowExecutor, solo
from hypothesis import event, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from virtual import Ride, request

from chairlift.core.config import KV_LAYOUTS
from chairlift.core.errors import NeverFits
from chairlift.core.events import Step
from chairlift.core.types import Request, Sequence, Stopping, choice_ids
from chairlift.engine.core import EngineCore
from chairlift.schedule import door
from chairlift.schedule.presets import HEADROOMS, ORDERS, PRESETS, SPLITS

VOCAB = 50
EOS = 3

# Few different tokens, so that prefixes are shared often; small pools, so that memory is short often.
PROMPTS = st.one_of(
    st.lists(st.integers(0, 1), min_size=1, max_size=30),
    st.builds(
        lambda length, tail: [0, 1] * length + tail, st.integers(0, 10), st.lists(st.integers(0, 9), min_size=1, max_size=6)
    ),
)
STOPPINGS = st.builds(
    lambda most, least, eos: Stopping(most, min(least, most), frozenset({EOS}) if eos else frozenset()),
    st.integers(1, 24),
    st.integers(0, 6),
    st.booleans(),
)
RIGHTS = st.fixed_dictionaries(
    {
        "priority": st.sampled_from([0, 0, 1, 500]),
        "tenant": st.sampled_from("aaab"),
        "ttft_target_s": st.sampled_from([None, 2.0, 50.0]),
    }
)


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    seqs = draw(st.integers(1, 6))
    size = draw(st.integers(1, 5))
    blocks = draw(st.integers(max(2, 34 // size), 80 // size))
    return {
        "block_size": size,
        "num_blocks": blocks,
        "max_model_len": min(blocks * size, 60),
        "max_num_seqs": seqs,
        "max_num_batched_tokens": draw(st.integers(seqs, 40)),
        "enable_prefix_caching": draw(st.booleans()),
        "preset": draw(st.sampled_from(["continuous", "continuous", "continuous", *PRESETS])),
        "scheduling_policy": draw(st.sampled_from(sorted(ORDERS))),
        "split": draw(st.sampled_from(sorted(SPLITS))),
        "itl_target_s": draw(st.sampled_from([None, None, 0.5, 2.0])),
        "headroom": draw(st.sampled_from(["optimistic", *HEADROOMS])),
        "batch_wait_s": draw(st.sampled_from([0.0, 3.0])),
        "kv_layout": draw(st.sampled_from(["paged", "paged", *KV_LAYOUTS])),
        "num_host_blocks": draw(st.sampled_from([0, 0, 4, 15, 200])),
        "depth": draw(st.sampled_from([1, 2])),
    }


def engine(**changes: Any) -> Ride:
    settled = config(**changes)
    return Ride(EngineCore(settled, shadow(settled)))


def fits(candidate: Request, ride: Ride) -> bool:
    try:
        door.check(candidate, ride.core.scheduler.config)
    except NeverFits:
        return False
    return True


def expected(one: Request, choice: int = 0) -> tuple[int, ...]:
    """The text of the choice alone, by definition: `solo` with the stopping rules applied."""
    limits, out = one.stopping, []
    for position in range(limits.max_tokens):
        token = NEXT((*one.prompt, *out)) + choice
        while position < limits.min_tokens and token in limits.eos_ids:
            token += 1
        out.append(token)
        if len(out) >= limits.min_tokens and token in limits.eos_ids:
            break
    return tuple(out)


def check_work_is_conserved(ride: Ride, step: Step) -> None:
    """No step leaves a waiting request that gate, places, blocks and budget would admit.

    Judged by the rules as they are documented, not by the scheduler's own functions. Order is kept: whoever is first and does
    not fit holds up those behind. Padding is work that the gate asked for.
    """
    scheduler = ride.core.scheduler
    config, pool, running = scheduler.config, scheduler.pool, scheduler.running
    policy = scheduler._policy
    first = policy.gate.next(policy.order, running, step.now)
    budget_left = config.max_num_batched_tokens - step.plan.tokens
    places = sum(1 + len(one.followers) for one in running)
    if first is None or step.plan.preempted or budget_left == 0 or places + 1 + len(first.followers) > config.max_num_seqs:
        return
    if not policy.gate.takes(first, running):
        return
    known = scheduler.index.match(first.tokens, first.request.cache_salt).blocks
    stored = scheduler._memory.stored(first)
    there = max(len(known) * config.block_size, stored.computed if stored else 0)
    if not policy.split.starts(len(first.tokens) - there, budget_left):
        return
    if config.kv_layout == "contiguous":
        longest = first.prompt_len + first.request.stopping.max_tokens - 1
        held = {block for sequence in running for block in sequence.blocks}
        assert longest_gap(held, pool.total) < math.ceil(longest / config.block_size), f"{first} could have been admitted"
        return
    need = math.ceil(len(first.tokens) / config.block_size) - sum(pool.references(block) > 0 for block in known)
    if config.headroom == "optimistic":
        spare = max(0.01 * pool.total, len(running)) + len(first.followers) if running else 0
        assert pool.free - need < spare, f"{first} could have been admitted"
    assert not policy.headroom.admits(first, need, pool, running), f"{first} could have been admitted"


def longest_gap(held: set[int], total: int) -> int:
    """Blocks of the longest run of which nobody holds any."""
    return max(len(run) for run in "".join(" " if block in held else "f" for block in range(total)).split(" "))


def check_who_made_way(ride: Ride, step: Step, before: list[Sequence]) -> None:
    """Whoever was displaced waits, and his tenant keeps a place if that was for a share. Whom he made way for gets on, unless
    the step has no tokens left or somebody was short of memory: then he still is the first of those who wait.

    The first by rank, of those that ran `before`, makes way for a smaller rank only.
    """
    scheduler = ride.core.scheduler
    first = None if step.plan.displaced is None else scheduler._sequences.get(step.plan.displaced.by)
    before = [one for one in before if one.finish is None]
    if step.plan.displaced is None or first is None or not before:
        return
    event("made way")
    order = scheduler._policy.order
    displaced = [one for one in before if one.id in step.plan.displaced.seq_ids]
    waiting = {one.id for one in order}
    assert all(one.id in waiting for one in displaced)
    assert first.running or step.plan.held in (("budget", first.id), ("no_block", first.id))
    if before[0] in displaced:
        assert order.rank(first) < order.rank(before[0])
    for one in displaced:
        assert one.request.priority >= first.request.priority
        if one.request.priority == first.request.priority:
            assert one.request.tenant != first.request.tenant
            assert any(other.request.tenant == one.request.tenant for other in scheduler.running)


def check_nobody_writes_for_others(ride: Ride, step: Step) -> None:
    """A block that several hold is read by all of them, and written by none."""
    scheduler = ride.core.scheduler
    size = scheduler.config.block_size
    for work in step.plan.work:
        written = () if work.pad else work.blocks[work.start // size : math.ceil((work.start + len(work.tokens)) / size)]
        assert all(scheduler.pool.references(block) == 1 for block in written), f"{work.seq_id} writes what others hold"


def check_places(ride: Ride) -> None:
    """Whoever runs will have a place for every choice of his."""
    scheduler = ride.core.scheduler
    assert sum(1 + len(one.followers) for one in scheduler.running) <= scheduler.config.max_num_seqs


class WatchedExecutor(ShadowExecutor):
    """Looks at the scheduler right after it has decided, before anything is computed."""

    ride: Ride
    before: list[Sequence]
    """Who ran when the step began, by rank."""

    def launch(self, plan: Any) -> None:
        super().launch(plan)
        scheduler = self.ride.core.scheduler
        step = Step(self.ride.now, plan, (), (), scheduler.snapshot())
        check_work_is_conserved(self.ride, step)
        check_nobody_writes_for_others(self.ride, step)
        check_places(self.ride)
        check_who_made_way(self.ride, step, self.before)


class SchedulingMachine(RuleBasedStateMachine):
    """Requests come and go at random while the engine steps. Every choice is answered exactly once, with its own text."""

    @initialize(settings=configs())
    def start(self, settings: dict[str, Any]) -> None:
        settled = config(**settings)
        contiguous = settled.kv_layout == "contiguous"
        host = settled.num_host_blocks
        executor = WatchedExecutor(settled.num_blocks, settled.block_size, NEXT, contiguous=contiguous, num_host_blocks=host)
        self.ride = Ride(EngineCore(settled, executor))
        executor.ride = self.ride
        self.executor = executor
        self.requests: dict[str, tuple[Request, int]] = {}
        """By the names of choices."""
        self.aborted: set[str] = set()
        self.count = 0

    @rule(
        prompt=PROMPTS,
        stopping=STOPPINGS,
        salt=st.sampled_from(["", "", "s"]),
        samples=st.sampled_from([1, 1, 1, 2, 3]),
        rights=RIGHTS,
    )
    def add(self, prompt: list[int], stopping: Stopping, salt: str, samples: int, rights: dict[str, Any]) -> None:
        name = f"r{self.count}"
        one = request(name, prompt, stopping=stopping, arrival=self.ride.now, cache_salt=salt, samples=samples, **rights)
        if fits(one, self.ride):
            self.count += 1
            self.requests |= {choice: (one, number) for number, choice in enumerate(choice_ids(one))}
            self.ride.submit(one)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.requests)))
        if not self.ride.endings[name]:
            self.aborted.add(name)
            self.ride.end(name)

    @rule(count=st.integers(1, 8))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.executor.before = self.ride.core.scheduler.running[:]
            self.ride.step()

    @invariant()
    def texts_are_their_own(self) -> None:
        for name, (one, choice) in getattr(self, "requests", {}).items():
            text = tuple(self.ride.tokens[name])
            assert expected(one, choice)[: len(text)] == text

    def teardown(self) -> None:
        if not hasattr(self, "ride"):
            return
        self.executor.before = []
        self.ride.run()
        event(f"preempted: {self.ride.preemptions > 0}")
        event(f"copied: {any(move.kind == 'copy' for step in self.ride.steps for move in step.plan.moves)}")
        event(f"swapped: {self.ride.swapped > 0}")
        event(f"split: {self.ride.core.scheduler.config.split}, adaptive: {self.ride.core.scheduler.config.itl_target_s}")
        event(f"headroom: {self.ride.core.scheduler.config.headroom}")
        event(f"order: {self.ride.core.scheduler.config.scheduling_policy}")
        event(f"layout: {self.ride.core.scheduler.config.kv_layout}")
        event(f"preset: {self.ride.core.scheduler.config.preset}")
        event(f"depth: {self.ride.core.scheduler.config.depth}, preempted: {self.ride.preemptions > 0}")
        assert self.ride.free_again
        for name, (one, choice) in self.requests.items():
            assert len(self.ride.endings[name]) == 1
            if name not in self.aborted:
                assert tuple(self.ride.tokens[name]) == expected(one, choice)


SchedulingMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
TestScheduling = SchedulingMachine.TestCase


@given(
    asked=st.lists(
        st.tuples(
            st.sampled_from("aaaaaabbc"),
            st.sampled_from([0, 0, 0, 1]),
            st.integers(1, 9),
            st.integers(1, 24),
            st.integers(0, 4),
        ),
        min_size=6,
        max_size=16,
    ),
    samples=st.sampled_from([1, 1, 2]),
    first=configs(),
    policy=st.sampled_from(["fair", "deadline", "shortest", "prefix"]),
)
@settings(max_examples=150, deadline=None)
def test_whoever_makes_way_for_a_share_does_so_by_the_rules(
    asked: list[tuple[str, int, int, int, int]], samples: int, first: dict[str, Any], policy: str
):
    """Where one tenant sends most of the requests. All end: nobody is displaced for ever."""
    settled = config(
        **(first | {"scheduling_policy": policy, "preset": "continuous", "max_num_seqs": 4, "max_num_batched_tokens": 16})
    )
    contiguous = settled.kv_layout == "contiguous"
    host = settled.num_host_blocks
    executor = WatchedExecutor(settled.num_blocks, settled.block_size, NEXT, contiguous=contiguous, num_host_blocks=host)
    ride = executor.ride = Ride(EngineCore(settled, executor))
    for number, (tenant, priority, length, most, wait) in enumerate(asked):
        prompt = [number, *range(length)]
        one = request(str(number), prompt, most, arrival=ride.now, tenant=tenant, priority=priority, samples=samples)
        if fits(one, ride):
            ride.submit(one)
        for _ in range(wait):
            executor.before = ride.core.scheduler.running[:]
            ride.step()
    for _ in range(1000):
        executor.before = ride.core.scheduler.running[:]
        ride.step()
        if ride.free_again:
            break
    assert ride.free_again


@given(
    prompts=st.lists(PROMPTS, min_size=2, max_size=7),
    most=st.integers(1, 24),
    first=configs(),
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_no_schedule_changes_any_text(prompts: list[list[int]], most: int, first: dict[str, Any], data: st.DataObject):
    """Policy, budget, chunk size, block size, preemption and prefix hits are invisible in the output."""
    ride = engine(**first)
    requests = [request(str(number), prompt, most, arrival=float(number)) for number, prompt in enumerate(prompts)]
    requests = [one for one in requests if fits(one, ride)]
    for one in requests:
        ride.submit(one)
        for _ in range(data.draw(st.integers(0, 3))):
            ride.step()
    ride.run()
    event(f"preempted: {ride.preemptions > 0}")
    event(f"swapped: {ride.swapped > 0}")
    for one in requests:
        assert tuple(ride.tokens[one.id]) == solo(one.prompt, NEXT, most)
        assert ride.endings[one.id] == ["length"]
    assert ride.free_again


@given(
    prompts=st.lists(st.tuples(st.integers(1, 30), RIGHTS), min_size=2, max_size=6),
    budget=st.integers(4, 40),
    policy=st.sampled_from(sorted(ORDERS)),
)
@settings(max_examples=120, deadline=None)
def test_the_most_senior_is_never_preempted_for_memory(prompts: list[tuple[int, dict[str, Any]]], budget: int, policy: str):
    """Only who may displace him, and is senior to him, ends his run."""
    sizes: dict[str, Any] = {"num_blocks": 12, "block_size": 3, "max_model_len": 36, "max_num_seqs": 4}
    ride = engine(max_num_batched_tokens=budget, scheduling_policy=policy, **sizes)
    for number, (length, rights) in enumerate(prompts):
        ride.submit(request(str(number), range(number, number + length), 36 - length, arrival=float(number), **rights))
    order = ride.core.scheduler._policy.order
    for _ in range(2000):
        senior = min(ride.core.scheduler.running, key=order.rank, default=None)
        waiting = list(order)
        step = ride.step()
        if senior is not None and senior.id in step.plan.preempted:
            assert any(order.rank(other) < order.rank(senior) for other in waiting)
            assert any(other.request.priority < senior.request.priority for other in waiting)
        if not step.plan.work and step.wake_at != step.now:
            break
    assert ride.free_again


@given(
    asked=st.lists(
        st.tuples(st.integers(1, 30), st.integers(1, 30), st.integers(0, 3), st.integers(1, 3)), min_size=2, max_size=8
    ),
    first=configs(),
    policy=st.sampled_from(["fcfs", "fair", "shortest", "prefix"]),
    promise=st.sampled_from([{"headroom": "reserve"}, {"kv_layout": "contiguous"}]),
)
@settings(max_examples=100, deadline=None)
def test_whoever_was_promised_memory_never_yields(
    asked: list[tuple[int, int, int, int]], first: dict[str, Any], policy: str, promise: dict[str, str]
):
    """`Reserve`, or a run for each, without classes: there is no other reason to preempt anybody."""
    ride = engine(**(first | promise | {"scheduling_policy": policy}))
    for number, (length, most, wait, samples) in enumerate(asked):
        one = request(str(number), [number, *range(length)], most, arrival=ride.now, samples=samples)
        if fits(one, ride):
            ride.submit(one)
        for _ in range(wait):
            ride.step()
    ride.run()
    assert ride.preemptions == 0
    assert ride.free_again
