"""Builds an engine from a configuration. With the command line, the only place that knows all layers.

Knows what a model needs of the memory that there is; knows neither HTTP nor terminals.
"""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from chairlift import executors
from chairlift.cache.prefix import prefix_index
from chairlift.cache.sizing import KVSize, host_blocks, size_pool
from chairlift.core.config import EngineConfig
from chairlift.core.errors import ConfigError, ModelError
from chairlift.core.ports import Executor, Gauge
from chairlift.executors import Computes, Watch, prospect
from chairlift.models import registry
from chairlift.models.description import Model
from chairlift.models.fetch import Progress
from chairlift.models.registry import Sources
from chairlift.options import DEFAULT_SWAP_SPACE, PREEMPTION_MODES, SWAP, EngineOptions
from chairlift.schedule import presets
from chairlift.text import tokenizer as tokenizers
from chairlift.text.template import MAX_TEMPLATE_CHARS, ChatTemplate
from chairlift.text.tokenizer import Tokenizer

KERNELS = "kernels"
"""The folder within the cache where compiled code is kept."""

MAX_TEMPLATE_BYTES = 4 * MAX_TEMPLATE_CHARS
"""More bytes of UTF-8 are too many characters, whichever they are."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How a model fits the machine: the engine's configuration, what computes, and the bytes that all of it takes in memory."""

    config: EngineConfig
    computes: Computes
    kv: KVSize
    weight_bytes: int
    work_bytes: int
    """What a step works in: activations and logits."""
    context: int
    """Tokens that the model was made for; `config.max_model_len` is less if asked for, or if no more fits."""
    free_bytes: int
    """What was free where it computes: in this machine's memory, or in that of a GPU."""
    host_bytes: int = 0
    """Of this machine's memory, for the keys and values of those who are swapped."""

    @property
    def kv_tokens(self) -> int:
        return self.config.num_blocks * self.config.block_size

    @property
    def full_contexts(self) -> float:
        """How many requests of the longest length fit at once."""
        return self.kv.full_contexts(self.config.block_size)

    def apiece(self, count: int) -> str:
        """Bytes for people: "1.2 GiB", or "1.2 GiB a rank" if there are several."""
        return gib(count) if self.computes.ranks == 1 else f"{gib(count)} a rank"


@dataclass(frozen=True)
class Engine:
    """The parts of a loaded model, for an engine client of any application."""

    model: Model
    fit: Fit
    executor: Executor
    tokenizer: Tokenizer
    template: ChatTemplate
    gauge: Gauge | None = None
    """The executor again, as whoever measures it sees it."""


