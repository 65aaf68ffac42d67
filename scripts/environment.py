"""Makes the virtual environment of this checkout and keeps it as pyproject.toml says. Knows pip; knows nothing of chairlift.

Run by `scripts/serve` and `scripts/test` with whatever python3 there is, so: standard library only, and it must be readable
for an old Python up to the line that says that it is too old.
"""

import argparse
import hashlib
import socket
import subprocess
import sys
import time
from pathlib import Path

LEAST = (3, 11)
ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
STAMP = VENV / "chairlift-installed"
LOG = VENV / "chairlift-install.log"
LOG_LINES_SHOWN = 15
LINE_EVERY_S = 10


def say(text):
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def fail(text):
    say("error: " + text)
    raise SystemExit(1)


def check_python():
    """Ends with one line that names what is missing."""
    version = "{}.{}".format(*sys.version_info[:2])
    if sys.version_info < LEAST:
        fail(f"chairlift needs Python {LEAST[0]}.{LEAST[1]} or newer, and this python3 is {version}; PYTHON=... names another")
    try:
        import ensurepip  # noqa: F401  (Debian ships venv without it, and then venv fails half-way)
        import venv  # noqa: F401
    except ImportError:
        fail(f"this python3 has no venv; on Debian and Ubuntu: apt-get install python{version}-venv (or python3-venv)")


def check_port(arguments):
    """Ends if the server's port is taken: better now than after minutes of installing and loading."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int)
    parser.add_argument("--config")
    known, _ = parser.parse_known_args(arguments)
    if known.port is None and known.config:
        return  # the file may name another port, and YAML cannot be read yet
    port = 8000 if known.port is None else known.port
    if not 0 <= port <= 65535:
        fail(f"--port must be between 0 and 65535, not {port}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(known.host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        fail(f"cannot listen on {known.host}:{port}: {error.strerror}")


def wanted_stamp(extras):
    """What the environment was made from: if this line changes, it is installed anew."""
    digest = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    return "\n".join([digest, str(ROOT), *sorted(extras)])


def installed():
    """(line without extras, extras) of what is installed."""
    try:
        lines = STAMP.read_text(encoding="utf-8").split("\n")
    except OSError:
        return "", set()
    return "\n".join(lines[:2]), set(lines[2:])


def has_pip():
    """False for an environment whose making was interrupted: it has a python, and nothing else."""
    return subprocess.run([str(VENV_PYTHON), "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0  # noqa: S603


def make_venv():
    if VENV_PYTHON.exists() and has_pip():
        return
    say("environment: making .venv")
    made = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "venv", "--clear", str(VENV)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        fail("could not make .venv: " + (made.stderr or made.stdout).strip().replace("\n", " "))


def install(extras):
    """pip's own output goes to a file; shown are a count of packages, and the end of the file if it fails."""
    target = "." + (f"[{','.join(sorted(extras))}]" if extras else "")
    # Without --no-compile, pip translates every file of every package beforehand: Python does it for the few that it imports.
    quiet = ["--no-input", "--disable-pip-version-check", "--no-compile"]
    command = [str(VENV_PYTHON), "-m", "pip", "install", *quiet, "-e", target]
    began = shown = time.monotonic()
    packages, stage = 0, "fetching"
    say(f"installing {target} and what it needs (only the first time)")
    with LOG.open("w", encoding="utf-8") as log:
        pip = subprocess.Popen(  # noqa: S603
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        for line in pip.stdout:
            log.write(line)
            packages += line.startswith("Collecting ")
            unpacking = line.startswith("Installing collected")
            stage = "unpacking" if unpacking else stage
            now = time.monotonic()
            if unpacking or now - shown > LINE_EVERY_S:
                shown = now
                say(f"installing… {stage} ({packages} packages, {now - began:.0f} s)")
    if pip.wait():
        say("\n".join(LOG.read_text(encoding="utf-8").splitlines()[-LOG_LINES_SHOWN:]))
        fail(f"pip could not install {target}; all of its output is in {LOG.relative_to(ROOT)}")
    say(f"installed in {time.monotonic() - began:.0f} s")


def prepare(extras):
    line, present = installed()
    if line == wanted_stamp(()) and extras <= present and VENV_PYTHON.exists():
        return
    make_venv()
    both = extras | present
    install(both)
    STAMP.write_text(wanted_stamp(both), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description="Makes .venv and installs this checkout into it.")
    parser.add_argument("--extra", action="append", default=[], help="an extra of pyproject.toml")
    parser.add_argument("--for-server", nargs=argparse.REMAINDER, help="check the port in these arguments first")
    arguments = parser.parse_args()
    check_python()
    if arguments.for_server is not None:
        check_port(arguments.for_server)
    prepare(set(arguments.extra))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        say("interrupted; the next start goes on from here")
        raise SystemExit(130) from None
