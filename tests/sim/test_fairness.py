"""What tenants get of the machine, in virtual time: the bounds of virtual token counters, and what fairness costs."""

import math
import random
from collections import defaultdict
from dataclasses import replace
from itertools import islice

import pytest
from virtual import request

from chairlift.core.config import EngineConfig
from chairlift.core.types import Request, Stopping
from chairlift.engine.core import EngineCore
from chairlift.schedule.shares import ANSWER_TOKEN, PROMPT_TOKEN
from chairlift.sim.cost import Linear
from chairlift.sim.executor import WORD, SimExecutor
from chairlift.sim.loop import Journey, run
from chairlift.sim.trials.latencies import quantile
from chairlift.sim.trials.tenants import HEAVIER, Place, beside, stream

COST = Linear(step_s=0.01, token_s=0.001)
PROMPT, PLACES = 20, 8
ANSWER = 16
"""On average: from half to one and a half times as much."""
SERVICE = PROMPT * PROMPT_TOKEN + ANSWER * ANSWER_TOKEN
REQUEST_S = (ANSWER / PLACES) * COST.step_s + (PROMPT + ANSWER) * COST.token_s
"""What a request takes of a full machine."""


def config(policy: str, **weights: float) -> EngineConfig:
    return EngineConfig(
        max_model_len=64,
        num_blocks=16 * PLACES,
        block_size=4,
        max_num_seqs=PLACES,
        max_num_batched_tokens=64,
        enable_prefix_caching=False,
        scheduling_policy=policy,
        tenant_weights=tuple(weights.items()),
    )


def ride(requests: list[Request], policy: str = "fair", *, until: float | None = None, **weights: float) -> dict[str, Journey]:
    return run(EngineCore(config(policy, **weights), SimExecutor(COST, {})), requests, until=until)


