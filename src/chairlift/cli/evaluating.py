"""Builds the executors that `chairlift evaluate` examines, and reports what came of it."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, cast, get_args

import typer

from chairlift import compose, machine
from chairlift.cli import counting
from chairlift.cli.loading import sources, user_console
from chairlift.cli.report import table, write_json
from chairlift.core.config import DEFAULTS
from chairlift.core.errors import ConfigError, ModelError
from chairlift.evaluate import texts
from chairlift.evaluate.invariance import CIRCUMSTANCES, Report, measure
from chairlift.evaluate.logits import LogitsExecutor, blocks_for
from chairlift.evaluate.perplexity import ROWS, Change, Reading, Window, compare, predicted, read, windows
from chairlift.evaluate.trials import Sizes, draw_trial
from chairlift.execute.cpu import native
from chairlift.execute.cpu.executor import CpuExecutor, CpuOptions, check
from chairlift.execute.cpu.isa import choose
from chairlift.execute.cpu.loading import Quantization
from chairlift.execute.cpu.operations import KV_KINDS
from chairlift.execute.reference import ReferenceExecutor
from chairlift.models import registry
from chairlift.models.description import Model
from chairlift.text import tokenizer as tokenizers

BLOCK_SIZE = DEFAULTS.block_size
AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Accuracy:
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
class Sameness:
    """Everything that the command line says about a check of invariance."""

    model: str
    trials: int
    seed: int
    threads: tuple[int, ...]
    quantization: str
    kv_cache_dtype: str
    isa: str


@dataclass(frozen=True, slots=True)
class Measured:
    """A way to compute, its reading, and how that differs from the reference's."""

    options: CpuOptions
    reading: Reading
    change: Change


