"""How flags are read that say who goes first: tenants and their weights, proxies, classes of requests. Each has one line to say
what was wrong with a value, and a weight is not repeated in it, as its name may be an API key.
"""

import math
import re
from ipaddress import IPv4Network, IPv6Network, ip_network

import typer

from chairlift.cli.options import MAX_SECONDS
from chairlift.server.openai.schema import MAX_CLASS_CHARS
from chairlift.server.settings import SloClass

_CLASS_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_CLASS_CHARS}}}")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
"""A token of RFC 9110, section 5.6.2."""


def weight(value: str) -> tuple[str, float]:
    """A tenant and its weight: "batch=0.5". The last = counts, as keys may have some of their own. BadParameter otherwise."""
    name, _, number = value.rpartition("=")
    share = _number(number)
    if not name or not 0 < share < math.inf:
        raise typer.BadParameter("--tenant-weight must be a name and a number above 0, as in NAME=3")
    return name, share


def network(value: str) -> IPv4Network | IPv6Network:
    """An address, or a network of them: "10.1.0.0/16". BadParameter for anything else."""
    try:
        return ip_network(value.strip())
    except ValueError:
        raise typer.BadParameter(f"--trusted-proxy {value!r} is no address, and no network like 10.1.0.0/16") from None


def header(value: str) -> str:
    """The name of a header. BadParameter for what none can be called."""
    if not _HEADER.fullmatch(value):
        raise typer.BadParameter(f"{value!r} cannot be the name of a header")
    return value


def slo_class(value: str) -> SloClass:
    """A class of requests: "chat=500,50" wants the first token in 500 ms and each of the next ones in 50 ms; "chat=500" only
    the former. BadParameter for anything else."""
    name, _, times = value.partition("=")
    ttft, comma, itl = times.partition(",")
    ttft_ms, itl_ms = _number(ttft), _number(itl) if comma else None
    if not _CLASS_NAME.fullmatch(name) or not all(0 < ms <= MAX_SECONDS * 1000 for ms in (ttft_ms, itl_ms) if ms is not None):
        raise typer.BadParameter(f"--slo-class {value!r} is no name with milliseconds above 0, like chat=500,50")
    return SloClass(name, ttft_ms / 1000, None if itl_ms is None else itl_ms / 1000)


def itl_target_s(target_ms: float | None, classes: list[SloClass]) -> float | None:
    """The time between tokens that the engine is to keep: what was asked for, or else that of the strictest class."""
    if target_ms is not None:
        return target_ms / 1000
    return min((one.itl_s for one in classes if one.itl_s is not None), default=None)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
