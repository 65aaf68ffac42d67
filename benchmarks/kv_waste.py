"""How much KV memory is held and empty, over a trace of real requests: in blocks, and in runs reserved for whole answers.

    python benchmarks/kv_waste.py --trace AzureLLMInferenceTrace_conv.csv

The engine's own scheduler runs in virtual time, and a step takes 10 ms and 0.05 ms for each of its tokens: enough for the
trace of 2023 with some 50 requests in flight. Waste is 1 - tokens stored / tokens that fit into what the live sequences hold,
averaged over steps. Beside it is what the same sequences would waste if each reserved one run of blocks when it gets on, for
its prompt and the most that its client asked for: once exactly as much as the answer has, and once --max-tokens.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from chairlift.cli.progress import steps
from chairlift.cli.report import table, write_json
from chairlift.core.config import EngineConfig
from chairlift.core.errors import ChairliftError
from chairlift.sim.cost import Linear
from chairlift.sim.waste import TRUE_LENGTH, Waste, measure
from chairlift.workload.traces import Arrival, read_azure

COST = Linear(step_s=0.01, token_s=0.000_05)
PLACES = 256
TOKENS_A_STEP = 4096


def config(arrivals: Sequence[Arrival], block_size: int, places: int) -> EngineConfig:
    """An engine with memory for all its places: waste is asked for, not what happens when memory is short."""
    context = max(one.prompt_tokens + one.answer_tokens for one in arrivals)
    return EngineConfig(
        max_model_len=context,
        num_blocks=places * (context // block_size + 2),
        block_size=block_size,
        max_num_seqs=places,
        max_num_batched_tokens=TOKENS_A_STEP,
        enable_prefix_caching=False,
    )


def cells(waste: Waste, max_tokens: int) -> list[str]:
    parts = (waste.paged, waste.reserved[TRUE_LENGTH], waste.reserved[max_tokens])
    return [str(waste.block_size), *(f"{100 * part:.2f} %" for part in parts), f"{waste.live:.1f}", f"{waste.steps:,}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, required=True, metavar="CSV", help="one of Azure's LLM inference traces")
    parser.add_argument("--block-size", type=sizes, default=(16, 8, 32, 64), metavar="LIST", help="tokens; default: 16,8,32,64")
    parser.add_argument("--max-tokens", type=int, default=1000, metavar="N", help="what clients ask for; default: 1000")
    parser.add_argument("--places", type=int, default=PLACES, metavar="N", help=f"at most so many at once; default: {PLACES}")
    parser.add_argument("--requests", type=int, metavar="N", help="only the first N of the trace")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too; - is standard output")
    options = parser.parse_args()
    try:
        report(options)
    except ChairliftError as error:
        raise SystemExit(f"error: {error}") from None


def sizes(value: str) -> tuple[int, ...]:
    return tuple(int(part) for part in value.split(","))


def report(options: argparse.Namespace) -> None:
    arrivals = read_azure(options.trace)[: options.requests]
    found: list[Waste] = []
    with steps(Console(stderr=True, highlight=False), "Running the trace", len(arrivals) * len(options.block_size)) as progress:
        for size in options.block_size:
            limits = (TRUE_LENGTH, options.max_tokens)
            engine = config(arrivals, size, options.places)
            found.append(measure(arrivals, engine, COST, max_tokens=limits, on_done=progress.advance))
            progress.note(f"blocks of {size} tokens: {100 * found[-1].paged:.2f} % wasted")
    if options.json is not None:
        write_json(options.json, [asdict(one) for one in found])
    if options.json != Path("-"):
        head = ["block size", "blocks", "reserved: true length", f"reserved: {options.max_tokens:,} tokens", "live", "steps"]
        print(f"{options.trace.name}: {len(arrivals):,} requests, KV waste averaged over steps")
        print("\n".join(table([head, *(cells(one, options.max_tokens) for one in found)])))


if __name__ == "__main__":
    main()
