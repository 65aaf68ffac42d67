"""How long a light tenant waits beside a heavy one, against beside one like it, and what that costs: in virtual time.

`python benchmarks/fairness.py`: for each part of the machine that the light one asks for, the 95th percentile of its times to
the first token. What is printed is the same on every machine.
"""

import argparse
import random
import sys
from dataclasses import replace
from itertools import islice

from chairlift.core.config import EngineConfig
from chairlift.sim.cost import Linear
from chairlift.sim.trials.engines import A100
from chairlift.sim.trials.latencies import quantile
from chairlift.sim.trials.tenants import HEAVIER, Place, Told, beside, stream

LOADS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.45)
SMALL = Place(
    EngineConfig(max_model_len=64, num_blocks=128, block_size=4, max_num_seqs=8, max_num_batched_tokens=64),
    Linear(step_s=0.01, token_s=0.001),
    prompt=20,
    answer=16,
)
LARGE = Place(EngineConfig(max_model_len=1024, num_blocks=2000, max_num_seqs=32), A100, prompt=200, answer=200)
PLACES = {"small": SMALL, "large": LARGE}


def p95(runs: list[list[float]]) -> float:
    return quantile((value for run in runs for value in run), 0.95)


def compare(name: str, place: Place, load: float, *, seeds: int, requests: int) -> None:
    peer, heavy, first = list[Told](), list[Told](), list[Told]()
    for seed in range(seeds):
        light = list(islice(stream(place, "light", load, random.Random(3 * seed).expovariate), requests))
        peer.append(beside(place, "fair", light, load, random.Random(3 * seed + 1).expovariate))
        for policy, told in (("fair", heavy), ("fcfs", first)):
            told.append(beside(place, policy, light, HEAVIER * load, random.Random(3 * seed + 2).expovariate))
    ours, like, least = (
        p95([one.ttft_s for one in heavy]),
        p95([one.ttft_s for one in peer]),
        p95([one.at_once_s for one in heavy]),
    )
    rate = sum(one.tokens_per_s for one in heavy) / sum(one.tokens_per_s for one in first)
    print(
        f"{name}: asks for {load:.0%}: {1000 * like:.0f} ms beside its like, {1000 * ours:.0f} ms beside the heavy one"
        f" ({ours / like:.2f} times; {least / like:.2f} if all got on at once); {rate:.3f} of the tokens/s of fcfs;"
        f" {sum(one.displaced for one in heavy)} displaced for {seeds * requests}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=200, help="of the light tenant")
    parser.add_argument("--no-prefix-cache", action="store_true", help="whoever is displaced is computed again")
    parser.add_argument("--place", choices=PLACES, action="append", help="both if not given")
    options = parser.parse_args()
    for name in options.place or PLACES:
        place = PLACES[name]
        place = replace(place, config=replace(place.config, enable_prefix_caching=not options.no_prefix_cache))
        for load in LOADS:
            print(f"{name}: {load:.0%} ...", file=sys.stderr)
            compare(name, place, load, seeds=options.seeds, requests=options.requests)


if __name__ == "__main__":
    main()
