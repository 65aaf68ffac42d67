"""Flags that several commands have, and how their values are read. Names are those of vLLM, so that habits carry over."""

import math
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

from chairlift.core.config import KV_LAYOUTS

MAX_SECONDS = 1_000_000
"""Longest time that can be set: eleven days."""
_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_NUMBER = re.compile(r"([0-9]{1,18})(\.[0-9]{1,9})?([kmgtKMGT]?)")


def count(value: str | int) -> int:
    """A number as people write it: 4096, 32k (32,000), 32K (32,768), 1.5g, 2G. BadParameter for anything else."""
    match = _NUMBER.fullmatch(str(value).strip())
    if match is None:
        raise typer.BadParameter(f"{value!r} is not a number like 4096, 32k (thousands) or 2G (powers of 1024)")
    whole, fraction, suffix = match.groups(default="")
    factor = _SUFFIXES.get(suffix, 1)
    numerator, denominator = int(whole + fraction[1:]) * factor, 10 ** max(0, len(fraction) - 1)
    if numerator % denominator:
        raise typer.BadParameter(f"{value!r} is not a whole number")
    return numerator // denominator


def seconds(value: str | float) -> float:
    """A time in seconds, 0 included. BadParameter for anything that no clock can wait for."""
    try:
        time_s = float(value)
    except ValueError:
        time_s = math.nan
    if not 0 <= time_s <= MAX_SECONDS:
        raise typer.BadParameter(f"{value!r} is not a number of seconds from 0 to {MAX_SECONDS:,}")
    return time_s


def milliseconds(value: str | float) -> float:
    """A time in milliseconds, 0 included. BadParameter for anything that no clock can wait for."""
    try:
        time_ms = float(value)
    except ValueError:
        time_ms = math.nan
    if not 0 <= time_ms <= MAX_SECONDS * 1000:
        raise typer.BadParameter(f"{value!r} is not a number of milliseconds")
    return time_ms


def target_ms(value: str | float) -> float:
    """A time in milliseconds that is to be kept, so not 0. BadParameter otherwise."""
    time_ms = milliseconds(value)
    if not time_ms:
        raise typer.BadParameter("nothing takes no time: it must be above 0")
    return time_ms


def one_of(known: Iterable[str]) -> Callable[[str], str]:
    """Reads one of these names. BadParameter tells them for any other."""

    def name(value: str) -> str:
        if value not in known:
            raise typer.BadParameter(f"{value!r} is none of {', '.join(known)}")
        return value

    return name


def names(value: str) -> tuple[str, ...]:
    """A list with commas, each name once: "auto,int8". BadParameter if a place is empty."""
    parts = [part.strip() for part in value.split(",")]
    if not all(parts):
        raise typer.BadParameter(f"{value!r} is not a list like auto,int8")
    return tuple(dict.fromkeys(parts))


def numbers(value: str) -> tuple[int, ...]:
    """A list of numbers with commas, each once: "1,2". BadParameter unless all are at least 1."""
    parsed = tuple(count(part) for part in names(value))
    if min(parsed) < 1:
        raise typer.BadParameter(f"{value!r} is not a list of numbers from 1 on")
    return tuple(dict.fromkeys(parsed))


def fresh_file(path: Path | None) -> Path | None:
    """A file that is to be written. BadParameter for one that is there already, or that could not be made."""
    if path is None:
        return None
    if path.exists():
        raise typer.BadParameter(f"{path} is there already, and is not written over")
    if not os.access(path.parent, os.W_OK) or not path.parent.is_dir():
        raise typer.BadParameter(f"{path.parent} is no folder that can be written to")
    return path


