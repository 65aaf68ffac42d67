"""The set-up scripts: what can go wrong before anything is installed."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

ENVIRONMENT = Path(__file__).parent.parent / "scripts" / "environment.py"


def prepare(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(ENVIRONMENT), *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("spelling", [["--port={port}"], ["smollm2", "--host", "127.0.0.1", "--port", "{port}"]])
def test_a_port_in_use_is_found_before_anything_is_installed(spelling: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = prepare("--for-server", *(word.format(port=port) for word in spelling))
    assert (done.returncode, done.stderr) == (1, f"error: cannot listen on 127.0.0.1:{port}: Address already in use\n")


def test_an_impossible_port_is_named() -> None:
    done = prepare("--for-server", "--port", "80000")
    assert (done.returncode, done.stderr) == (1, "error: --port must be between 0 and 65535, not 80000\n")
