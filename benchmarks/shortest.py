"""Latency at 0.95 of what the engine can do: `shortest` beside first come, first served, in virtual time.

Three kinds of requests whose prompts and answers differ in length, and with `--trace` the lengths of the Azure conversation
trace, whose prompts tell little of the answers: `python benchmarks/shortest.py --trace azure-2023-conv.csv`.
"""

import argparse
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from chairlift.core.errors import TraceError
from chairlift.sim.trials.engines import A100, LARGE, Ask, asks, at_load, poisson, ride
from chairlift.sim.trials.kinds import KINDS, of_kinds
from chairlift.sim.trials.latencies import latency
from chairlift.workload.traces import read_azure

LOAD = 0.95
PLACES = 8
"""So few that there is a queue: with many places a batch is shared by all, and there is nobody to be overtaken."""
MAX_TOKENS = 2048
CONFIG = replace(LARGE, max_num_seqs=PLACES)

Drawn = Callable[[list[float], random.Random], list[Ask]]


def compare(name: str, drawn: Drawn, *, seeds: int, requests: int) -> None:
    for seed in range(seeds):
        chance = random.Random(seed)
        print(f"{name}: seed {seed} ...", file=sys.stderr)
        rides = at_load(LOAD, CONFIG, A100, drawn(poisson(1.0, requests, chance.expovariate), chance))
        first, short = (
            latency(ride(replace(CONFIG, scheduling_policy=policy), A100, rides).values()) for policy in ("fcfs", "shortest")
        )
        print(
            f"{name}: seed {seed}: {len(rides)} requests, mean {first.mean_s:.2f} s fcfs, {short.mean_s:.2f} s shortest,"
            f" {first.mean_s / short.mean_s:.2f} times better;"
            f" p99 {first.p99_s:.1f} and {short.p99_s:.1f} s, {short.p99_s / first.p99_s:.2f} times",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, help="of Azure, for its lengths")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=3000)
    options = parser.parse_args()
    try:
        trace = [] if options.trace is None else read_azure(options.trace)
    except TraceError as error:
        raise SystemExit(f"error: {error}") from None
    sizes = {"seeds": options.seeds, "requests": options.requests}
    compare("kinds", lambda moments, chance: of_kinds(KINDS, moments, chance, max_tokens=MAX_TOKENS), **sizes)
    if trace:

        def drawn(moments: list[float], chance: random.Random) -> list[Ask]:
            lengths = chance.choices(trace, k=len(moments))
            arrivals = [replace(one, arrival_s=moment) for one, moment in zip(lengths, moments, strict=True)]
            return asks(arrivals, max_tokens=MAX_TOKENS)

        compare("Azure", drawn, **sizes)


if __name__ == "__main__":
    main()
