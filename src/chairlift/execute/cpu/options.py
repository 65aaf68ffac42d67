"""What can be chosen about computing on the CPU, and what is chosen where the user leaves it open.

Knows names; reads nothing from the machine, and needs no compiler, so that a wrong name is found at once.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from chairlift.core.errors import ConfigError
from chairlift.execute.cpu.isa import SHAPES, Isa, choose
from chairlift.execute.cpu.kv import PLACE
from chairlift.execute.cpu.operations import KV_KINDS

AUTO = "auto"
Name = TypeVar("Name", bound=str)
MAX_THREADS = 1024

Quantization = Literal["auto", "int8", "int4", "none"]
"""How weights are computed.

`auto`: in the integers that the file holds; floats are rounded to 8 bits, as that is faster and smaller. `int8`: in 8 bits,
without loss where the file has fewer. `int4`: in 4 bits, rounded where the file has more. `none`: as floating-point numbers.
"""
QUANTIZATIONS: tuple[Quantization, ...] = get_args(Quantization)


@dataclass(frozen=True, slots=True)
class CpuOptions:
    """How to compute. None and "auto": work it out from the machine and the model."""

    threads: int | None = None
    isa: str = AUTO
    quantization: str = AUTO
    kv_cache_dtype: str = AUTO


@dataclass(frozen=True, slots=True)
class Choice:
    """The options with nothing left open, but for what depends on the tensors of the file."""

    threads: int
    isa: Isa
    quantization: Quantization
    kv: str


def check_names(options: CpuOptions) -> None:
    """ConfigError for what no processor and no model can make possible."""
    _known("isa", options.isa, (AUTO, *SHAPES))
    _known("quantization", options.quantization, QUANTIZATIONS)
    _known("kv_cache_dtype", options.kv_cache_dtype, (AUTO, *KV_KINDS))
    if options.threads is not None and not 1 <= options.threads <= MAX_THREADS:
        raise ConfigError(f"threads must be from 1 to {MAX_THREADS}, not {options.threads}")


def check_block_size(block_size: int) -> None:
    """ConfigError for blocks that the attention kernels cannot read."""
    if block_size < 1 or block_size % PLACE:
        raise ConfigError(f"block_size must be a multiple of {PLACE} on the CPU, not {block_size}")


def resolve(options: CpuOptions, features: Mapping[str, bool], *, threads: int) -> Choice:
    """Decides what is open, for a processor with these features (LLVM's names) of which `threads` may be used.

    ConfigError for a wrong name, or an instruction set that the processor lacks.
    """
    check_names(options)
    quantization = _known("quantization", options.quantization, QUANTIZATIONS)
    isa = choose(features, None if options.isa == AUTO else options.isa)
    kv = kv_kind(isa) if options.kv_cache_dtype == AUTO else options.kv_cache_dtype
    return Choice(options.threads or threads, isa, quantization, kv)


def kv_kind(isa: Isa) -> str:
    """How keys and values are stored unless something else is asked for.

    Halves need half the memory and bandwidth, where the processor converts them by itself.
    """
    return "f32" if isa == "portable" else "f16"


def _known(setting: str, value: str, names: Iterable[Name]) -> Name:
    """The name that `value` is."""
    listed = tuple(names)
    for name in listed:
        if name == value:
            return name
    raise ConfigError(f"{setting} {value!r:.40} is unknown: it may be {', '.join(listed)}")
