"""How much of the prompts of a trace is found in the prefix cache, and whether that is what must be found.

    python benchmarks/prefix_hits.py --trace synthetic_trace.jsonl

Requests of a Mooncake trace go through the engine's own scheduler in blocks of 512 tokens, of which only full ones are shared:
one after another, and some at a time; with a cache that forgets nothing, and with small ones. Beside it an independent count,
which knows no cache but the rule by which blocks leave it, says how many tokens of every request must be found. If the two
differ for any request, that is an error.
"""

import argparse
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from chairlift.cli.progress import steps
from chairlift.cli.report import table, write_json
from chairlift.core.errors import ChairliftError
from chairlift.sim.hits import Hits, measure
from chairlift.workload.traces import HASHED_TOKENS, read_mooncake

BLOCKS = (1_000, 4_000, 16_000)
IN_FLIGHT = (1, 16)


def cells(hits: Hits) -> list[str]:
    size = "unlimited" if hits.blocks is None else f"{hits.blocks:,}"
    tokens = (f"{hits.cached_tokens:,}", f"{hits.counted_tokens:,}", str(len(hits.differences)))
    return [size, str(hits.in_flight), f"{100 * hits.rate:.3f} %", *tokens]


def numbers(value: str) -> tuple[int, ...]:
    return tuple(int(part) for part in value.split(","))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, required=True, metavar="JSONL", help="a trace of Mooncake's")
    parser.add_argument("--blocks", type=numbers, default=BLOCKS, metavar="LIST", help="caches; default: 1000,4000,16000")
    parser.add_argument("--in-flight", type=numbers, default=IN_FLIGHT, metavar="LIST", help="requests at once; default: 1,16")
    parser.add_argument("--requests", type=int, metavar="N", help="only the first N of the trace")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too; - is standard output")
    options = parser.parse_args()
    try:
        found = report(options)
    except ChairliftError as error:
        raise SystemExit(f"error: {error}") from None
    if any(one.differences for one in found):
        raise SystemExit("error: engine and count differ")


def report(options: argparse.Namespace) -> list[Hits]:
    arrivals = read_mooncake(options.trace)[: options.requests]
    runs = [(blocks, in_flight) for in_flight in options.in_flight for blocks in (None, *options.blocks)]
    found: list[Hits] = []
    with steps(Console(stderr=True, highlight=False), "Running the trace", len(arrivals) * len(runs)) as progress:
        for blocks, in_flight in runs:
            found.append(measure(arrivals, blocks=blocks, in_flight=in_flight, on_done=progress.advance))
            progress.note(f"{cells(found[-1])[0]} blocks, {in_flight} at a time: {100 * found[-1].rate:.3f} %")
    if options.json is not None:
        write_json(options.json, [asdict(one) for one in found])
    if options.json != Path("-"):
        prompts = sum(one.prompt_tokens for one in arrivals)
        print(f"{options.trace.name}: {len(arrivals):,} requests, {prompts:,} tokens, blocks of {HASHED_TOKENS}")
        head = ["blocks", "at a time", "found", "tokens found", "tokens counted", "requests that differ"]
        print("\n".join(table([head, *map(cells, found)])))
    return found


if __name__ == "__main__":
    main()
