"""`chairlift bench`: measurements. What is measured, and how, is in `chairlift.bench`; here are flags, tables and files."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chairlift.cli import options
from chairlift.core.config import DEFAULTS
from chairlift.models.fetch import DEFAULT_MODEL
from chairlift.options import AUTO, DEFAULT_EXECUTOR

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from chairlift import compose
    from chairlift.bench.engine import Row, Run, Subject, Workload
    from chairlift.core.costs import Limits
    from chairlift.core.ports import Gauge

MAX_SIZE = 1_000_000
"""Largest batch, and most tokens of a prompt or an answer, that can be asked for."""
INPUT_LEN = 128
INTERRUPTED = 130
BUSY_SPREAD = 0.1
"""Limits that differ by more than this part, measured before and after, tell that something else was running."""
_SIZES = re.compile(r"[0-9]{1,7}(,[0-9]{1,7})*")


def sizes(value: str | tuple[int, ...]) -> tuple[int, ...]:
    """Batch sizes as in "1,8,32". BadParameter for anything else."""
    if isinstance(value, tuple):
        return value
    if _SIZES.fullmatch(value.replace(" ", "")) is None:
        raise typer.BadParameter(f"{value!r:.80} is not a list of sizes like 1,8,32")
    found = tuple(int(size) for size in value.split(","))
    if not all(1 <= size <= MAX_SIZE for size in found):
        raise typer.BadParameter(f"{value!r:.80}: sizes go from 1 to {MAX_SIZE:,}")
    return found


def bench(context: dict[str, Any]) -> typer.Typer:
    """The commands below `chairlift bench`. `context` are the settings of every command."""
    app = typer.Typer(
        name="bench",
        help="Measure speed: `bench engine` the engine itself, without HTTP.",
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings=context,
    )
    app.callback()(_group)
    app.command()(engine)
    return app


def _group() -> None:
    pass


def engine(
    model: options.Model = DEFAULT_MODEL,
    batch: Annotated[
        Any, typer.Option(parser=sizes, metavar="LIST", help="How many sequences run at once, one size after another.")
    ] = "1,8,32,64",
    input_len: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_SIZE, metavar="TOKENS", help=f"Tokens of each prompt. Default: {INPUT_LEN}."),
    ] = None,
    output_len: Annotated[int, typer.Option(min=2, max=MAX_SIZE, metavar="TOKENS", help="Tokens of each answer.")] = 64,
    context: Annotated[
        int | None,
        typer.Option(
            parser=options.count,
            metavar="TOKENS",
            help="Fill each sequence to this length before answers are measured, as with --input-len; accepts 32k.",
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option(min=1, max=1000, metavar="N", help="How often all sizes are measured; medians are reported.")
    ] = 1,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Which random tokens prompts are made of.")] = 0,
    max_num_batched_tokens: options.MaxNumBatchedTokens = None,
    block_size: options.BlockSize = DEFAULTS.block_size,
    kv_layout: options.KvLayout = DEFAULTS.kv_layout,
    executor: options.Executor = DEFAULT_EXECUTOR,
    threads: options.Threads = None,
    isa: options.Isa = AUTO,
    quantization: options.Quantization = AUTO,
    kv_cache_dtype: options.KvCacheDtype = AUTO,
    device: options.Device = AUTO,
    dtype: options.Dtype = AUTO,
    attention_backend: options.AttentionBackend = AUTO,
    enforce_eager: options.EnforceEager = False,
    tensor_parallel_size: options.TensorParallelSize = 1,
    async_scheduling: options.AsyncScheduling = None,
    json: options.Json = None,
) -> None:
    """Measure how fast a model runs here, without HTTP.

    For example: chairlift bench engine smollm2 --batch 1,8,32,64 --json result.json

    For each batch size, so many random prompts are read (prefill) and answered together (decode), with scheduling and sampling
    as in the server. The table shows tokens per second of both, the milliseconds of a decode step, what a step has to read and
    compute at least, and which share that is of what this machine was measured to reach in the same run. "handover" is the
    time between two steps in which nothing is computed.

    Run it on an idle machine. Ctrl-C ends it and prints what there is.
    """
    from chairlift import compose, executors
    from chairlift.bench.engine import Workload
    from chairlift.cli.loading import user_console

    if input_len is not None and context is not None:
        raise typer.BadParameter("--context is another way to say --input-len: give one of them")
    length = context if context is not None else input_len if input_len is not None else INPUT_LEN
    workload = Workload(batch, length, output_len, rounds, seed)
    asked = compose.EngineOptions(
        max_model_len=workload.context,
        block_size=block_size,
        kv_layout=kv_layout,
        executor=executor,
        threads=threads,
        isa=isa,
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        device=device,
        dtype=dtype,
        attention_backend=attention_backend,
        enforce_eager=enforce_eager,
        tensor_parallel_size=tensor_parallel_size,
        async_scheduling=async_scheduling,
    )
    rows = max(workload.batches)
    tokens = max_num_batched_tokens and max(max_num_batched_tokens, rows)
    asked = executors.sized(asked, max_num_seqs=rows, max_num_batched_tokens=tokens)
    compose.check_options(asked)
    console = user_console()
    loaded, limits, subject = _prepare(model, asked, workload, console)
    report = Report(model, asked, loaded, subject.gauge, workload, limits)
    try:
        interrupted = measure(subject, workload, report, console)
    finally:
        loaded.executor.close()
    report.show(json)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _prepare(
    spec: str, asked: "compose.EngineOptions", workload: "Workload", console: "Console"
) -> "tuple[compose.Engine, Limits | None, Subject]":
    """Loads the model with room for the largest batch, and measures the machine."""
    from chairlift import compose, machine
    from chairlift.bench.engine import Subject, settings
    from chairlift.cli.loading import sources
    from chairlift.core.errors import ConfigError
    from chairlift.models import registry

    where, free = sources(console), machine.free_memory()
    opened = registry.load(spec, where)
    if workload.context > opened.description.context:
        raise ConfigError(
            f"prompts of {workload.input_len} and answers of {workload.output_len} tokens are {workload.context}:"
            f" {opened.name} was made for {opened.description.context}"
        )
    fitted = compose.fit(opened, asked, free_bytes=free)
    fitted = compose.resized(fitted, settings(fitted.config, workload))
    loaded = compose.build(opened, fitted, asked, progress=where.progress, kernels=where.cache / compose.KERNELS)
    assert loaded.gauge is not None
    try:
        if loaded.gauge.isa is not None:
            console.print("Measuring what this machine can do", markup=False)
        limits = loaded.gauge.limits()
    except BaseException:
        loaded.executor.close()
        raise
    return loaded, limits, Subject(fitted.config, loaded.executor, loaded.gauge, opened.description.vocab)


def measure(subject: "Subject", workload: "Workload", report: "Report", console: "Console") -> bool:
    """Adds every run to the report. True if it was interrupted."""
    import time

    from chairlift.bench.engine import measure as runs
    from chairlift.cli.progress import steps

    with steps(console, "Measuring", workload.tokens) as progress:
        try:
            for run in runs(subject, workload, clock=time.perf_counter, on_tokens=progress.advance):
                report.runs.append(run)
                progress.note(f"round {run.round}, batch {run.batch}: {run.decode.tokens_per_s:,.1f} tokens/s")
            report.limits_afterwards(subject.gauge.limits())
        except KeyboardInterrupt:
            return True
    return False


class Report:
    """What was measured so far, as a table and as JSON."""

    def __init__(
        self,
        model: str,
        asked: "compose.EngineOptions",
        loaded: "compose.Engine",
        gauge: "Gauge",
        workload: "Workload",
        limits: "Limits | None",
    ) -> None:
        self.runs: list[Run] = []
        self._spread: float | None = None
        self._model, self._asked, self._loaded, self._gauge = model, asked, loaded, gauge
        self._workload, self._limits = workload, limits

    def limits_afterwards(self, limits: "Limits | None") -> None:
        """Whoever was disturbed when the limits were measured first was perhaps not disturbed now."""
        if self._limits is not None and limits is not None:
            self._spread = self._limits.spread(limits)
            self._limits = self._limits.best(limits)

    def show(self, json: Path | None) -> None:
        """The table to the terminal, the figures to the file; if that is the terminal, only the figures."""
        from chairlift.bench.engine import rows
        from chairlift.cli.report import write_json

        found = rows(self.runs, self._workload, self._limits)
        if json is not None:
            write_json(json, self._figures(found))
        if json != Path("-"):
            self._print(found)

    def _figures(self, found: "Sequence[Row]") -> dict[str, Any]:
        workload = asdict(self._workload)
        return {
            "machine": self._machine(),
            "model": self._model,
            "quantization": self._loaded.model.quantization,
            "computes": asdict(self._loaded.fit.computes),
            "options": asdict(self._asked) | asdict(self._loaded.fit.config),
            "workload": workload | {"batches": list(workload["batches"])},
            "complete": len(self.runs) == self._workload.rounds * len(self._workload.batches),
            "rows": [asdict(row) | {"rounds": list(row.rounds)} for row in found],
        }

    def _machine(self) -> dict[str, Any]:
        import os
        import platform

        from chairlift import machine

        gauge, limits = self._gauge, self._limits
        return {
            "cpu": machine.cpu_name(),
            "cores": os.cpu_count(),
            "threads": gauge.threads,
            "isa": gauge.isa,
            "system": platform.platform(),
            "python": platform.python_version(),
            "bandwidth_gb_per_s": None if limits is None else limits.read_bytes_per_s / 1e9,
            "int8_gops": None if limits is None else limits.int8_ops_per_s / 1e9,
            "limits_spread": self._spread,
        }

    def _print(self, found: "Sequence[Row]") -> None:
        if not found:
            typer.echo("nothing has been measured yet")
            return
        from rich.console import Console
        from rich.table import Table

        told = self._machine()
        console = Console(highlight=False)
        chosen = "" if told["isa"] is None else f", {told['isa']}, threads: {told['threads']}"
        console.print(f"{told['cpu']}, {told['cores']} cores{chosen}", markup=False, soft_wrap=True)
        if self._limits is not None:
            reached = f"reads {told['bandwidth_gb_per_s']:,.1f} GB/s, computes {told['int8_gops']:,.0f} GOPS on 8-bit integers"
            console.print(f"this machine {reached}", markup=False, soft_wrap=True)
        if self._spread is not None and self._spread > BUSY_SPREAD:
            console.print(f"before and after, that differed by {100 * self._spread:.0f} %: the machine was not idle")
        lengths = f"prompts of {self._workload.input_len} tokens, answers of {self._workload.output_len}"
        computes = f"{self._loaded.fit.computes.words}, {self._loaded.fit.config.kv_layout}"
        console.print(f"{self._model}, {computes}: {lengths}", markup=False, soft_wrap=True)
        table = Table(box=None, pad_edge=False)
        for name in ("batch", "prefill\ntok/s", "decode\ntok/s", "ms a\nstep", "MB a\nstep", "GOP a\nstep"):
            table.add_column(name, justify="right")
        for name in ("share of\nbandwidth", "share of\nint8 rate", "handover\nms"):
            table.add_column(name, justify="right")
        for row in found:
            table.add_row(*_cells(row))
        console.print(table)


def _cells(row: "Row") -> list[str]:
    return [
        str(row.batch),
        f"{row.prefill_tokens_per_s:,.0f}",
        f"{row.decode_tokens_per_s:,.1f}",
        f"{row.decode_ms_per_step:,.2f}",
        f"{row.bytes_per_step / 1e6:,.1f}",
        f"{row.operations_per_step / 1e9:,.2f}",
        _percent(row.bandwidth_share),
        _percent(row.int8_share),
        f"{row.handover_ms:.3f}",
    ]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"
