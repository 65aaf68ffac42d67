"""The executors by the names of `--executor`: what each can be asked for, what it takes of the memory, how it is made.

Knows how they differ; knows nothing of how much memory there is, nor of tokenizers.
"""

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from chairlift.cache.sizing import DEFAULT_SHARE, bytes_per_token
from chairlift.core.config import DEFAULTS, EngineConfig
from chairlift.core.errors import ConfigError
from chairlift.core.ports import GaugedExecutor
from chairlift.execute.footprint import Footprint
from chairlift.execute.reference import ReferenceExecutor
from chairlift.models.description import Description, Model
from chairlift.options import AUTO, SWAP, EngineOptions

if TYPE_CHECKING:
    from chairlift.execute.cpu.options import CpuOptions
    from chairlift.execute.torch.parallel.channel import Sizes

FLOAT32_BYTES = 4
FLOAT_TYPES = ("F32", "F16", "BF16")
"""Types of file that are no integers."""


@dataclass(frozen=True, slots=True)
class Computes:
    """What computes, and how, with nothing left open. What an executor leaves to a library is empty here."""

    executor: str
    weights: str
    """In words: the form in which they are computed."""
    kv_cache_dtype: str
    isa: str | None = None
    threads: int | None = None
    device: str | None = None
    """Where the tensors are, if not in the machine's own memory by nature."""
    kernels: str | None = None
    """In words: which implementations were chosen, and why."""
    ranks: int = 1
    """Processes that compute every step together. All sizes in memory are those of one."""
    transport: str | None = None
    """How they are connected, if there are several."""

    @property
    def words(self) -> str:
        """As in "cpu: avx2, 2 threads, weights as the file holds them, KV f16"."""
        threads = None if self.threads is None else "1 thread" if self.threads == 1 else f"{self.threads} threads"
        ranks = None if self.ranks == 1 else f"{self.ranks} ranks ({self.transport})"
        parts = (ranks, self.device, self.isa, threads, f"weights {self.weights}", f"KV {self.kv_cache_dtype}", self.kernels)
        return f"{self.executor}: " + ", ".join(part for part in parts if part)

    @property
    def arithmetic(self) -> tuple[str, ...]:
        """What the logits depend on."""
        ranks = None if self.ranks == 1 else str(self.ranks)
        chosen = (self.device, self.kernels, ranks)
        return (self.executor, self.weights, self.kv_cache_dtype, *(part for part in chosen if part is not None))


@dataclass(frozen=True, slots=True)
class Watch:
    """Who is told while an executor is made: that it is compiled, how much of the weights is there, and of captured steps."""

    on_compile: Callable[[], None]
    on_tensor: Callable[[int, int], None]
    on_graph: Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Room:
    """Memory that an executor computes in, and which part of what weights leave of it is for keys and values by default."""

    free_bytes: int
    share: float = DEFAULT_SHARE
    apart: bool = False
    """It is not the machine's own, in which nothing else is then taken."""
    ranks: int = 1
    """Each has so much room to itself; what it takes of the machine's own memory, each takes as well."""


class Batch(NamedTuple):
    """What a step holds at most if nobody says: enough to keep what computes busy, and no more, as everyone waits for it."""

    seqs: int = DEFAULTS.max_num_seqs
    tokens: int = DEFAULTS.max_num_batched_tokens


class Prospect(Protocol):
    """An executor for a certain model, before any tensor is read."""

    @property
    def computes(self) -> Computes: ...
    @property
    def footprint(self) -> Footprint: ...
    def room(self, free_bytes: int) -> Room:
        """Where it computes; this machine has so many bytes free."""
        ...

    def load(self, config: EngineConfig, *, kernels: Path | None, watch: Watch) -> GaugedExecutor:
        """Reads the weights. Compiled code is kept in the folder `kernels`."""
        ...


def parameter_count(description: Description) -> int:
    """Numbers in all tensors of the model."""
    return sum(math.prod(shape) for shape in description.layout().values())


# ── reference ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Reference:
    """Everything in float32."""

    model: Model
    options: EngineOptions

    @property
    def computes(self) -> Computes:
        return Computes("reference", "in float32 (NumPy)", "f32")

    @property
    def footprint(self) -> Footprint:
        description = self.model.description
        token_bytes = bytes_per_token(
            layers=len(description.layers),
            kv_heads=description.kv_heads,
            head_dim=description.head_dim,
            itemsize=FLOAT32_BYTES,
        )
        logits = self.options.max_num_seqs * description.vocab * FLOAT32_BYTES
        return Footprint(parameter_count(description) * FLOAT32_BYTES, token_bytes, logits)

    def room(self, free_bytes: int) -> Room:
        return Room(free_bytes)

    def load(self, config: EngineConfig, *, kernels: Path | None, watch: Watch) -> GaugedExecutor:  # noqa: ARG002  (it has none)
        watch.on_tensor(0, 1)
        return ReferenceExecutor.load(
            self.model.description,
            self.model.weights,
            num_blocks=config.num_blocks,
            block_size=config.block_size,
            contiguous=config.kv_layout == "contiguous",
            num_host_blocks=config.num_host_blocks,
            on_tensor=watch.on_tensor,
        )


