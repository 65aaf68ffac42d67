"""Builds the executors that `chairlift evaluate` examines, and shows how far work with them is."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

from rich.console import Console

from chairlift import compose, machine
from chairlift.cli.loading import sources, user_console
from chairlift.cli.progress import steps
from chairlift.core.config import DEFAULTS, EngineConfig
from chairlift.core.errors import ModelError
from chairlift.evaluate.logits import LogitsExecutor
from chairlift.executors import Computes, Watch, prospect
from chairlift.models import registry
from chairlift.models.description import Model
from chairlift.options import EngineOptions
from chairlift.text import tokenizer as tokenizers
from chairlift.text.tokenizer import Tokenizer

BLOCK_SIZE = DEFAULTS.block_size
LOADING = 100
"""Steps in which the loading of weights is shown."""
REFERENCE = EngineOptions(executor="reference", block_size=BLOCK_SIZE)


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

    def computes(self, options: EngineOptions) -> Computes:
        """What the options lead to. ConfigError if the model cannot be run in this way."""
        return prospect(self.model, options).computes

    @contextmanager
    def executor(self, options: EngineOptions, *, num_blocks: int, max_tokens: int, max_rows: int) -> Iterator[LogitsExecutor]:
        """Closed at the end. ModelError if it is too large for the machine."""
        sized = replace(options, max_num_seqs=max_rows, max_num_batched_tokens=max_tokens)
        config = EngineConfig(
            max_model_len=num_blocks * BLOCK_SIZE,
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            max_num_seqs=max_rows,
            max_num_batched_tokens=max_tokens,
        )
        ahead = prospect(self.model, sized)
        needed, free = ahead.footprint.weight_bytes + ahead.footprint.work_bytes, machine.free_memory()
        if needed > free:
            raise ModelError(f"{ahead.computes.words} takes {compose.gib(needed)}, but only {compose.gib(free)} are free")
        with self.counting(f"Loading for {ahead.computes.words}", LOADING) as advance:
            watch = Watch(lambda: self._say("Compiling kernels (once)"), _of(LOADING, advance), lambda _done, _total: None)
            executor = ahead.load(config, kernels=self._kernels, watch=watch)
        try:
            yield cast("LogitsExecutor", executor)
        finally:
            executor.close()

    @contextmanager
    def counting(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        """Shows work of `total` steps of any kind: a bar, or a line where there is no terminal."""
        if not self._console.is_terminal:
            self._say(label)
        with steps(self._console, label, total) as shown:
            yield shown.advance

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


def compiled(quantization: str, kv_cache_dtype: str, *, threads: int | None, isa: str) -> EngineOptions:
    """The compiled executor, computing in this way."""
    return EngineOptions(
        executor="cpu",
        block_size=BLOCK_SIZE,
        threads=threads,
        isa=isa,
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
    )


@contextmanager
def opened(spec: str) -> Iterator[Builder]:
    """The model that a spec names, fetched if need be; closed at the end."""
    console = user_console()
    origin = sources(console)
    model = registry.load(spec, origin)
    try:
        tokenizer = tokenizers.build(model.tokenizer)
        yield Builder(model, tokenizer, console, kernels=origin.cache / compose.KERNELS)
    finally:
        model.close()


def _of(total_steps: int, advance: Callable[[int], None]) -> Callable[[int, int], None]:
    """Tells the progress of `done` out of any `total` as a part of all steps."""
    told = 0

    def on_tensor(done: int, total: int) -> None:
        nonlocal told
        now = total_steps * done // total
        advance(now - told)
        told = now

    return on_tensor
