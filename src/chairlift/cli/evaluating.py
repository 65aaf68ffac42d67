"""Builds the executors that `chairlift evaluate` examines, and shows how far work with them is."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast, get_args

from rich.console import Console

from chairlift import compose, machine
from chairlift.cli.loading import sources, user_console
from chairlift.cli.progress import steps
from chairlift.core.config import DEFAULTS
from chairlift.core.errors import ConfigError, ModelError
from chairlift.evaluate.logits import LogitsExecutor
from chairlift.execute.cpu import native
from chairlift.execute.cpu.executor import CpuExecutor, CpuOptions, check
from chairlift.execute.cpu.isa import choose
from chairlift.execute.cpu.loading import Quantization
from chairlift.execute.cpu.operations import KV_KINDS
from chairlift.execute.reference import ReferenceExecutor
from chairlift.models import registry
from chairlift.models.description import Model
from chairlift.text import tokenizer as tokenizers
from chairlift.text.tokenizer import Tokenizer

BLOCK_SIZE = DEFAULTS.block_size
AUTO = "auto"


class Builder:
    """Builds executors of one model, and counts what is done with them on the user's console."""

    def __init__(self, model: Model, tokenizer: Tokenizer, console: Console, *, kernels: Path) -> None:
        self.model = model
        self._tokenizer = tokenizer
        self._console = console
        self._kernels = kernels

    def tokens(self, text: str) -> list[int]:
        """The text in the model's tokens, without any at its ends."""
        return self._tokenizer.encode(text, add_special_tokens=False)

    @property
    def bos_id(self) -> int | None:
        """What every text of this model begins with, if anything."""
        return self._tokenizer.bos_id if self._tokenizer.adds_bos else None

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
                on_compile=lambda: self._say("Compiling kernels (once)"),
                on_tensor=on_tensor,
            )
        try:
            yield executor
        finally:
            executor.close()

    @contextmanager
    def counting(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        """Shows work of `total` steps of any kind: a bar, or a line where there is no terminal."""
        if not self._console.is_terminal:
            self._say(label)
        with steps(self._console, label, total) as shown:
            yield shown.advance

    @contextmanager
    def _loading(self, label: str) -> Iterator[Callable[[int, int], None]]:
        with self.counting(label, len(self.model.description.layout())) as advance:
            yield lambda done, total: advance(1)  # noqa: ARG005

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


def way(quantization: str, kv_cache_dtype: str, *, threads: int | None, isa: str) -> CpuOptions:
    """How the compiled executor is to compute; the names are checked by `check_names`."""
    return CpuOptions(
        threads=threads,
        isa=None if isa == AUTO else isa,
        quantization=cast("Quantization", quantization),
        kv_cache_dtype=CpuOptions().kv_cache_dtype if kv_cache_dtype == AUTO else kv_cache_dtype,
    )


def check_names(asked: CpuOptions) -> None:
    """ConfigError for what cannot be whatever the model, to be found before one is fetched."""
    for setting, name, known in (
        ("quantization", asked.quantization, get_args(Quantization)),
        ("kv_cache_dtype", asked.kv_cache_dtype, KV_KINDS),
    ):
        if name not in known:
            raise ConfigError(f"{setting} {name!r:.20} is unknown: it may be {', '.join(known)}")
    choose(native.Host.detect().features, asked.isa)


def chosen_isa(wanted: str) -> str:
    """What a wanted instruction set is on this processor."""
    return choose(native.Host.detect().features, None if wanted == AUTO else wanted)


def said(options: CpuOptions) -> str:
    """A way to compute in a few words."""
    threads = [] if options.threads is None else [threads_said(options.threads)]
    return ", ".join([f"weights {options.quantization}", f"KV {options.kv_cache_dtype}", *threads])


def threads_said(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


@contextmanager
def opened(spec: str) -> Iterator[Builder]:
    """The model that a spec names, fetched if need be; closed at the end."""
    console = user_console()
    origin = sources(console)
    model = registry.load(spec, origin)
    try:
        tokenizer = tokenizers.build(model.tokenizer)
        yield Builder(model, tokenizer, console, kernels=origin.cache / "kernels")
    finally:
        model.close()
