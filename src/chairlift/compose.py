"""Builds an engine from a configuration. With the command line, the only place that knows all layers.

Knows what a model needs of the memory that there is; knows neither HTTP nor terminals.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chairlift.cache.sizing import KVSize, bytes_per_token, size_pool
from chairlift.core.config import DEFAULTS, EngineConfig
from chairlift.core.errors import ConfigError, ModelError
from chairlift.core.ports import Executor, Gauge
from chairlift.execute.reference import ReferenceExecutor
from chairlift.models import registry
from chairlift.models.description import Description, Model
from chairlift.models.fetch import Progress
from chairlift.models.registry import Sources
from chairlift.schedule import presets
from chairlift.text import tokenizer as tokenizers
from chairlift.text.template import MAX_TEMPLATE_CHARS, ChatTemplate
from chairlift.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from chairlift.execute.cpu.executor import CpuExecutor

EXECUTORS: Mapping[str, str] = {
    "reference": "reference (NumPy, float32)",
    "cpu": "cpu (machine code, 8-bit activations)",
}
"""What computes, by the names of `--executor`."""
FLOAT32_BYTES = 4

MAX_TEMPLATE_BYTES = 4 * MAX_TEMPLATE_CHARS
"""More bytes of UTF-8 are too many characters, whichever they are."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What the user asks of an engine. The first two are worked out from model and memory where they are None.

    All others are settings of `EngineConfig`, and stand here under its names.
    """

    max_model_len: int | None = None
    kv_cache_memory_bytes: int | None = None
    block_size: int = DEFAULTS.block_size
    max_num_seqs: int = DEFAULTS.max_num_seqs
    max_num_batched_tokens: int = DEFAULTS.max_num_batched_tokens
    max_num_queued_reqs: int = DEFAULTS.max_num_queued_reqs
    max_num_queued_tokens: int | None = DEFAULTS.max_num_queued_tokens
    enable_prefix_caching: bool = DEFAULTS.enable_prefix_caching
    preset: str = DEFAULTS.preset
    batch_wait_s: float = DEFAULTS.batch_wait_s
    executor: str = "reference"
    threads: int | None = None
    """Of the executor `cpu`; the other one leaves it to NumPy."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How a model fits the machine: the engine's configuration, and the bytes that weights and KV cache take in memory."""

    config: EngineConfig
    kv: KVSize
    weight_bytes: int
    context: int
    """Tokens that the model was made for; `config.max_model_len` is less if asked for, or if no more fits."""

    @property
    def kv_tokens(self) -> int:
        return self.config.num_blocks * self.config.block_size

    @property
    def full_contexts(self) -> float:
        """How many requests of the longest length fit at once."""
        return self.kv.full_contexts(self.config.block_size)


@dataclass(frozen=True)
class Engine:
    """The parts of a loaded model, for an engine client of any application."""

    model: Model
    fit: Fit
    executor: Executor
    computes: str
    """The executor in words."""
    tokenizer: Tokenizer
    template: ChatTemplate
    gauge: Gauge | None = None
    """The executor again, as whoever measures it sees it."""


def parameter_count(description: Description) -> int:
    """Numbers in all tensors of the model."""
    return sum(math.prod(shape) for shape in description.layout().values())


def fit(description: Description, options: EngineOptions, *, free_bytes: int) -> Fit:
    """Sizes the KV cache. ConfigError if settings contradict each other, ModelError if the weights alone are too large."""
    weight_bytes = parameter_count(description) * FLOAT32_BYTES
    if weight_bytes > free_bytes:
        raise ModelError(f"the weights take {gib(weight_bytes)} in memory, but only {gib(free_bytes)} are free")
    token_bytes = bytes_per_token(
        layers=len(description.layers),
        kv_heads=description.kv_heads,
        head_dim=description.head_dim,
        itemsize=FLOAT32_BYTES,
    )
    kv = size_pool(
        token_bytes=token_bytes,
        block_size=options.block_size,
        max_num_seqs=options.max_num_seqs,
        context=description.context,
        free_bytes=free_bytes - weight_bytes,
        max_model_len=options.max_model_len,
        kv_bytes=options.kv_cache_memory_bytes,
    )
    if weight_bytes + kv.kv_bytes > free_bytes:
        raise ConfigError(
            f"weights ({gib(weight_bytes)}) and KV cache ({gib(kv.kv_bytes)}) do not fit into {gib(free_bytes)} of free"
            " memory: lower kv_cache_memory_bytes"
        )
    config = _config(options, max_model_len=kv.max_model_len, num_blocks=kv.num_blocks)
    return Fit(config, kv, weight_bytes, description.context)


