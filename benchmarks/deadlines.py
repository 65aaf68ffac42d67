"""First tokens in time at 1.3 times what the engine can do: `deadline`, first come first served, and those who know everything.

In virtual time, with the lengths of the Azure conversation trace: `python benchmarks/deadlines.py --trace azure-2023-conv.csv`.
A seed takes some minutes; what is printed is the same on every machine.
"""

import argparse
import random
import sys
from dataclasses import replace
from pathlib import Path

from chairlift.core.errors import TraceError
from chairlift.sim.trials.clairvoyant import most_in_time
from chairlift.sim.trials.deadlines import CLASSES, OVERLOAD, foreseen, kept, with_targets
from chairlift.sim.trials.engines import A100, LARGE, Ask, asks, capacity, poisson
from chairlift.workload.traces import Arrival, read_azure

MAX_TOKENS = 1024
SAMPLE = 2000
"""Requests by which the engine's capacity is measured."""


def workload(trace: list[Arrival], *, per_s: float, until_s: float, seed: int) -> list[Ask]:
    chance = random.Random(seed)
    moments = poisson(per_s, until_s, chance.expovariate)
    lengths = chance.choices(trace, k=len(moments))
    arrivals = [replace(one, arrival_s=moment) for one, moment in zip(lengths, moments, strict=True)]
    targets = chance.choices(list(CLASSES), list(CLASSES.values()), k=len(moments))
    return with_targets(asks(arrivals, max_tokens=MAX_TOKENS), targets)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, required=True, help="of Azure, for its lengths")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=10.0)
    options = parser.parse_args()
    try:
        trace = read_azure(options.trace)
    except TraceError as error:
        raise SystemExit(f"error: {error}") from None
    print("capacity ...", file=sys.stderr)
    per_s = capacity(LARGE, A100, asks(random.Random(0).choices(trace, k=SAMPLE), max_tokens=MAX_TOKENS))
    print(f"capacity {per_s:.2f} requests/s, {OVERLOAD * per_s:.2f} come")
    for seed in range(options.seeds):
        rides = workload(trace, per_s=OVERLOAD * per_s, until_s=60 * options.minutes, seed=seed)
        print(f"seed {seed}: {len(rides)} requests ...", file=sys.stderr)
        counts = {name: kept(replace(LARGE, scheduling_policy=name), A100, rides) for name in ("fcfs", "deadline")}
        best = max(foreseen(LARGE, A100, rides))
        bound = most_in_time(rides, LARGE, A100, until=60 * options.minutes + max(CLASSES))
        parts = [f"seed {seed}: of {len(rides)} in time"]
        for name, by_target in counts.items():
            each = ", ".join(f"{target} s {count}" for target, count in sorted(by_target.items()))
            parts.append(f"{name} {sum(by_target.values())} ({each})")
        parts.append(f"clairvoyant {best}, bound {bound}")
        print("; ".join(parts) + f"; deadline/clairvoyant {sum(counts['deadline'].values()) / best:.3f}", flush=True)


if __name__ == "__main__":
    main()
