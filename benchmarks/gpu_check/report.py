"""Tells what all stages found: tables for people, and JSON. Works out shares and ratios; measures nothing."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gpu_check.records import Figure
from gpu_check.stages import Outcome

COPY, MATRIX = "copy", "matrix product"
"""Cases of the stage `environment`, which shares are of."""
OURS, THEIRS = "chairlift", "transformers"
LEAST_SHARE, LEAST_RATIO, MOST_ROWS = 0.6, 3.0, 32
"""The aims: of the copy bandwidth in decode steps of so many rows, and times transformers' rate."""
DRY = "this was a dry run on the CPU with a tiny model: its figures say nothing of any GPU"
HEAD = ("stage", "case", "median", "unit", "lowest and highest", "ms a step", "of copy bandwidth", "of matrix rate", "gap ms")


def as_json(outcomes: Sequence[Outcome], *, dry_run: bool, took_s: float) -> dict[str, Any]:
    """Everything, in the order of the stages."""
    limits = _limits(outcomes)
    return {
        "version": 1,
        "dry_run": dry_run,
        "passed": all(outcome.passed for outcome in outcomes),
        "took_s": round(took_s, 1),
        "stages": [
            {
                "name": outcome.stage.name,
                "passed": outcome.passed,
                "took_s": round(outcome.took_s, 1),
                "seconds": outcome.stage.seconds,
                "failures": outcome.found.failures,
                "facts": outcome.found.facts,
                "figures": [asdict(figure) | _shares(figure, limits) for figure in outcome.found.figures],
            }
            for outcome in outcomes
        ],
        "ratio_to_transformers": ratio(outcomes),
    }


def lines(outcomes: Sequence[Outcome], *, dry_run: bool, took_s: float) -> list[str]:
    """What the terminal shows: facts, stages, figures, and which aims were met."""
    told = [f"{outcome.stage.name}: {name}: {fact}" for outcome in outcomes for name, fact in outcome.found.facts.items()]
    told += ["", *_table(("stage", "outcome", "seconds", "of at most"), [_row(outcome) for outcome in outcomes])]
    told += [f"FAILED {outcome.stage.name}: {failure}" for outcome in outcomes for failure in outcome.found.failures]
    limits = _limits(outcomes)
    rows = [_cells(outcome.stage.name, figure, limits) for outcome in outcomes for figure in outcome.found.figures]
    told += ["", *_table(HEAD, rows), ""]
    told += [DRY] if dry_run else aims(outcomes)
    passed = sum(outcome.passed for outcome in outcomes)
    return [*told, f"{passed} of {len(outcomes)} stages passed in {took_s:.0f} s"]


def aims(outcomes: Sequence[Outcome]) -> list[str]:
    """One line for each aim: what was measured, or that it was not."""
    what = f"share of the copy bandwidth in decode steps of up to {MOST_ROWS} rows, each launched in the fastest way"
    return [
        _aim(what, _least_share(outcomes), LEAST_SHARE),
        _aim("times the rate of transformers' continuous batching", ratio(outcomes), LEAST_RATIO),
    ]


def _least_share(outcomes: Sequence[Outcome]) -> float | None:
    """Of the batches of few rows, each by its best figure."""
    limits = _limits(outcomes)
    best: dict[int, float] = {}
    for figure in _of(outcomes, "decode"):
        batch, share = int(figure.case.split(",")[0].removeprefix("batch ")), _shares(figure, limits)["copy_share"]
        if share is not None and batch <= MOST_ROWS:
            best[batch] = max(share, best.get(batch, 0.0))
    return min(best.values(), default=None)


def ratio(outcomes: Sequence[Outcome]) -> float | None:
    """Our rate over transformers'."""
    found = {figure.case.rpartition(", ")[2]: figure.value for figure in _of(outcomes, "rivals")}
    return found[OURS] / found[THEIRS] if {OURS, THEIRS} <= found.keys() else None


def _aim(what: str, found: float | None, least: float) -> str:
    if found is None:
        return f"aim: {what}, at least {least}: not measured"
    return f"aim: {what}, at least {least}: {found:.2f}, {'met' if found >= least else 'MISSED'}"


def _of(outcomes: Sequence[Outcome], stage: str) -> list[Figure]:
    return [figure for outcome in outcomes if outcome.stage.name == stage for figure in outcome.found.figures]


def _limits(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Bytes and operations a second, as they were measured in this very run."""
    found = {figure.case: figure.value for figure in _of(outcomes, "environment")}
    scales = {COPY: 1e9, MATRIX: 1e12}
    return {case: found[case] * scale for case, scale in scales.items() if case in found}


def _shares(figure: Figure, limits: dict[str, float]) -> dict[str, float | None]:
    return {
        "copy_share": _share(figure.bytes_per_step, figure.step_ms, limits.get(COPY)),
        "matrix_share": _share(figure.operations_per_step, figure.step_ms, limits.get(MATRIX)),
    }


def _share(amount: int | None, step_ms: float | None, limit: float | None) -> float | None:
    return None if amount is None or step_ms is None or limit is None else amount / (step_ms / 1e3) / limit


def _row(outcome: Outcome) -> tuple[str, ...]:
    words = "passed" if outcome.passed else "FAILED"
    return (outcome.stage.name, words, f"{outcome.took_s:.1f}", f"{outcome.stage.seconds:.0f}")


def _cells(stage: str, figure: Figure, limits: dict[str, float]) -> tuple[str, ...]:
    shares = _shares(figure, limits)
    spread = f"{min(figure.runs):,.1f} to {max(figure.runs):,.1f}, {len(figure.runs)} runs" if figure.runs else ""
    return (
        stage,
        figure.case,
        f"{figure.value:,.1f}",
        figure.unit,
        spread,
        _number(figure.step_ms, "{:.3f}"),
        _number(shares["copy_share"], "{:.1%}"),
        _number(shares["matrix_share"], "{:.1%}"),
        _number(figure.gap_ms, "{:.3f}"),
    )


def _number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """In Markdown, with columns that line up."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    every = [head, ["-" * width for width in widths], *rows]
    return ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in every]
