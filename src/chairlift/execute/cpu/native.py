"""Machine code for this processor: compiled once, kept in a folder of the user, loaded without compiling anything.

Knows files, keys and addresses; what the code does is unknown here. The kernels are imported only if they must be compiled.
"""

import ctypes
import hashlib
import os
import platform
import stat
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

from chairlift.execute.cpu.isa import Isa

KEPT = 10
"""Object files that stay in the cache; the ones used longest ago go first."""
MAX_OBJECT_BYTES = 64 << 20
_DIGEST_BYTES = 32
_SUFFIX = ".o"

SOURCES = Path(__file__).parent
SHARED_SOURCES = ("arena.py", "formats.py", "isa.py", "operations.py", "words.py")
"""What the kernels import from outside their own folder."""

_ENTRIES = {
    "prepare": 1,
    "run_step": 2,
    "run_worker": 3,
    "stop_workers": 1,
}
"""Entry points, and how many words each takes."""


@dataclass(frozen=True, slots=True)
class Host:
    """The processor, in LLVM's names."""

    triple: str
    cpu: str
    features: Mapping[str, bool]

    @classmethod
    def detect(cls) -> "Host":
        llvm.initialize_native_target()
        return cls(llvm.get_process_triple(), llvm.get_host_cpu_name(), dict(llvm.get_host_cpu_features()))

    @property
    def feature_text(self) -> str:
        return ",".join(f"{'+' if there else '-'}{name}" for name, there in sorted(self.features.items()))


class Native:
    """Loaded machine code. It stays in memory as long as this object lives."""

    def __init__(self, engine: llvm.ExecutionEngine) -> None:
        self._engine = engine

    def entry(self, name: str, words: int) -> Callable[..., None]:
        """A function of so many 64-bit words. Python's lock is released while it runs."""
        address = self._engine.get_function_address(name)
        assert address, f"no machine code for {name}"
        return ctypes.CFUNCTYPE(None, *(ctypes.c_int64,) * words)(address)

    def entries(self) -> dict[str, Callable[..., None]]:
        return {name: self.entry(name, words) for name, words in _ENTRIES.items()}


def load(
    isa: Isa, host: Host, *, cache: Path | None, on_compile: Callable[[], None] | None = None, contiguous: bool = False
) -> Native:
    """Machine code for one instruction set, out of the cache if it is there. `on_compile` is called before it is compiled.

    `contiguous` is the form of attention (`kernels.build`).

    A cache that cannot be used (not writable, or open to others) is left alone, and the code is compiled for this process only.
    """
    store = ObjectStore(cache) if cache is not None else None
    name = key(isa, host, contiguous=contiguous)
    code = store.read(name) if store is not None else None
    if code is None:
        if on_compile is not None:
            on_compile()
        code = compile_code(isa, host, contiguous=contiguous)
        if store is not None:
            store.write(name, code)
    return link(code, host)


def compile_code(isa: Isa, host: Host, *, emulate: bool = False, contiguous: bool = False) -> bytes:
    """An object file. Takes seconds."""
    from chairlift.execute.cpu.kernels import build

    module = build.module_for(build.target_of(isa, host.triple, emulate=emulate), host.triple, contiguous=contiguous)
    return build.compile_object(module, cpu=host.cpu, features=host.feature_text)


def link(code: bytes, host: Host) -> Native:
    """Puts an object file into memory."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(host.triple).create_target_machine(
        cpu=host.cpu, features=host.feature_text, opt=3, reloc="pic", codemodel="jitdefault", jit=True
    )
    empty = llvm.parse_assembly(f'target triple = "{host.triple}"')
    engine = llvm.create_mcjit_compiler(empty, machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return Native(engine)


def key(isa: Isa, host: Host, *, contiguous: bool = False, sources: Path = SOURCES) -> str:
    """Differs whenever the machine code would: by the sources of the kernels, their form, the versions, and the processor."""
    digest = hashlib.sha256()
    for path in sorted([*(sources / name for name in SHARED_SOURCES), *sources.glob("kernels/*.py")]):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(sources)} {len(content)}\n".encode())
        digest.update(content)
    versions = (llvmlite.__version__, str(llvm.llvm_version_info), platform.python_version())
    layout = "contiguous" if contiguous else "paged"
    for part in (*versions, isa, layout, host.triple, host.cpu, host.feature_text):
        digest.update(f"\n{part}".encode())
    return digest.hexdigest()[:40]


class ObjectStore:
    """Object files in a folder that only its user may write to. Each begins with a digest of the rest."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, name: str) -> bytes | None:
        """What was stored under this name; None if there is nothing, or nothing to be trusted."""
        path = self._folder / (name + _SUFFIX)
        try:
            if not (_private(self._folder) and _private(path)) or path.stat().st_size > MAX_OBJECT_BYTES:
                return None
            content = path.read_bytes()
            os.utime(path)
        except OSError:
            return None
        digest, code = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        return code if hashlib.sha256(code).digest() == digest else None

    def write(self, name: str, code: bytes) -> None:
        """Stores and prunes. Whatever stands in the way (no room, no right) leaves the cache as it is."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _private(self._folder):
                return
            with tempfile.NamedTemporaryFile(dir=self._folder, suffix=".part", delete=False) as file:
                file.write(hashlib.sha256(code).digest())
                file.write(code)
            Path(file.name).replace(self._folder / (name + _SUFFIX))
            self._prune()
        except OSError:
            return

    def _prune(self) -> None:
        files = sorted(self._folder.glob(f"*{_SUFFIX}"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in files[KEPT:]:
            path.unlink(missing_ok=True)


def _private(path: Path) -> bool:
    """Ours, no link, and not for others to write to."""
    status = path.lstat()
    others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return status.st_uid == os.geteuid() and not others_write and not stat.S_ISLNK(status.st_mode)