def fit(model: Model, options: EngineOptions, *, free_bytes: int) -> Fit:
    """Sizes the KV cache, in the `free_bytes` of this machine or in the executor's own memory. Nothing of the model is read.

    ConfigError if settings contradict each other, or the machine or the model; ModelError if the weights alone are too large.
    """
    description = model.description
    executor = prospect(model, options)
    needs, place = executor.footprint, executor.room(free_bytes)
    machine_bytes, free_bytes = free_bytes, place.free_bytes
    room = free_bytes - needs.weight_bytes - needs.work_bytes
    if needs.weight_bytes > free_bytes:
        raise ModelError(f"the weights take {gib(needs.weight_bytes)} in memory, but only {gib(free_bytes)} are free")
    if room < 0:
        raise ConfigError(
            f"weights ({gib(needs.weight_bytes)}) and the memory of a step ({gib(needs.work_bytes)}) do not fit into"
            f" {gib(free_bytes)} of free memory: lower max_model_len, max_num_seqs or max_num_batched_tokens"
        )
    kv = size_pool(
        token_bytes=needs.token_bytes,
        block_size=options.block_size,
        max_num_seqs=options.max_num_seqs,
        context=description.context,
        free_bytes=room,
        max_model_len=options.max_model_len,
        kv_bytes=options.kv_cache_memory_bytes,
        share=place.share,
    )
    if kv.kv_bytes > room:
        raise ConfigError(
            f"weights ({gib(needs.weight_bytes)}), the memory of a step ({gib(needs.work_bytes)}) and KV cache"
            f" ({gib(kv.kv_bytes)}) do not fit into {gib(free_bytes)} of free memory: lower kv_cache_memory_bytes"
        )
    host = _host_blocks(options, kv)
    host_bytes = host * (kv.kv_bytes // kv.num_blocks)
    left = machine_bytes // place.ranks if place.apart else room - kv.kv_bytes
    if host_bytes > left:
        raise ConfigError(
            f"a swap space of {gib(host_bytes)} does not fit into the {gib(left)} that are left: lower swap_space"
        )
    config = _config(options, max_model_len=kv.max_model_len, num_blocks=kv.num_blocks, num_host_blocks=host)
    return Fit(config, executor.computes, kv, needs.weight_bytes, needs.work_bytes, description.context, free_bytes, host_bytes)


def resized(fit: Fit, config: EngineConfig) -> Fit:
    """The same model with another configuration, whose pool may be larger. ConfigError if memory is too small for that."""
    block_bytes = fit.kv.kv_bytes // fit.config.num_blocks
    kv = KVSize(config.num_blocks, config.max_model_len, block_bytes * config.num_blocks)
    if fit.weight_bytes + fit.work_bytes + kv.kv_bytes > fit.free_bytes:
        raise ConfigError(
            f"weights ({gib(fit.weight_bytes)}) and a KV cache for {config.max_num_seqs} sequences of {config.max_model_len}"
            f" tokens ({gib(kv.kv_bytes)}) do not fit into {gib(fit.free_bytes)} of free memory"
        )
    return replace(fit, config=config, kv=kv)


def check_options(options: EngineOptions) -> None:
    """ConfigError for settings that cannot work with any model: to be found before one is fetched."""
    executors.check(options)
    _swap_bytes(options)
    least = options.max_model_len or 2
    config = _config(options, max_model_len=least, num_blocks=least)
    presets.preset(config, prefix_index(config.block_size, enabled=config.shares_prefixes))


def _host_blocks(options: EngineOptions, kv: KVSize) -> int:
    swap_bytes = _swap_bytes(options)
    if options.preemption_mode != SWAP:
        return 0
    return host_blocks(kv, block_size=options.block_size, max_num_seqs=options.max_num_seqs, swap_bytes=swap_bytes)


def _swap_bytes(options: EngineOptions) -> int:
    if options.preemption_mode not in PREEMPTION_MODES:
        modes = ", ".join(PREEMPTION_MODES)
        raise ConfigError(f"there is no preemption mode {options.preemption_mode!r:.40}; there are {modes}")
    wanted = options.swap_space
    if wanted is None:
        return int(DEFAULT_SWAP_SPACE * 2**30)
    if not 0 < wanted < math.inf:
        raise ConfigError(f"swap_space must be a number of GiB above 0, not {wanted}")
    if options.preemption_mode != SWAP:
        raise ConfigError(f"swap_space is a setting of preemption_mode {SWAP}, not of {options.preemption_mode}")
    return int(wanted * 2**30)


def _config(options: EngineOptions, *, max_model_len: int, num_blocks: int, num_host_blocks: int = 0) -> EngineConfig:
    known = {field.name for field in fields(EngineConfig)}
    settings: dict[str, Any] = {name: value for name, value in asdict(options).items() if name in known}
    settings |= {"max_model_len": max_model_len, "num_blocks": num_blocks, "num_host_blocks": num_host_blocks}
    settings |= {"depth": executors.depth(options)}
    return EngineConfig(**settings)


def load(spec: str, options: EngineOptions, *, sources: Sources, free_bytes: int, template: str | None = None) -> Engine:
    """Fetches, opens and reads a model, which takes seconds. `template` replaces the model's own chat template.

    Whatever can be refused is refused before the weights are read. Raises ModelError, ConfigError and TemplateError.
    """
    check_options(options)
    model = registry.load(spec, sources)
    if template is not None:
        model = replace(model, tokenizer=replace(model.tokenizer, templates={"default": template}))
    fitted = fit(model, options, free_bytes=free_bytes)
    return build(model, fitted, options, progress=sources.progress, kernels=sources.cache / KERNELS)


def build(
    model: Model,
    fit: Fit,
    options: EngineOptions,
    *,
    progress: Progress,
    kernels: Path | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Engine:
    """Reads the weights and puts the parts together. Raises ModelError, and TemplateError for a broken chat template.

    `kernels` is where compiled code is kept.
    """
    tokenizer, template = speech(model)
    stages = Stages(f"Loading {model.name}", fit.weight_bytes, progress, clock)
    try:
        watch = Watch(on_compile=stages.compiling, on_tensor=stages.loading, on_graph=stages.capturing)
        executor = prospect(model, options).load(fit.config, kernels=kernels, watch=watch)
    finally:
        stages.end()
    return Engine(model, fit, executor, tokenizer, template, executor)


class Stages:
    """Tells the progress of reading the weights, and of compiling and capturing, which may come before or after it."""

    def __init__(self, label: str, total_bytes: int, progress: Progress, clock: Callable[[], float]) -> None:
        self._label, self._total_bytes = label, total_bytes
        self._progress, self._clock = progress, clock
        self._running = False
        self._timed: tuple[str, float] | None = None
        """What is to be said when the stage is done, and when it began."""
        self._told: int | None = None

    def compiling(self) -> None:
        self._begin("Compiling kernels (once)", None, then="Compiled kernels")

    def loading(self, done: int, total: int) -> None:
        """`done` parts out of `total` have been read: the same part of all bytes is told."""
        if self._told is None:
            self._begin(self._label, self._total_bytes)
            self._told = 0
        now = self._total_bytes * done // total
        self._progress.advance(now - self._told)
        self._told = now

    def capturing(self, done: int, total: int) -> None:
        """`done` steps out of `total` have been captured."""
        if done == 0:
            self._begin("Capturing decode steps", None, then=f"Captured decode steps of {total} sizes")
        if done == total:
            self._finish()

    def end(self) -> None:
        """Wherever it has come to."""
        if self._running:
            self._progress.done()
        self._running, self._timed = False, None

    def _begin(self, label: str, total_bytes: int | None, *, then: str | None = None) -> None:
        self._finish()
        self._progress.start(label, total_bytes)
        self._running = True
        if then is not None:
            self._timed = then, self._clock()

    def _finish(self) -> None:
        timed = self._timed
        self.end()
        if timed is not None:
            said, since = timed
            self._progress.notice(f"{said} in {self._clock() - since:.1f} s")


def speech(model: Model) -> tuple[Tokenizer, ChatTemplate]:
    """How the model's tokens are written and its chats are put. Raises ModelError and TemplateError if it is not known."""
    tokenizer = tokenizers.build(model.tokenizer)
    template = ChatTemplate(model.tokenizer, tokenizer)
    template.compile()
    return tokenizer, template


def read_template(path: Path) -> str:
    """A chat template in a file. ConfigError if it cannot be read."""
    try:
        if path.stat().st_size > MAX_TEMPLATE_BYTES:
            raise ConfigError(f"{path}: a chat template may have at most {MAX_TEMPLATE_CHARS} characters")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: a chat template must be UTF-8 text") from None


def gib(count: int) -> str:
    """Bytes for people: "1.2 GiB", "85 MiB"."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
