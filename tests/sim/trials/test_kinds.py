"""What predicted lengths are worth: kinds of requests whose prompts tell how long their answers get, on a small machine."""

import random
from dataclasses import replace
from functools import cache

from chairlift.core.config import EngineConfig
from chairlift.sim.cost import Linear
from chairlift.sim.trials.engines import at_load, poisson, ride
from chairlift.sim.trials.kinds import Kind, of_kinds
from chairlift.sim.trials.latencies import Latency, latency

KINDS = (Kind("label", 30, 2, 0.55), Kind("chat", 12, 8, 0.3), Kind("write", 4, 90, 0.15))
COST = Linear(step_s=0.1, token_s=1e-3, draw_s=1e-3)
CONFIG = EngineConfig(
    max_model_len=512,
    num_blocks=300,
    max_num_seqs=8,
    max_num_batched_tokens=64,
    enable_prefix_caching=False,
)
LOAD = 0.95
REQUESTS = 1500


@cache
def latencies(seed: int) -> dict[str, Latency]:
    chance = random.Random(seed)
    drawn = of_kinds(KINDS, poisson(1.0, REQUESTS, chance.expovariate), chance, max_tokens=256)
    rides = at_load(LOAD, CONFIG, COST, drawn)
    return {
        policy: latency(ride(replace(CONFIG, scheduling_policy=policy), COST, rides).values())
        for policy in ("fcfs", "shortest")
    }


def test_the_mean_latency_is_half_as_long_again_without_predicted_lengths():
    assert latencies(1)["fcfs"].mean_s >= 1.5 * latencies(1)["shortest"].mean_s


def test_the_longest_waits_get_hardly_longer():
    assert latencies(1)["shortest"].p99_s <= 1.2 * latencies(1)["fcfs"].p99_s
