"""What a scheduling decision costs, without a model: `schedule` and `commit` with 256 running and 10,000 waiting.

All orders are measured, one after another, or one of them:

    python benchmarks/scheduler_cost.py
    python benchmarks/scheduler_cost.py --order fair --waiting 0

In every step some requests end, as many get on, and as many come anew. Prompts of a tenant share their first half. Garbage is
collected as seldom as in a server. Run it alone on an idle machine: it measures seconds. The aim is 1 ms at most for `schedule`
and `commit` together, in the median.
"""

import argparse
import time
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from chairlift.bench.decisions import Costs, Crowd, measure
from chairlift.cli import garbage
from chairlift.cli.progress import steps
from chairlift.cli.report import table, write_json
from chairlift.core.errors import ChairliftError
from chairlift.schedule.presets import ORDERS, PRESETS

HEAD = ["order", "running", "waiting", "median ms", "p90 ms", "schedule ms", "commit ms", "an arrival ms", "ends a step"]


def cells(costs: Costs) -> list[str]:
    times = (costs.median_ms, costs.p90_ms, costs.schedule_ms, costs.commit_ms, costs.arrival_ms)
    ends = f"{costs.ended / costs.steps:.1f}"
    return [costs.order, f"{costs.running:.0f}", f"{costs.waiting:,.0f}", *(f"{one:.3f}" for one in times), ends]


def main() -> None:
    default = Crowd()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--order", choices=ORDERS, help="only this one; without it all, one after another")
    parser.add_argument("--preset", choices=PRESETS, default="continuous", help="when requests may join; default: continuous")
    parser.add_argument("--running", type=int, default=default.running, metavar="N", help=f"default: {default.running}")
    parser.add_argument("--waiting", type=int, default=default.waiting, metavar="N", help=f"default: {default.waiting:,}")
    parser.add_argument("--prompt", type=int, default=default.prompt, metavar="TOKENS", help=f"default: {default.prompt:,}")
    parser.add_argument("--answer", type=int, default=default.answer, metavar="TOKENS", help=f"mean; default: {default.answer}")
    parser.add_argument("--tenants", type=int, default=default.tenants, metavar="N", help=f"default: {default.tenants}")
    parser.add_argument("--classes", type=int, default=default.classes, metavar="N", help=f"default: {default.classes}")
    parser.add_argument("--steps", type=int, default=500, metavar="N", help="that are measured; default: 500")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too; - is standard output")
    options = parser.parse_args()
    garbage.spare()
    try:
        report(options)
    except ChairliftError as error:
        raise SystemExit(f"error: {error}") from None


def report(options: argparse.Namespace) -> None:
    crowd = Crowd(options.running, options.waiting, options.prompt, options.answer, options.tenants, options.classes)
    orders = [options.order] if options.order else list(ORDERS)
    found: list[Costs] = []
    with steps(Console(stderr=True, highlight=False), "Measuring", options.steps * len(orders)) as progress:
        for order in orders:
            costs = measure(
                crowd,
                order,
                steps=options.steps,
                clock=time.perf_counter,
                gate=options.preset,
                on_step=progress.advance,
            )
            found.append(costs)
            progress.note(f"{order}: median {costs.median_ms:.3f} ms, p90 {costs.p90_ms:.3f} ms")
    if options.json is not None:
        write_json(options.json, [asdict(one) for one in found])
    if options.json != Path("-"):
        print("\n".join(table([HEAD, *map(cells, found)])))


if __name__ == "__main__":
    main()
