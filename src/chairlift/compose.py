"""Builds an engine from a configuration. With the command line, the only place that knows all layers.

Knows how much memory there is and what a model needs of it; knows neither HTTP nor terminals.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from chairlift.cache.sizing import KVSize, bytes_per_token, size_pool
from chairlift.core.config import EngineConfig
from chairlift.core.errors import ConfigError, ModelError
from chairlift.core.ports import Executor
from chairlift.execute.reference import ReferenceExecutor
from chairlift.models import registry
from chairlift.models.description import Description, Model
from chairlift.models.fetch import Progress
from chairlift.models.registry import Sources
from chairlift.schedule import presets
from chairlift.text import tokenizer as tokenizers
from chairlift.text.template import ChatTemplate
from chairlift.text.tokenizer import Tokenizer

EXECUTOR = "reference (NumPy, float32)"
FLOAT32_BYTES = 4

MAX_TEMPLATE_BYTES = 256 * 1024
"""A chat template in a file may be this long."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What the user asks of an engine, named as on the command line. None: work it out from model and memory."""

    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    block_size: int = 16
    kv_cache_memory_bytes: int | None = None
    enable_prefix_caching: bool = True
    preset: str = "continuous"
    max_num_queued_reqs: int = 256
    max_num_queued_tokens: int | None = None


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
    tokenizer: Tokenizer
    template: ChatTemplate


def parameter_count(description: Description) -> int:
    """Numbers in all tensors of the model."""
    return sum(_product(shape) for shape in description.layout().values())


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


def check_options(options: EngineOptions) -> None:
    """ConfigError for settings that cannot work with any model: to be found before one is fetched."""
    least = options.max_model_len or 2
    presets.preset(_config(options, max_model_len=least, num_blocks=least))


def _config(options: EngineOptions, *, max_model_len: int, num_blocks: int) -> EngineConfig:
    return EngineConfig(
        max_model_len=max_model_len,
        num_blocks=num_blocks,
        block_size=options.block_size,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_num_queued_reqs=options.max_num_queued_reqs,
        max_num_queued_tokens=options.max_num_queued_tokens,
        enable_prefix_caching=options.enable_prefix_caching,
        preset=options.preset,
    )


def load(spec: str, options: EngineOptions, *, sources: Sources, free_bytes: int, template: str | None = None) -> Engine:
    """Fetches, opens and reads a model, which takes seconds. `template` replaces the model's own chat template.

    Whatever can be refused is refused before the weights are read. Raises ModelError and ConfigError.
    """
    model = registry.load(spec, sources)
    if template is not None:
        model = replace(model, tokenizer=replace(model.tokenizer, templates={"default": template}))
    return build(model, fit(model.description, options, free_bytes=free_bytes), progress=sources.progress)


def build(model: Model, fit: Fit, *, progress: Progress) -> Engine:
    """Reads the weights and puts the parts together."""
    tokenizer = tokenizers.build(model.tokenizer)
    template = ChatTemplate(model.tokenizer, tokenizer)
    progress.start(f"Loading {model.name}", fit.weight_bytes)
    try:
        executor = ReferenceExecutor.load(
            model.description,
            model.weights,
            num_blocks=fit.config.num_blocks,
            block_size=fit.config.block_size,
            on_tensor=_in_bytes(progress, fit.weight_bytes),
        )
    finally:
        progress.done()
    return Engine(model, fit, executor, tokenizer, template)


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
            raise ConfigError(f"{path}: a chat template may have at most {MAX_TEMPLATE_BYTES} bytes")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: a chat template must be UTF-8 text") from None


def gib(count: int) -> str:
    """Bytes for people: "1.2 GiB", "85 MiB"."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


# ── how much memory is free ───────────────────────────────────────────────────────────────────────────────────────────────


def free_memory(root: Path = Path("/")) -> int:
    """Bytes that this process may still take: the machine's free memory, or less if a control group (v1, v2) is tighter.

    `root` is where /proc and /sys are sought. ConfigError if neither can be read.
    """
    available = _meminfo_available(root)
    if available is None:
        raise ConfigError("cannot find out how much memory is free here: /proc/meminfo has no MemAvailable")
    groups = [_group_free(folder, files) for folder, files in _memory_groups(root)]
    return max(0, min([available, *(free for free in groups if free is not None)]))


def _meminfo_available(root: Path) -> int | None:
    for line in _lines(root / "proc/meminfo"):
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None


class _GroupFiles(NamedTuple):
    """Where a control group says its limit and usage, and the name of its dropable file pages in `memory.stat`."""

    limit: str
    usage: str
    reclaimable: str


_V1 = _GroupFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _GroupFiles("memory.max", "memory.current", "inactive_file")


def _memory_groups(root: Path) -> list[tuple[Path, _GroupFiles]]:
    """The folder of every control group above this process, whose limits all hold.

    A container often sees the path of its group as the host names it, but mounted as the root: a folder may be missing.
    """
    found: list[tuple[Path, _GroupFiles]] = []
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, files = root / "sys/fs/cgroup", _V2
        elif "memory" in controllers.split(","):
            base, files = root / "sys/fs/cgroup/memory", _V1
        else:
            continue
        folder = base / path.strip("/")
        chain = [folder, *folder.parents]
        found += [(group, files) for group in chain[: chain.index(base) + 1]]
    return found


def _group_free(folder: Path, files: _GroupFiles) -> int | None:
    """None if the group does not exist or has no limit. File pages that the kernel can drop at once count as free."""
    limits, used = _lines(folder / files.limit), _lines(folder / files.usage)
    if not limits or not used or limits[0] == "max":
        return None
    statistics = dict(line.split(" ", 1) for line in _lines(folder / "memory.stat"))
    return int(limits[0]) - int(used[0]) + int(statistics.get(files.reclaimable, "0"))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").splitlines()
    except OSError:
        return []


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product
