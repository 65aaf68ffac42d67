"""What this machine is, and how much memory this process may still take. Knows /proc, control groups and sysconf; does not know
what it is wanted for.
"""

import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from chairlift.core.errors import ConfigError

ASSUMED_FREE = 0.5
"""Share of all memory that counts as free where the system tells only how much there is."""


def cpu_name(root: Path = Path("/")) -> str:
    """The processor as it calls itself, or at least its kind."""
    for line in _lines(root / "proc/cpuinfo"):
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def physical_memory() -> int | None:
    """All memory of the machine in bytes, or None where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not on Windows; names differ between systems
        return None


def free_memory(root: Path = Path("/"), physical: Callable[[], int | None] = physical_memory) -> int:
    """Bytes that this process may still take: the machine's free memory, or less if a control group (v1, v2) is tighter.

    Where the system has no /proc (macOS), a part of all its memory is taken for free. `root` is where /proc and /sys are
    sought. ConfigError if nothing can be found out.
    """
    available = _meminfo_available(root)
    if available is None:
        whole = physical()
        if whole is None:
            raise ConfigError("cannot find out how much memory there is: neither /proc/meminfo nor sysconf tells")
        available = int(ASSUMED_FREE * whole)
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