def _check_reference(options: EngineOptions) -> None:
    _check_owners(options, "reference")


# ── cpu ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────
# The imports wait until they are needed, as LLVM takes a moment to load.


class _Cpu:
    """Machine code."""

    def __init__(self, model: Model, options: EngineOptions) -> None:
        from chairlift.execute.cpu import executor, native

        self._model, self._options, self._wanted = model, options, _cpu_options(options)
        executor.check(model.description, block_size=options.block_size, options=self._wanted)
        self._choice = executor.decide(self._wanted, native.Host.detect())

    @property
    def computes(self) -> Computes:
        choice = self._choice
        rounded = choice.quantization == AUTO and self._model.quantization in FLOAT_TYPES
        weights = _IN_WORDS["int8" if rounded else choice.quantization]
        return Computes("cpu", weights, choice.kv, choice.isa, choice.threads)

    @property
    def footprint(self) -> Footprint:
        from chairlift.execute.cpu.sizing import footprint

        options = self._options
        return footprint(
            self._model.description,
            self._model.weights,
            self._choice,
            block_size=options.block_size,
            max_tokens=options.max_num_batched_tokens,
            max_rows=options.max_num_seqs,
        )

    def room(self, free_bytes: int) -> Room:
        return Room(free_bytes)

    def load(self, config: EngineConfig, *, kernels: Path | None, watch: Watch) -> GaugedExecutor:
        from chairlift.execute.cpu.executor import CpuExecutor

        return CpuExecutor.load(
            self._model.description,
            self._model.weights,
            num_blocks=config.num_blocks,
            block_size=config.block_size,
            max_tokens=config.max_num_batched_tokens,
            max_rows=config.max_num_seqs,
            options=self._wanted,
            cache=kernels,
            on_compile=watch.on_compile,
            on_tensor=watch.on_tensor,
            contiguous=config.kv_layout == "contiguous",
            num_host_blocks=config.num_host_blocks,
        )


def _check_cpu(options: EngineOptions) -> None:
    from chairlift.execute.cpu.options import check_block_size, check_names

    _check_owners(options, "cpu")
    check_names(_cpu_options(options))
    check_block_size(options.block_size)


def _cpu_options(options: EngineOptions) -> "CpuOptions":
    from chairlift.execute.cpu.options import CpuOptions

    return CpuOptions(options.threads, options.isa, options.quantization, options.kv_cache_dtype)


_IN_WORDS = {"auto": "as the file holds them", "int8": "in 8 bits", "int4": "in 4 bits", "none": "as floating-point numbers"}


# ── torch ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────
# An extra, which need not be installed: nothing of it is imported before it is asked for.

GPU_BATCH = Batch(seqs=256, tokens=2048)
"""A guess until there are measurements: weights are read once for all rows, and only hundreds of them are work for a GPU."""