def check_stops(stops: list[str] | None) -> None:
    """BadParameter for a stop string that every text ends with."""
    if stops and "" in stops:
        raise typer.BadParameter("--stop must not be empty")


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A known name (see `chairlift models`), a .gguf file, a Hugging Face folder, org/name[:QUANT] or dummy:tiny.",
    ),
]
MaxModelLen = Annotated[
    int | None,
    typer.Option(
        parser=count,
        metavar="TOKENS",
        help="Longest prompt and answer together; accepts 32k. Default: the model's context, or what fits into memory.",
    ),
]
KvCacheMemoryBytes = Annotated[
    int | None,
    typer.Option(
        parser=count,
        metavar="BYTES",
        help="Memory for keys and values; accepts 2G. Default: a quarter of what is free, 90 % on a GPU; less if it is enough.",
    ),
]
BlockSize = Annotated[int, typer.Option(min=1, metavar="TOKENS", help="Tokens in a block of the KV cache.")]
MaxNumSeqs = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Most requests in the running batch. Default: 64; on a GPU 256.")
]
MaxNumBatchedTokens = Annotated[
    int | None,
    typer.Option(min=1, metavar="TOKENS", help="Most tokens computed in one step. Default: 512; on a GPU 2,048."),
]
Executor = Annotated[
    str,
    typer.Option(
        metavar="cpu|torch|reference",
        help="What computes: machine code for this processor, PyTorch (GPUs; needs the extra gpu), or NumPy to compare with.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="Threads that compute. Default: the processors that may be used, fewer while one is taken."
    ),
]
Isa = Annotated[
    str,
    typer.Option(
        metavar="auto|avx512-vnni|avx2-vnni|avx2|portable",
        help="Instructions to compute with; auto: the fastest that the processor has.",
    ),
]
Quantization = Annotated[
    str,
    typer.Option(
        metavar="auto|int8|int4|none",
        help="Weights; auto: the integers that the file holds, or 8 bits if it holds floats; none: floats.",
    ),
]
KvCacheDtype = Annotated[
    str,
    typer.Option(
        metavar="auto|f32|f16|bf16|int8",
        help="How keys and values are stored; auto: f16 where the processor converts it.",
    ),
]
Device = Annotated[
    str,
    typer.Option(
        metavar="auto|cpu|cuda[:N]",
        help="Where --executor torch computes; auto: the first NVIDIA GPU, or the CPU if there is none.",
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        metavar="auto|bfloat16|float16|float32",
        help="Numbers of --executor torch; auto: bfloat16 on a GPU (float16 on old ones), float32 on the CPU.",
    ),
]
AttentionBackend = Annotated[
    str,
    typer.Option(
        metavar="auto|flashinfer|triton|reference",
        help="What computes attention with --executor torch; auto: the fastest there is.",
    ),
]
EnforceEager = Annotated[
    bool,
    typer.Option(
        "--enforce-eager/--no-enforce-eager",
        help="Launch every kernel of every step with --executor torch, and capture no CUDA graphs of decode steps.",
        show_default=False,
    ),
]
TensorParallelSize = Annotated[
    int,
    typer.Option(
        min=1,
        metavar="N",
        help="GPUs that compute every step of --executor torch together, each with a part of every matrix.",
    ),
]
KvLayout = Annotated[
    str,
    typer.Option(
        parser=one_of(KV_LAYOUTS),
        metavar="paged|contiguous",
        help="Blocks as a request grows, or one run of blocks reserved for its longest answer, with no prefixes shared.",
    ),
]
AsyncScheduling = Annotated[
    bool | None,
    typer.Option(
        "--async-scheduling/--no-async-scheduling",
        help="Decide the next step while one is computed, with --executor torch. Default: on a GPU.",
        show_default=False,
    ),
]
ChatTemplateFile = Annotated[
    Path | None,
    typer.Option("--chat-template", metavar="FILE", help="A Jinja2 chat template to use in place of the model's own."),
]
Json = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the figures to this file as JSON; - is the terminal.")
]
MaxTokens = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Most tokens of an answer. Default: what the context has room for."),
]
Temperature = Annotated[
    float | None,
    typer.Option(
        min=0,
        metavar="T",
        help="0 always takes the likeliest token. Default: what the model recommends, or 0.7.",
    ),
]
TopP = Annotated[
    float | None,
    typer.Option(min=0, max=1, metavar="P", help="Draw from the likeliest tokens of this share."),
]
TopK = Annotated[
    int | None,
    typer.Option(min=0, metavar="K", help="Draw from the K likeliest tokens; 0: from all."),
]
MinP = Annotated[
    float | None,
    typer.Option(min=0, max=1, metavar="P", help="Leave out tokens below this part of the likeliest."),
]
Seed = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", help="The same seed gives the same answer. Default: a fresh one."),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(metavar="TEXT", help="End the answer before this text; may be given several times."),
]
