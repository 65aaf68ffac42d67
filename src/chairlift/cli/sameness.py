"""`chairlift evaluate invariance`: runs trials, and reports what was compared and whether anything differed."""

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import typer

from chairlift import executors
from chairlift.cli.evaluating import BLOCK_SIZE, Builder, compiled, opened
from chairlift.cli.report import table, write_json
from chairlift.evaluate import texts
from chairlift.evaluate.invariance import CIRCUMSTANCES, Report, measure
from chairlift.evaluate.trials import Sizes, draw_trial
from chairlift.executors import Computes
from chairlift.options import EngineOptions

EVERY_LONG = 4
"""One trial in so many has a long prompt, as they take long."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Everything that the command line says about a check of invariance."""

    model: str
    trials: int
    seed: int
    threads: tuple[int, ...]
    quantization: str
    kv_cache_dtype: str
    isa: str


def run(asked: Asked, json: Path | None) -> None:
    """Runs the trials and reports. Ends the command with 1 if any logits differed."""
    ways = {_threads(count): _way(asked, count) for count in asked.threads}
    for one in ways.values():
        executors.check(one)
    with opened(asked.model) as builder:
        sizes = Sizes(block_size=BLOCK_SIZE).within(builder.model.description.context)
        computes = [builder.computes(one) for one in ways.values()]
        tell(builder.model.name, asked, computes[0], _run_trials(builder, asked, ways, sizes), json)


def tell(name: str, asked: Asked, computes: Computes, report: Report, json: Path | None) -> None:
    """Reports for people and programs. Raises Exit with 1, after the first difference in one line, if there is any."""
    if json is not None:
        write_json(json, _figures(name, asked, computes, report))
    if json != Path("-"):
        typer.echo(f"{name}: {asked.trials} trials of seed {asked.seed}, compared bit by bit with each request alone")
        for line in table(_rows(report)):
            typer.echo(line)
    if report.differences:
        typer.echo(f"error: {report.differences[0]}", err=True)
        raise typer.Exit(1)


def _run_trials(builder: Builder, asked: Asked, ways: Mapping[str, EngineOptions], sizes: Sizes) -> Report:
    text = builder.tokens(texts.shipped())
    random = Random(asked.seed)  # noqa: S311
    trials = (draw_trial(random, text, sizes, long=number % EVERY_LONG == 0) for number in range(asked.trials))
    with ExitStack() as stack:
        candidates = {
            name: stack.enter_context(
                builder.executor(options, num_blocks=sizes.num_blocks, max_tokens=sizes.max_tokens, max_rows=sizes.requests)
            )
            for name, options in ways.items()
        }
        advance = stack.enter_context(builder.counting("Trials", asked.trials))
        return measure(trials, candidates, on_trial=lambda: advance(1))


def _way(asked: Asked, threads: int) -> EngineOptions:
    return compiled(asked.quantization, asked.kv_cache_dtype, threads=threads, isa=asked.isa)


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def _rows(report: Report) -> list[tuple[str, ...]]:
    names = list(report.met)
    wrong = Counter(difference.executor for difference in report.differences)
    return [
        ("", *names),
        ("logits compared", *(f"{report.compared[name]:,}" for name in names)),
        *((f"  {one}", *(f"{report.met[name][one]:,}" for name in names)) for one in CIRCUMSTANCES),
        ("different", *(f"{wrong[name]:,}" for name in names)),
    ]


def _figures(name: str, asked: Asked, computes: Computes, report: Report) -> dict[str, Any]:
    return {
        "model": name,
        "isa": computes.isa,
        "quantization": asked.quantization,
        "kv_cache_dtype": computes.kv_cache_dtype,
        "trials": asked.trials,
        "seed": asked.seed,
        "executors": [
            {"name": one, "compared": report.compared[one], "circumstances": {each: met[each] for each in CIRCUMSTANCES}}
            for one, met in report.met.items()
        ],
        "differences": [str(difference) for difference in report.differences],
    }