class _Torch:
    """PyTorch, on a GPU or on the CPU."""

    def __init__(self, model: Model, options: EngineOptions) -> None:
        from chairlift.execute.torch import options as torch_options

        self._model, self._options = model, options
        self._ranks = options.tensor_parallel_size
        self._choice = torch_options.resolve(
            options.device,
            options.dtype,
            options.attention_backend,
            enforce_eager=options.enforce_eager,
            head_dim=model.description.head_dim,
            ranks=self._ranks,
        )

    @property
    def computes(self) -> Computes:
        choice = self._choice
        return Computes(
            "torch",
            f"in {choice.dtype_name}",
            choice.kv,
            device=choice.device.words,
            kernels=choice.kernels(self._options.max_num_seqs),
            ranks=self._ranks,
            transport=None if self._ranks == 1 else choice.device.transport,
        )

    @property
    def footprint(self) -> Footprint:
        from chairlift.execute.torch.sizing import footprint

        options, description = self._options, self._model.description
        return footprint(
            description,
            self._choice,
            max_tokens=options.max_num_batched_tokens,
            max_rows=options.max_num_seqs,
            longest=options.max_model_len or description.context,
            block_size=options.block_size,
            swaps=options.preemption_mode == SWAP,
            ranks=self._ranks,
        )

    def room(self, free_bytes: int) -> Room:
        from chairlift.execute.torch.parallel.executor import least_free_bytes
        from chairlift.execute.torch.sizing import DEVICE_SHARE

        own = least_free_bytes(self._choice.device, self._ranks)
        if own is None:
            return Room(free_bytes // self._ranks, ranks=self._ranks)
        return Room(own, DEVICE_SHARE, apart=True, ranks=self._ranks)

    def load(self, config: EngineConfig, *, kernels: Path | None, watch: Watch) -> GaugedExecutor:  # noqa: ARG002  (Triton has its own)
        from chairlift.execute.torch.executor import TorchExecutor
        from chairlift.execute.torch.parallel.executor import ParallelExecutor

        watch.on_tensor(0, 1)
        sizes: Sizes = {
            "num_blocks": config.num_blocks,
            "block_size": config.block_size,
            "max_tokens": config.max_num_batched_tokens,
            "max_rows": config.max_num_seqs,
            "max_model_len": config.max_model_len,
            "num_host_blocks": config.num_host_blocks,
        }
        model, choice = self._model, self._choice
        if self._ranks > 1:
            return ParallelExecutor.load(
                model,
                choice=choice,
                size=self._ranks,
                sizes=sizes,
                on_tensor=watch.on_tensor,
                on_compile=watch.on_compile,
            )
        executor = TorchExecutor.load(model.description, model.weights, choice=choice, on_tensor=watch.on_tensor, **sizes)
        executor.prepare(choice, on_compile=watch.on_compile, on_graph=watch.on_graph)
        return executor


def _check_torch(options: EngineOptions) -> None:
    _check_owners(options, "torch")
    if find_spec("torch") is None:
        raise ConfigError(f"the executor torch needs the extra gpu: {sys.executable} -m pip install 'chairlift[gpu]'")
    if options.tensor_parallel_size < 1:
        raise ConfigError(f"tensor_parallel_size must be at least 1, not {options.tensor_parallel_size}")
    from chairlift.execute.torch import options as torch_options

    choice = torch_options.resolve(
        options.device, options.dtype, options.attention_backend, enforce_eager=options.enforce_eager
    )
    choice.device.ranks(options.tensor_parallel_size)


def _torch_overlaps(options: EngineOptions) -> bool:
    from chairlift.execute.torch.device import Device

    return Device.pick(options.device).overlaps


def _torch_batch(options: EngineOptions) -> Batch:
    from chairlift.execute.torch.device import Device

    device = Device.pick(options.device)
    return Batch() if device.capability is None else GPU_BATCH


# ── all of them ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Kind:
    """One sort of executor. `check` refuses, with a ConfigError, what it cannot be asked for whatever the model."""

    check: Callable[[EngineOptions], None]
    prospect: Callable[[Model, EngineOptions], Prospect]
    depth: int = 1
    """Steps that it can have in flight."""
    overlaps: Callable[[EngineOptions], bool] = lambda _: True
    """Whether having them in flight saves any time."""
    batch: Callable[[EngineOptions], Batch] = lambda _: Batch()


EXECUTORS: Mapping[str, Kind] = MappingProxyType(
    {
        "cpu": Kind(_check_cpu, _Cpu),
        "torch": Kind(_check_torch, _Torch, depth=2, overlaps=_torch_overlaps, batch=_torch_batch),
        "reference": Kind(_check_reference, _Reference),
    },
)

_OWNERS = {
    "cpu": ("threads", "isa", "quantization", "kv_cache_dtype"),
    "torch": ("device", "dtype", "attention_backend", "enforce_eager", "tensor_parallel_size"),
}
"""Settings that only one executor has."""


def check(options: EngineOptions) -> None:
    """ConfigError for what the executor cannot be asked for, whatever the model."""
    if options.executor not in EXECUTORS:
        raise ConfigError(f"there is no executor {options.executor!r:.40}; there are {', '.join(EXECUTORS)}")
    EXECUTORS[options.executor].check(options)
    if options.async_scheduling and EXECUTORS[options.executor].depth == 1:
        raise ConfigError(f"async_scheduling: the executor {options.executor} computes one step at a time")


def depth(options: EngineOptions) -> int:
    """Steps in flight: as many as the executor can have, if that is wanted or, where nobody says, of use."""
    kind = EXECUTORS[options.executor]
    if kind.depth == 1 or options.async_scheduling is False:
        return 1
    return kind.depth if options.async_scheduling or kind.overlaps(options) else 1


def sized(
    options: EngineOptions, *, max_num_seqs: int | None = None, max_num_batched_tokens: int | None = None
) -> EngineOptions:
    """With these limits of a step, and where they are None with what suits the executor. Raises as `check`.

    Every running request needs a token: what nobody asked for gives way to what somebody did.
    """
    check(options)
    batch = EXECUTORS[options.executor].batch(options)
    seqs = min(batch.seqs, max_num_batched_tokens or batch.tokens) if max_num_seqs is None else max_num_seqs
    tokens = max(batch.tokens, seqs) if max_num_batched_tokens is None else max_num_batched_tokens
    return replace(options, max_num_seqs=seqs, max_num_batched_tokens=tokens)


def _check_owners(options: EngineOptions, executor: str) -> None:
    plain = EngineOptions()
    for owner, names in _OWNERS.items():
        for name in names:
            if owner != executor and getattr(options, name) != getattr(plain, name):
                raise ConfigError(f"{name} is a setting of the executor {owner}, not of {executor}")


def prospect(model: Model, options: EngineOptions) -> Prospect:
    """The executor that the options ask for. ConfigError if it cannot run this model, or not in this way."""
    check(options)
    return EXECUTORS[options.executor].prospect(model, options)
