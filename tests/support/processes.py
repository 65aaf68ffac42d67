"""Commands of chairlift as processes of their own, for what only a process shows: signals, ports, exit codes."""

import os
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

END_S = 30
"""How long a command that is to end may take."""
WHOLE_S = 240
"""How long it may live: then it is killed, and whoever waits for its output sees that there is none."""

COMMAND = (
    sys.executable,
    "-c",
    # Whoever starts the tests in the background may have had SIGINT ignored, and children inherit that.
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from chairlift.cli import main; main()",
)


@contextmanager
def chairlift(*arguments: str, **environ: str) -> Generator[subprocess.Popen[str]]:
    """A running command with all three pipes. It is killed if the test leaves it running."""
    with _running([*COMMAND, *arguments], environ) as process:
        yield process


@contextmanager
def python(script: Path, *arguments: str) -> Generator[subprocess.Popen[str]]:
    """The same for a script, which finds the modules beside it."""
    with _running([sys.executable, str(script), *arguments], {}) as process:
        yield process


@contextmanager
def _running(command: Sequence[str], environ: Mapping[str, str]) -> Generator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": "1", **environ},
        text=True,
    )
    with process, ended(process):
        yield process


@contextmanager
def ended(process: "subprocess.Popen[str] | subprocess.Popen[bytes]") -> Generator[None]:
    """Kills the process in the end, or when it has lived for too long."""
    watch = threading.Timer(WHOLE_S, process.kill)
    watch.start()
    try:
        yield
    finally:
        watch.cancel()
        process.kill()


def until(process: subprocess.Popen[str], start: str) -> str:
    """The next line of standard error that begins so. Says what there was instead if the process ends before."""
    assert process.stderr is not None
    seen: list[str] = []
    for line in process.stderr:
        if line.startswith(start):
            return line.rstrip("\n")
        seen.append(line)
    raise AssertionError(f"no line begins with {start!r}:\n" + "".join(seen))