class Builder:
    """Builds executors of one model, and counts what is done with them on the user's console."""

    def __init__(self, model: Model, count: counting.Counter, *, kernels: Path) -> None:
        self.model = model
        self._count = count
        self._kernels = kernels

    def tokens(self, text: str) -> list[int]:
        """The text in the model's tokens, without any at its ends."""
        return tokenizers.build(self.model.tokenizer).encode(text, add_special_tokens=False)

    @property
    def bos_id(self) -> int | None:
        """What every text of this model begins with, if anything."""
        tokenizer = tokenizers.build(self.model.tokenizer)
        return tokenizer.bos_id if tokenizer.adds_bos else None

    def check(self, options: CpuOptions) -> None:
        """ConfigError if the model cannot be run in this way."""
        check(self.model.description, block_size=BLOCK_SIZE, options=options)

    @contextmanager
    def reference(self, *, num_blocks: int) -> Iterator[LogitsExecutor]:
        """ModelError if its weights, in float32, are too large for the machine."""
        needed, free = compose.parameter_count(self.model.description) * compose.FLOAT32_BYTES, machine.free_memory()
        if needed > free:
            raise ModelError(f"the reference takes {compose.gib(needed)} in memory, but only {compose.gib(free)} are free")
        with self._loading("Loading the reference") as on_tensor:
            executor = ReferenceExecutor.load(
                self.model.description, self.model.weights, num_blocks=num_blocks, block_size=BLOCK_SIZE, on_tensor=on_tensor
            )
        yield executor

    @contextmanager
    def compiled(self, options: CpuOptions, *, num_blocks: int, max_tokens: int, max_rows: int) -> Iterator[LogitsExecutor]:
        with self._loading(f"Loading: {said(options)}") as on_tensor:
            executor = CpuExecutor.load(
                self.model.description,
                self.model.weights,
                num_blocks=num_blocks,
                block_size=BLOCK_SIZE,
                max_tokens=max_tokens,
                max_rows=max_rows,
                options=options,
                cache=self._kernels,
                on_compile=lambda: self._count.notice("Compiling kernels (once)"),
                on_tensor=on_tensor,
            )
        try:
            yield executor
        finally:
            executor.close()

    @contextmanager
    def counting(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        self._count.start(label, total)
        try:
            yield self._count.advance
        finally:
            self._count.done()

    @contextmanager
    def _loading(self, label: str) -> Iterator[Callable[[int, int], None]]:
        with self.counting(label, len(self.model.description.layout())) as advance:
            yield lambda done, total: advance(1)  # noqa: ARG005


def _options(quantization: str, kv_cache_dtype: str, *, threads: int | None, isa: str) -> CpuOptions:
    return CpuOptions(
        threads=threads,
        isa=None if isa == AUTO else isa,
        quantization=cast("Quantization", quantization),
        kv_cache_dtype=CpuOptions().kv_cache_dtype if kv_cache_dtype == AUTO else kv_cache_dtype,
    )


def _check_names(options: CpuOptions) -> None:
    """ConfigError for what cannot be whatever the model, to be found before one is fetched."""
    for setting, name, known in (
        ("quantization", options.quantization, get_args(Quantization)),
        ("kv_cache_dtype", options.kv_cache_dtype, KV_KINDS),
    ):
        if name not in known:
            raise ConfigError(f"{setting} {name!r:.20} is unknown: it may be {', '.join(known)}")
    choose(native.Host.detect().features, options.isa)


def _isa(wanted: str) -> str:
    return choose(native.Host.detect().features, None if wanted == AUTO else wanted)


def said(options: CpuOptions) -> str:
    """A way to compute in a few words."""
    threads = [] if options.threads is None else [_threads(options.threads)]
    return ", ".join([f"weights {options.quantization}", f"KV {options.kv_cache_dtype}", *threads])


@contextmanager
def opened(spec: str) -> Iterator[Builder]:
    """The model that a spec names, fetched if need be; closed at the end."""
    console = user_console()
    origin = sources(console)
    model = registry.load(spec, origin)
    try:
        yield Builder(model, counting.counter(console), kernels=origin.cache / "kernels")
    finally:
        model.close()


# ── perplexity ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def perplexity(asked: Accuracy, json: Path | None) -> None:
    """Reads the text with the reference, then with every way to compute that was asked for, and reports."""
    text = texts.shipped() if asked.text is None else texts.read(asked.text)
    ways = _ways(asked)
    for way in ways:
        _check_names(way)
    with opened(asked.model) as builder:
        for way in ways:
            builder.check(way)
        cut = _windows(asked, builder, text)
        reference = _reference(builder, cut)
        measured = [_measure(builder, way, cut, reference) for way in ways]
        name = builder.model.name
    if json is not None:
        write_json(json, _accuracy_figures(name, asked, reference, measured))
    if json != Path("-"):
        typer.echo(f"{name}: {reference.tokens:,} tokens predicted, in windows of {asked.window:,}")
        for line in table(_accuracy_rows(reference, measured)):
            typer.echo(line)


def _ways(asked: Accuracy) -> list[CpuOptions]:
    return [
        _options(quantization, kind, threads=asked.threads, isa=asked.isa)
        for quantization, kind in product(asked.quantizations, asked.kv_cache_dtypes)
    ]


def _windows(asked: Accuracy, builder: Builder, text: str) -> list[Window]:
    context = builder.model.description.context
    if asked.window > context:
        raise ConfigError(f"a window of {asked.window} is more than the {context} tokens that the model was made for")
    cut = windows(builder.tokens(text)[: asked.tokens], size=asked.window, bos_id=builder.bos_id)
    if not cut:
        raise ConfigError("the text has no token that could be predicted")
    return cut


def _reference(builder: Builder, cut: Sequence[Window]) -> Reading:
    with (
        builder.reference(num_blocks=_blocks(cut)) as executor,
        builder.counting("Reading with the float32 reference", predicted(cut)) as advance,
    ):
        return read(executor, cut, block_size=BLOCK_SIZE, on_tokens=advance)


def _measure(builder: Builder, way: CpuOptions, cut: Sequence[Window], reference: Reading) -> Measured:
    with (
        builder.compiled(way, num_blocks=_blocks(cut), max_tokens=ROWS, max_rows=ROWS) as executor,
        builder.counting(f"Reading with {said(way)}", predicted(cut)) as advance,
    ):
        reading = read(executor, cut, block_size=BLOCK_SIZE, on_tokens=advance)
    return Measured(way, reading, compare(reading, reference))


def _blocks(cut: Sequence[Window]) -> int:
    return blocks_for(max(map(len, cut)), BLOCK_SIZE)


def _accuracy_rows(reference: Reading, measured: Sequence[Measured]) -> list[tuple[str, ...]]:
    rows = [
        ("executor", "quantization", "KV cache", "perplexity", "change", "same best token"),
        ("reference", "none", "f32", f"{reference.perplexity:.4f}", "", ""),
    ]
    for one in measured:
        change = f"{100 * one.change.ratio:+.3f} % ± {100 * one.change.error:.3f}"
        agreement = f"{100 * one.change.agreement:.2f} %"
        options = one.options
        rows.append(("cpu", options.quantization, options.kv_cache_dtype, f"{one.reading.perplexity:.4f}", change, agreement))
    return rows


def _accuracy_figures(name: str, asked: Accuracy, reference: Reading, measured: Sequence[Measured]) -> dict[str, Any]:
    return {
        "model": name,
        "text": "shipped" if asked.text is None else str(asked.text),
        "window": asked.window,
        "tokens": reference.tokens,
        "isa": _isa(asked.isa),
        "reference": {"perplexity": reference.perplexity},
        "rows": [
            {
                "executor": "cpu",
                "quantization": one.options.quantization,
                "kv_cache_dtype": one.options.kv_cache_dtype,
                "perplexity": one.reading.perplexity,
                "change_percent": 100 * one.change.ratio,
                "change_error_percent": 100 * one.change.error,
                "same_best_percent": 100 * one.change.agreement,
            }
            for one in measured
        ],
    }


# ── invariance ────────────────────────────────────────────────────────────────────────────────────────────────────────────

EVERY_LONG = 4
"""One trial in so many has a long prompt, as they take long."""


def invariance(asked: Sameness, json: Path | None) -> None:
    """Runs the trials and reports. Ends the command with 1 if any logits differed."""
    ways = {_threads(count): _way(asked, count) for count in asked.threads}
    for way in ways.values():
        _check_names(way)
    with opened(asked.model) as builder:
        sizes = Sizes(block_size=BLOCK_SIZE).within(builder.model.description.context)
        for way in ways.values():
            builder.check(way)
        tell(builder.model.name, asked, _run_trials(builder, asked, ways, sizes), json)


def tell(name: str, asked: Sameness, report: Report, json: Path | None) -> None:
    """Reports for people and programs. Raises Exit with 1, after the first difference in one line, if there is any."""
    if json is not None:
        write_json(json, _sameness_figures(name, asked, report))
    if json != Path("-"):
        typer.echo(f"{name}: {asked.trials} trials of seed {asked.seed}, compared bit by bit with each request alone")
        for line in table(_sameness_rows(report)):
            typer.echo(line)
    if report.differences:
        typer.echo(f"error: {report.differences[0]}", err=True)
        raise typer.Exit(1)


def _run_trials(builder: Builder, asked: Sameness, ways: Mapping[str, CpuOptions], sizes: Sizes) -> Report:
    text = builder.tokens(texts.shipped())
    random = Random(asked.seed)  # noqa: S311
    trials = (draw_trial(random, text, sizes, long=number % EVERY_LONG == 0) for number in range(asked.trials))
    with ExitStack() as stack:
        executors = {
            name: stack.enter_context(
                builder.compiled(way, num_blocks=sizes.num_blocks, max_tokens=sizes.max_tokens, max_rows=sizes.requests)
            )
            for name, way in ways.items()
        }
        advance = stack.enter_context(builder.counting("Trials", asked.trials))
        return measure(trials, executors, on_trial=lambda: advance(1))


def _way(asked: Sameness, threads: int) -> CpuOptions:
    return _options(asked.quantization, asked.kv_cache_dtype, threads=threads, isa=asked.isa)


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def _sameness_rows(report: Report) -> list[tuple[str, ...]]:
    names = list(report.met)
    wrong = Counter(difference.executor for difference in report.differences)
    return [
        ("", *names),
        ("logits compared", *(f"{report.compared[name]:,}" for name in names)),
        *((f"  {one}", *(f"{report.met[name][one]:,}" for name in names)) for one in CIRCUMSTANCES),
        ("different", *(f"{wrong[name]:,}" for name in names)),
    ]


def _sameness_figures(name: str, asked: Sameness, report: Report) -> dict[str, Any]:
    return {
        "model": name,
        "isa": _isa(asked.isa),
        "quantization": asked.quantization,
        "kv_cache_dtype": _way(asked, 1).kv_cache_dtype,
        "trials": asked.trials,
        "seed": asked.seed,
        "executors": [
            {"name": one, "compared": report.compared[one], "circumstances": {each: met[each] for each in CIRCUMSTANCES}}
            for one, met in report.met.items()
        ],
        "differences": [str(difference) for difference in report.differences],
    }
