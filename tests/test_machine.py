from pathlib import Path

import pytest

from chairlift.core.errors import ConfigError
from chairlift.machine import cpu_name, free_memory, physical_memory

MIB, GIB = 2**20, 2**30


def machine(root: Path, *, available_kib: int = 8 * MIB, cgroup: str = "", files: dict[str, str] | None = None) -> Path:
    """A made-up /proc and /sys: 8 GiB free unless told otherwise."""
    written = {"proc/meminfo": f"MemTotal: 99 kB\nMemAvailable:   {available_kib} kB\n", "proc/self/cgroup": cgroup}
    for name, text in (written | (files or {})).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def v2(group: str, limit: int | str, used: int, dropable: int = 0) -> dict[str, str]:
    return {
        f"sys/fs/cgroup{group}/memory.max": f"{limit}\n",
        f"sys/fs/cgroup{group}/memory.current": f"{used}\n",
        f"sys/fs/cgroup{group}/memory.stat": f"anon 5\ninactive_file {dropable}\n",
    }


def v1(group: str, limit: int, used: int, dropable: int = 0) -> dict[str, str]:
    return {
        f"sys/fs/cgroup/memory{group}/memory.limit_in_bytes": f"{limit}\n",
        f"sys/fs/cgroup/memory{group}/memory.usage_in_bytes": f"{used}\n",
        f"sys/fs/cgroup/memory{group}/memory.stat": f"cache 5\ntotal_inactive_file {dropable}\n",
    }


def test_without_control_groups_the_machine_s_free_memory_counts(tmp_path: Path) -> None:
    assert free_memory(machine(tmp_path)) == 8 * GIB


def test_a_limit_of_version_2_counts_less_what_is_used_and_plus_what_can_be_dropped(tmp_path: Path) -> None:
    root = machine(tmp_path, cgroup="0::/a/b\n", files=v2("/a/b", 4 * GIB, 3 * GIB, dropable=GIB))
    assert free_memory(root) == 2 * GIB


def test_a_limit_of_version_1_counts(tmp_path: Path) -> None:
    root = machine(tmp_path, cgroup="4:cpu:/a\n3:memory:/a\n0::/\n", files=v1("/a", 4 * GIB, GIB))
    assert free_memory(root) == 3 * GIB


def test_the_tightest_of_all_groups_above_counts(tmp_path: Path) -> None:
    files = v2("/a/b", "max", GIB) | v2("/a", 2 * GIB, GIB) | v2("", 6 * GIB, GIB)
    assert free_memory(machine(tmp_path, cgroup="0::/a/b\n", files=files)) == GIB


def test_a_container_sees_its_group_as_the_root(tmp_path: Path) -> None:
    root = machine(tmp_path, cgroup="3:memory:/docker/0123\n", files=v1("", 2 * GIB, GIB))
    assert free_memory(root) == GIB


def test_a_limit_above_the_machine_does_not_count(tmp_path: Path) -> None:
    assert free_memory(machine(tmp_path, cgroup="0::/\n", files=v2("", 2**62, GIB))) == 8 * GIB


def test_a_group_over_its_limit_has_nothing_free(tmp_path: Path) -> None:
    assert free_memory(machine(tmp_path, cgroup="0::/\n", files=v2("", GIB, 2 * GIB))) == 0


def test_without_proc_half_of_all_memory_counts(tmp_path: Path) -> None:
    assert free_memory(tmp_path, lambda: 8 * GIB) == 4 * GIB


def test_memory_that_cannot_be_found_out_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="how much memory there is"):
        free_memory(tmp_path, lambda: None)


def test_this_machine_has_more_memory_than_is_free() -> None:
    whole = physical_memory()
    assert whole is None or whole > free_memory()


def test_the_processor_has_a_name(tmp_path: Path) -> None:
    files = {"proc/cpuinfo": "processor\t: 0\nmodel name\t: Wafer 9 @ 2 GHz\n"}
    assert cpu_name(machine(tmp_path, files=files)) == "Wafer 9 @ 2 GHz"


def test_a_processor_without_a_name_has_a_kind(tmp_path: Path) -> None:
    assert cpu_name(tmp_path)
