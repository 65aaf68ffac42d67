"""The cache of machine code: what its key depends on, whom it trusts, and that a second start compiles nothing."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import llvmlite.binding as llvm
import pytest
from native_kernels import HOST, HOST_ISAS, OBJECTS, kernels

from chairlift.execute.cpu import arena, batch, executor, native
from chairlift.execute.cpu.formats import Q4_MIN_F16, Q8_F16
from chairlift.execute.cpu.isa import Isa
from chairlift.execute.cpu.kernels import attention, build, gemm
from chairlift.execute.cpu.kernels.emit import Module
from chairlift.execute.cpu.native import ObjectStore, key

SECOND_START = """
import sys
from pathlib import Path
from chairlift.execute.cpu import native
host = native.Host.detect()
native.load(sys.argv[1], host, cache=Path(sys.argv[2]), on_compile=lambda: sys.exit("compiled"))
loaded = [name for name in sys.modules if name.startswith(("numba", "chairlift.execute.cpu.kernels"))]
sys.exit(f"imported {loaded}" if loaded else 0)
"""


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(tmp_path / "objects")


def stored(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "objects").iterdir())


class TestTheStore:
    def test_what_is_written_is_read(self, store: ObjectStore) -> None:
        store.write("a", b"code")
        assert store.read("a") == b"code"

    def test_what_was_never_written_is_not_there(self, store: ObjectStore) -> None:
        assert store.read("a") is None

    def test_only_the_user_may_enter(self, store: ObjectStore, tmp_path: Path) -> None:
        store.write("a", b"code")
        assert (tmp_path / "objects").stat().st_mode & 0o777 == 0o700

    def test_no_other_files_are_left(self, store: ObjectStore, tmp_path: Path) -> None:
        store.write("a", b"code")
        assert [path.name for path in stored(tmp_path)] == ["a.o"]

    def test_a_cut_file_is_not_read(self, store: ObjectStore, tmp_path: Path) -> None:
        store.write("a", b"code")
        stored(tmp_path)[0].write_bytes(stored(tmp_path)[0].read_bytes()[:-1])
        assert store.read("a") is None

    @pytest.mark.parametrize("mode", [0o777, 0o720])
    def test_a_folder_that_others_may_write_to_is_not_trusted(self, store: ObjectStore, tmp_path: Path, mode: int) -> None:
        store.write("a", b"code")
        (tmp_path / "objects").chmod(mode)
        assert store.read("a") is None

    def test_a_file_that_others_may_write_to_is_not_trusted(self, store: ObjectStore, tmp_path: Path) -> None:
        store.write("a", b"code")
        stored(tmp_path)[0].chmod(0o666)
        assert store.read("a") is None

    def test_a_link_is_not_followed(self, store: ObjectStore, tmp_path: Path) -> None:
        store.write("a", b"code")
        moved = stored(tmp_path)[0].rename(tmp_path / "elsewhere")
        (tmp_path / "objects" / "a.o").symlink_to(moved)
        assert store.read("a") is None

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
    def test_a_file_of_another_user_is_not_trusted(self, store: ObjectStore, tmp_path: Path) -> None:
        store.write("a", b"code")
        os.chown(stored(tmp_path)[0], 12345, 12345)
        assert store.read("a") is None

    def test_nothing_is_written_where_others_may_write(self, store: ObjectStore, tmp_path: Path) -> None:
        (tmp_path / "objects").mkdir()
        (tmp_path / "objects").chmod(0o777)
        store.write("a", b"code")
        assert stored(tmp_path) == []

    def test_a_cache_that_cannot_be_made_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        blocked = ObjectStore(tmp_path / "file" / "objects")
        blocked.write("a", b"code")
        assert blocked.read("a") is None

    def test_the_files_used_longest_ago_go(self, store: ObjectStore, tmp_path: Path) -> None:
        for number in range(native.KEPT):
            store.write(str(number), b"code")
            os.utime(tmp_path / "objects" / f"{number}.o", (number, number))
        store.read("0")
        store.write("new", b"code")
        assert [path.stem for path in stored(tmp_path)] == ["0", *map(str, range(2, native.KEPT)), "new"]


class TestTheKey:
    @pytest.fixture
    def sources(self, tmp_path: Path) -> Path:
        return Path(shutil.copytree(native.SOURCES, tmp_path / "sources"))

    def test_the_same_sources_have_the_same_key(self, sources: Path) -> None:
        assert key("portable", HOST, sources=sources) == key("portable", HOST)

    @pytest.mark.parametrize("name", ["kernels/gemm.py", "kernels/build.py", "formats.py", "words.py"])
    def test_any_change_of_a_kernel_changes_it(self, sources: Path, name: str) -> None:
        with (sources / name).open("a") as file:
            file.write("\n")
        assert key("portable", HOST, sources=sources) != key("portable", HOST)

    def test_everything_that_kernels_import_is_part_of_it(self) -> None:
        """Of this package; a change of another one comes with another version."""
        names = {path.name for path in native.SOURCES.glob("*.py")} - set(native.SHARED_SOURCES)
        for path in native.SOURCES.glob("kernels/*.py"):
            for name in names:
                assert f"chairlift.execute.cpu.{name.removesuffix('.py')} import" not in path.read_text(), (path.name, name)

    def test_processors_and_instruction_sets_have_keys_of_their_own(self) -> None:
        other = replace(HOST, cpu="generic")
        assert len({key("portable", HOST), key("avx2", HOST), key("portable", other)}) == 3


def test_a_second_start_compiles_nothing_and_imports_no_compiler() -> None:
    kernels(HOST_ISAS[0])
    result = subprocess.run(
        [sys.executable, "-c", SECOND_START, HOST_ISAS[0], str(OBJECTS)], check=False, capture_output=True, text=True
    )
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.skipif(not HOST.triple.startswith("x86_64"), reason="needs LLVM for x86")
@pytest.mark.parametrize(
    ("isa", "cpu", "register"), [("avx512-vnni", "icelake-server", "zmm"), ("avx2-vnni", "alderlake", "ymm")]
)
@pytest.mark.parametrize("form", [Q4_MIN_F16, Q8_F16], ids=lambda form: form.name)
def test_dot_products_become_one_instruction(isa: Isa, cpu: str, register: str, form) -> None:
    module = Module(HOST.triple)
    gemm.add_gemm(module, build.target_of(isa, HOST.triple), form)
    machine = llvm.Target.from_triple(HOST.triple).create_target_machine(cpu=cpu, opt=3)
    assembly = machine.emit_assembly(llvm.parse_assembly(str(module.ir)))
    dots = [line for line in assembly.splitlines() if "vpdpbusd" in line]
    assert dots
    assert all(register in line for line in dots)


def test_numbers_that_kernels_and_python_share_are_the_same() -> None:
    assert (attention.SEGMENT, attention.MAX_ROWS) == (batch.SEGMENT, batch.MAX_ROWS)
    assert attention.MAX_HEAD == executor.MAX_HEAD_DIM
    assert (gemm.BLOCK, attention.LANES) == (arena.ACTIVATION_BLOCK, arena.HEAD_PAD)