def asks(tenant: str, count: int, *, every: float = 0.0, since: float = 0.0) -> list[Request]:
    """Tenant's requests, one every so many seconds."""
    return [
        request(
            f"{tenant}{number}",
            [WORD] * PROMPT,
            arrival=since + every * number,
            stopping=Stopping(ANSWER // 2 + 7 * number % (ANSWER + 1)),
            tenant=tenant,
        )
        for number in range(count)
    ]


def at_random(requests: list[Request], *, every: float, seed: int) -> list[Request]:
    """The same requests as a Poisson stream."""
    chance, now = random.Random(seed), 0.0
    return [replace(one, arrival=(now := now + chance.expovariate(1 / every))) for one in requests]


def served(journeys: dict[str, Journey], *, since: float = 0.0, until: float = math.inf) -> dict[str, float]:
    """What each tenant got, in tokens as they are charged: prompts of those that began, and all tokens of answers."""
    got: defaultdict[str, float] = defaultdict(float)
    for journey in journeys.values():
        times = [time for time in journey.token_times if since <= time <= until]
        prompt = PROMPT if journey.token_times and since <= journey.token_times[0] <= until else 0
        got[journey.request.tenant] += prompt * PROMPT_TOKEN + len(times) * ANSWER_TOKEN
    return got


def ttfts(journeys: dict[str, Journey], tenant: str) -> list[float]:
    """In seconds; those that have not begun count as never."""
    own = (journey for journey in journeys.values() if journey.request.tenant == tenant)
    return [math.inf if journey.ttft_s is None else journey.ttft_s for journey in own]


def test_backlogged_tenants_get_the_same_though_one_sends_ten_times_as_much():
    journeys = ride(asks("heavy", 1000) + asks("light", 100), until=4.0)
    # The paper's bound: twice the larger of what a prompt costs and of what all running answers can get.
    bound = 2 * max(PROMPT * PROMPT_TOKEN, PLACES * 1.5 * ANSWER * ANSWER_TOKEN)
    for until in (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0):
        got = served(journeys, until=until)
        assert abs(got["heavy"] - got["light"]) <= bound
    assert min(served(journeys).values()) > 20 * SERVICE  # neither has run out of requests


def test_first_come_first_served_is_not_fair():
    got = served(ride(asks("heavy", 1000) + asks("light", 100, since=0.001), "fcfs", until=4.0))
    assert got["light"] == 0


def test_weights_of_one_to_three_give_one_to_three():
    got = served(ride(asks("a", 1000) + asks("b", 1000), until=20.0, b=3.0))
    assert abs(got["b"] / got["a"] / 3 - 1) < 0.05


def test_an_idle_tenant_banks_nothing():
    """`late` comes after a time in which the other was alone: from then on both get the same, and nothing is made up for."""
    journeys = ride(asks("early", 1000) + asks("late", 1000, since=5.0), until=10.0)
    got = served(journeys, since=5.0)
    assert abs(got["early"] - got["late"]) <= 2 * PLACES * ANSWER * ANSWER_TOKEN
    assert got["late"] > 20 * SERVICE


def test_a_light_tenant_waits_at_most_twice_as_long_beside_a_heavy_one_as_beside_its_like():
    """Each of the light ones asks for 45 % of the machine at random times, the heavy one for ten times as much.

    So beside its like a request waits because both together ask for nine tenths of the machine, and beside the heavy one
    because it alone asks for nine tenths of its half. These are queues of random lengths: a single drawing says little of
    their 95th percentile, so that of all requests of five drawings counts.
    """
    beside_peer, beside_heavy = [], []
    for seed in (1, 11, 21, 31, 41):
        light = at_random(asks("light", 120), every=REQUEST_S / 0.45, seed=seed)
        peer = at_random(asks("peer", 120), every=REQUEST_S / 0.45, seed=seed + 1)
        heavy = at_random(asks("heavy", 1200), every=REQUEST_S / 4.5, seed=seed + 2)
        beside_peer += ttfts(ride(light + peer), "light")
        beside_heavy += ttfts(ride(light + heavy, until=light[-1].arrival + 5.0), "light")
    assert quantile(beside_heavy, 0.95) <= 2 * quantile(beside_peer, 0.95)


@pytest.mark.parametrize(("load", "cached"), [(0.1, True), (0.1, False), (0.2, False), (0.3, True), (0.4, False)])
def test_a_light_tenant_waits_at_most_twice_as_long_beside_a_heavy_one_however_little_it_asks_for(load: float, cached: bool):
    """With the prefix cache and without, and it costs next to nothing: others make way at once, and go on where they were."""
    place = Place(replace(config("fair"), enable_prefix_caching=cached), COST, PROMPT, ANSWER)
    beside_peer, beside_heavy = [], []
    rates = defaultdict[str, float](float)
    displaced = 0
    for seed in (0, 3):
        light = list(islice(stream(place, "light", load, random.Random(seed).expovariate), 80))
        beside_peer += beside(place, "fair", light, load, random.Random(seed + 1).expovariate).ttft_s
        for policy in ("fair", "fcfs"):
            told = beside(place, policy, light, HEAVIER * load, random.Random(seed + 2).expovariate)
            beside_heavy += told.ttft_s if policy == "fair" else []
            displaced += told.displaced if policy == "fair" else 0
            rates[policy] += told.tokens_per_s
    assert displaced > 0
    assert quantile(beside_heavy, 0.95) <= 2 * quantile(beside_peer, 0.95)
    assert rates["fair"] >= 0.97 * rates["fcfs"]


def test_where_all_is_computed_again_fairness_costs_no_more_than_three_percent():
    place = Place(replace(config("fair"), kv_layout="contiguous"), COST, PROMPT, ANSWER)
    light = list(islice(stream(place, "light", 0.2, random.Random(0).expovariate), 80))
    told = {policy: beside(place, policy, light, HEAVIER * 0.2, random.Random(1).expovariate) for policy in ("fair", "fcfs")}
    assert told["fair"].displaced > 0
    assert told["fair"].tokens_per_s >= 0.97 * told["fcfs"].tokens_per_s


def test_a_light_tenant_waits_for_a_place_at_most_however_little_it_asks_for():
    """Beside a heavy one all places are taken: at the latest, a request waits for the first end of one of them, and a step."""
    light = at_random(asks("light", 60), every=REQUEST_S / 0.05, seed=1)
    heavy = at_random(asks("heavy", 2000), every=REQUEST_S / 4.5, seed=2)
    waits = ttfts(ride(light + heavy, until=light[-1].arrival + 5.0), "light")
    longest_answer_s = 1.5 * ANSWER * (COST.step_s + 64 * COST.token_s)
    assert max(waits) <= longest_answer_s
    assert quantile(waits, 0.95) <= longest_answer_s / 4


def test_fairness_costs_no_throughput():
    requests = asks("heavy", 300) + asks("light", 30)
    ends = {policy: max(j.finished_at or 0.0 for j in ride(requests, policy).values()) for policy in ("fair", "fcfs")}
    assert abs(ends["fair"] / ends["fcfs"] - 1) < 0.03
