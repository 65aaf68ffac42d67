"""What prefix caching costs when nothing hits: throughput with it and without it, in pairs of runs on one model.

    python benchmarks/prefix_cost.py smollm2 --json prefix_cost.json

Prompts are random, so every block enters the index and none is found in it. Both of a pair compute the same prompts and
answers on the same executor, and take turns in going first. The median of the ratios is what counts; the quartiles tell how
far to trust it. Run it alone on an idle machine: it measures seconds. The aim is a cost of less than 1 %.
"""

import argparse
import time
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from chairlift import compose, machine
from chairlift.bench.caching import Overhead, compare, overhead
from chairlift.bench.engine import Subject, Workload, settings
from chairlift.cli.loading import sources
from chairlift.cli.progress import steps
from chairlift.cli.report import write_json
from chairlift.core.errors import ChairliftError
from chairlift.models import registry
from chairlift.models.fetch import DEFAULT_MODEL

LEAST_PAIRS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL, help="as for the server; dummy:tiny has the shortest steps")
    parser.add_argument("--batch", type=int, default=32, metavar="N", help="sequences at once; default: 32")
    parser.add_argument("--input-len", type=int, default=256, metavar="TOKENS", help="of each prompt; default: 256")
    parser.add_argument("--output-len", type=int, default=64, metavar="TOKENS", help="of each answer; default: 64")
    parser.add_argument("--pairs", type=int, default=11, metavar="N", help="default: 11")
    parser.add_argument("--threads", type=int, metavar="N", help="as for the server")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too; - is standard output")
    options = parser.parse_args()
    if options.pairs < LEAST_PAIRS:
        parser.error(f"--pairs must be at least {LEAST_PAIRS}")
    try:
        report(options)
    except ChairliftError as error:
        raise SystemExit(f"error: {error}") from None


def report(options: argparse.Namespace) -> None:
    workload = Workload((options.batch,), options.input_len, options.output_len, options.pairs)
    console = Console(stderr=True, highlight=False)
    engine, subject = load(options, workload, console)
    try:
        with steps(console, "Measuring", 2 * workload.tokens) as progress:
            pairs = compare(subject, workload, clock=time.perf_counter, on_tokens=progress.advance)
    finally:
        engine.executor.close()
    found = overhead(pairs, workload)
    if options.json is not None:
        told = {"model": options.model, "workload": asdict(workload), "overhead": asdict(found)}
        write_json(options.json, told | {"pairs": [asdict(pair) for pair in pairs]})
    if options.json != Path("-"):
        print(words(options.model, workload, found))


def load(options: argparse.Namespace, workload: Workload, console: Console) -> tuple[compose.Engine, Subject]:
    """The model, with memory for the batch."""
    asked = compose.EngineOptions(
        max_model_len=workload.context,
        max_num_seqs=options.batch,
        max_num_batched_tokens=max(512, options.batch),
        threads=options.threads,
    )
    compose.check_options(asked)
    where, free = sources(console), machine.free_memory()
    opened = registry.load(options.model, where)
    fitted = compose.fit(opened, asked, free_bytes=free)
    fitted = compose.resized(fitted, settings(fitted.config, workload), free_bytes=free)
    engine = compose.build(opened, fitted, asked, progress=where.progress, kernels=where.cache / compose.KERNELS)
    assert engine.gauge is not None
    return engine, Subject(fitted.config, engine.executor, engine.gauge, opened.description.vocab)


def words(model: str, workload: Workload, found: Overhead) -> str:
    lengths = f"{workload.batches[0]} sequences, prompts of {workload.input_len} tokens, answers of {workload.output_len}"
    costs = f"{100 * found.median:+.2f} % (quartiles {100 * found.lower:+.2f} and {100 * found.upper:+.2f} %)"
    told = f"{model}: {lengths}, {found.pairs} pairs\nprefix caching without hits: {costs}"
    return f"{told}; next tokens alone {100 * found.decode_median:+.2f} %"


if __name__ == "__main__":
    main()
