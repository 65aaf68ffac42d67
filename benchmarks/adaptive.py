"""Prompts of 4,096 tokens between chats: chunks that are sized for a time between tokens beside fixed ones, in virtual time.

`python benchmarks/adaptive.py`: more requests come than can be served, steps have 10 % noise, and in the middle of the work
everything takes twice as long. What is printed is the same on every machine.
"""

import argparse
import random
import sys
from dataclasses import replace

from chairlift.sim.cost import Moody
from chairlift.sim.trials.chunks import fixed, mixed, moody, outcome
from chairlift.sim.trials.engines import A100, LARGE, Ask, poisson

PER_S = 12.0
CONFIG = replace(LARGE, max_num_batched_tokens=2048, scheduling_policy="fair")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=float, default=0.1, help="seconds between two tokens of a stream")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60.0, help="for which requests come")
    options = parser.parse_args()
    for seed in range(options.seeds):
        chance = random.Random(seed)
        rides = mixed(poisson(PER_S, options.seconds, chance.expovariate), chance)
        print(f"seed {seed}: {len(rides)} requests ...", file=sys.stderr)

        def machine(seed: int = seed, rides: list[Ask] = rides) -> Moody:
            return moody(A100, rides, random.Random(seed + 1000))

        outcomes = {str(chunk): one for chunk, one in fixed(CONFIG, machine, rides).items()}
        within = [one.tokens_per_s for one in outcomes.values() if one.itl_p99_s <= options.target]
        adaptive = outcomes["adaptive"] = outcome(replace(CONFIG, itl_target_s=options.target), machine(), rides)
        parts = [f"{name} {1000 * one.itl_p99_s:.0f} ms, {one.tokens_per_s:.0f} tok/s" for name, one in outcomes.items()]
        best = f"; {adaptive.tokens_per_s / max(within):.2f} of the best fixed one within the target" if within else ""
        print(f"seed {seed}: p99 between tokens and rate by chunk: " + "; ".join(parts) + best, flush=True)


if __name__ == "__main__":
    main()
