from pathlib import Path

import pytest
from tiny_decoders import PLAIN

from chairlift.compose import EngineOptions, check_options, fit, free_memory, gib, parameter_count, read_template
from chairlift.core.errors import ConfigError, ModelError

KIB, MIB, GIB = 2**10, 2**20, 2**30


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


def test_memory_that_cannot_be_found_out_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="how much memory is free"):
        free_memory(tmp_path)


def test_every_request_of_a_legal_length_fits_into_the_pool() -> None:
    sizes = fit(PLAIN, EngineOptions(max_num_seqs=2), free_bytes=GIB)
    assert (sizes.config.max_model_len, sizes.kv_tokens, sizes.full_contexts) == (256, 512, 2.0)


def test_the_context_shrinks_to_what_fits() -> None:
    block = 2 * 2 * 2 * 6 * 4 * 16
    sizes = fit(PLAIN, EngineOptions(kv_cache_memory_bytes=3 * block), free_bytes=GIB)
    assert (sizes.config.max_model_len, sizes.context) == (48, 256)


def test_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ModelError, match="the weights take"):
        fit(PLAIN, EngineOptions(), free_bytes=parameter_count(PLAIN) * 4 - 1)


def test_weights_and_kv_cache_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="lower kv_cache_memory_bytes"):
        fit(PLAIN, EngineOptions(max_num_seqs=512, kv_cache_memory_bytes=MIB), free_bytes=MIB)


@pytest.mark.parametrize(
    "options",
    [EngineOptions(preset="none"), EngineOptions(max_num_seqs=65, max_num_batched_tokens=64), EngineOptions(max_model_len=1)],
)
def test_settings_that_never_work_are_found_without_a_model(options: EngineOptions) -> None:
    with pytest.raises(ConfigError):
        check_options(options)


def test_parameters_are_counted_over_all_tensors() -> None:
    layer = 24 * 24 + 2 * 12 * 24 + 24 * 24 + 3 * 24 * 40 + 2 * 24
    assert parameter_count(PLAIN) == 2 * 61 * 24 + 24 + 2 * layer


@pytest.mark.parametrize(("content", "reason"), [(b"\xff", "UTF-8"), (b"x" * (MIB + 1), "at most")])
def test_a_template_file_that_is_none_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "template.jinja"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=reason):
        read_template(file)


def test_a_missing_template_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_template(tmp_path / "none.jinja")


def test_bytes_are_written_for_people() -> None:
    assert (gib(85 * MIB), gib(3 * GIB // 2)) == ("85 MiB", "1.5 GiB")