def resized(fit: Fit, config: EngineConfig, *, free_bytes: int) -> Fit:
    """The same model with another configuration, whose pool may be larger. ConfigError if memory is too small for that."""
    block_bytes = fit.kv.kv_bytes // fit.config.num_blocks
    kv = KVSize(config.num_blocks, config.max_model_len, block_bytes * config.num_blocks)
    if fit.weight_bytes + kv.kv_bytes > free_bytes:
        raise ConfigError(
            f"weights ({gib(fit.weight_bytes)}) and a KV cache for {config.max_num_seqs} sequences of {config.max_model_len}"
            f" tokens ({gib(kv.kv_bytes)}) do not fit into {gib(free_bytes)} of free memory"
        )
    return replace(fit, config=config, kv=kv)


def check_options(options: EngineOptions) -> None:
    """ConfigError for settings that cannot work with any model: to be found before one is fetched."""
    if options.executor not in EXECUTORS:
        raise ConfigError(f"there is no executor {options.executor!r}; there are {', '.join(EXECUTORS)}")
    if options.threads is not None and options.executor != "cpu":
        raise ConfigError(f"threads are a setting of the executor cpu, not of {options.executor}")
    least = options.max_model_len or 2
    presets.preset(_config(options, max_model_len=least, num_blocks=least))


def _config(options: EngineOptions, *, max_model_len: int, num_blocks: int) -> EngineConfig:
    known = {field.name for field in fields(EngineConfig)}
    settings: dict[str, Any] = {name: value for name, value in asdict(options).items() if name in known}
    settings |= {"max_model_len": max_model_len, "num_blocks": num_blocks}
    return EngineConfig(**settings)


def load(spec: str, options: EngineOptions, *, sources: Sources, free_bytes: int, template: str | None = None) -> Engine:
    """Fetches, opens and reads a model, which takes seconds. `template` replaces the model's own chat template.

    Whatever can be refused is refused before the weights are read. Raises ModelError, ConfigError and TemplateError.
    """
    model = registry.load(spec, sources)
    if template is not None:
        model = replace(model, tokenizer=replace(model.tokenizer, templates={"default": template}))
    fitted = fit(model.description, options, free_bytes=free_bytes)
    return build(model, fitted, options, progress=sources.progress, kernels=sources.cache / "kernels")


def build(model: Model, fit: Fit, options: EngineOptions, *, progress: Progress, kernels: Path | None = None) -> Engine:
    """Reads the weights and puts the parts together. Raises ModelError, and TemplateError for a broken chat template.

    `kernels` is where compiled code is kept.
    """
    tokenizer, template = speech(model)
    progress.start(f"Loading {model.name}", fit.weight_bytes)
    try:
        executor = _executor(model, fit.config, options, kernels, _in_bytes(progress, fit.weight_bytes))
    finally:
        progress.done()
    return Engine(model, fit, executor, EXECUTORS[options.executor], tokenizer, template, executor)


def _executor(
    model: Model, config: EngineConfig, options: EngineOptions, kernels: Path | None, on_tensor: Callable[[int, int], None]
) -> "ReferenceExecutor | CpuExecutor":
    if options.executor == "reference":
        return ReferenceExecutor.load(
            model.description,
            model.weights,
            num_blocks=config.num_blocks,
            block_size=config.block_size,
            on_tensor=on_tensor,
        )
    from chairlift.execute.cpu.executor import CpuExecutor, CpuOptions  # LLVM takes a moment to load

    return CpuExecutor.load(
        model.description,
        model.weights,
        num_blocks=config.num_blocks,
        block_size=config.block_size,
        max_tokens=config.max_num_batched_tokens,
        max_rows=config.max_num_seqs,
        options=CpuOptions(threads=options.threads),
        cache=kernels,
        on_tensor=on_tensor,
    )


def speech(model: Model) -> tuple[Tokenizer, ChatTemplate]:
    """How the model's tokens are written and its chats are put. Raises ModelError and TemplateError if it is not known."""
    tokenizer = tokenizers.build(model.tokenizer)
    template = ChatTemplate(model.tokenizer, tokenizer)
    template.compile()
    return tokenizer, template


def _in_bytes(progress: Progress, total_bytes: int) -> Callable[[int, int], None]:
    """Tells the progress of `done` tensors out of `total` as a part of all bytes."""
    told = 0

    def on_tensor(done: int, total: int) -> None:
        nonlocal told
        now = total_bytes * done // total
        progress.advance(now - told)
        told = now

    return on_tensor


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
