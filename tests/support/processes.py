"""Commands of chairlift as processes of their own, for what only a process shows: signals, ports, exit codes."""

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

END_S = 30


@contextmanager
def chairlift(*arguments: str, **environ: str) -> Generator[subprocess.Popen[str]]:
    """A running command with all three pipes. It is killed if the test leaves it running."""
    process = subprocess.Popen(
        [sys.executable, "-m", "chairlift", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": "1"} | environ,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
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
