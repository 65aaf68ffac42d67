"""`chairlift evaluate perplexity`: measures, and reports what an executor's rounding costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import typer

from chairlift import executors
from chairlift.cli.evaluating import BLOCK_SIZE, REFERENCE, Builder, compiled, opened
from chairlift.cli.report import table, write_json
from chairlift.core.errors import ConfigError
from chairlift.evaluate import texts
from chairlift.evaluate.logits import blocks_for
from chairlift.evaluate.perplexity import ROWS, Change, Reading, Window, compare, predicted, read, windows
from chairlift.executors import Computes
from chairlift.options import EngineOptions


@dataclass(frozen=True, slots=True)
class Asked:
    """Everything that the command line says about a measurement of perplexity."""

    model: str
    text: Path | None
    window: int
    tokens: int | None
    quantizations: tuple[str, ...]
    kv_cache_dtypes: tuple[str, ...]
    threads: int | None
    isa: str


@dataclass(frozen=True, slots=True)
class Measured:
    """A way to compute, its reading, and how that differs from the reference's."""

    options: EngineOptions
    computes: Computes
    reading: Reading
    change: Change


def run(asked: Asked, json: Path | None) -> None:
    """Reads the text with the reference, then with every way to compute that was asked for, and reports."""
    text = texts.shipped() if asked.text is None else texts.read(asked.text)
    ways = _ways(asked)
    for one in ways:
        executors.check(one)
    with opened(asked.model) as builder:
        for one in ways:
            builder.computes(one)
        cut = _windows(asked, builder, text)
        reference = _reference(builder, cut)
        measured = [_measure(builder, one, cut, reference) for one in ways]
        name = builder.model.name
    if json is not None:
        write_json(json, _figures(name, asked, reference, measured))
    if json != Path("-"):
        typer.echo(f"{name}: {reference.tokens:,} tokens predicted, in windows of {asked.window:,}")
        for line in table(_rows(reference, measured)):
            typer.echo(line)


def _ways(asked: Asked) -> list[EngineOptions]:
    return [
        compiled(quantization, kind, threads=asked.threads, isa=asked.isa)
        for quantization, kind in product(asked.quantizations, asked.kv_cache_dtypes)
    ]


def _windows(asked: Asked, builder: Builder, text: str) -> list[Window]:
    context = builder.model.description.context
    if asked.window > context:
        raise ConfigError(f"a window of {asked.window} is more than the {context} tokens that the model was made for")
    cut = windows(builder.tokens(text)[: asked.tokens], size=asked.window, bos_id=builder.bos_id)
    if not cut:
        raise ConfigError("the text has no token that could be predicted")
    return cut


def _reference(builder: Builder, cut: Sequence[Window]) -> Reading:
    return _read(builder, REFERENCE, cut)


def _measure(builder: Builder, options: EngineOptions, cut: Sequence[Window], reference: Reading) -> Measured:
    reading = _read(builder, options, cut)
    return Measured(options, builder.computes(options), reading, compare(reading, reference))


def _read(builder: Builder, options: EngineOptions, cut: Sequence[Window]) -> Reading:
    blocks = blocks_for(max(map(len, cut)), BLOCK_SIZE)
    with (
        builder.executor(options, num_blocks=blocks, max_tokens=ROWS, max_rows=ROWS) as executor,
        builder.counting(f"Reading with {builder.computes(options).words}", predicted(cut)) as advance,
    ):
        return read(executor, cut, block_size=BLOCK_SIZE, on_tokens=advance)


def _rows(reference: Reading, measured: Sequence[Measured]) -> list[tuple[str, ...]]:
    rows = [
        ("executor", "quantization", "KV cache", "perplexity", "change", "same best token"),
        ("reference", "none", "f32", f"{reference.perplexity:.4f}", "", ""),
    ]
    for one in measured:
        change = f"{100 * one.change.ratio:+.3f} % ± {100 * one.change.error:.3f}"
        agreement = f"{100 * one.change.agreement:.2f} %"
        weights, kv = one.options.quantization, one.computes.kv_cache_dtype
        rows.append(("cpu", weights, kv, f"{one.reading.perplexity:.4f}", change, agreement))
    return rows


def _figures(name: str, asked: Asked, reference: Reading, measured: Sequence[Measured]) -> dict[str, Any]:
    return {
        "model": name,
        "text": "shipped" if asked.text is None else str(asked.text),
        "window": asked.window,
        "tokens": reference.tokens,
        "reference": {"perplexity": reference.perplexity},
        "rows": [
            {
                "executor": one.computes.executor,
                "isa": one.computes.isa,
                "threads": one.computes.threads,
                "quantization": one.options.quantization,
                "kv_cache_dtype": one.computes.kv_cache_dtype,
                "perplexity": one.reading.perplexity,
                "change_percent": 100 * one.change.ratio,
                "change_error_percent": 100 * one.change.error,
                "same_best_percent": 100 * one.change.agreement,
            }
            for one in measured
        ],
    }
