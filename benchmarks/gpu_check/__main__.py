"""One command for a machine with a GPU: does everything compute what it should, and how fast? `scripts/gpu-check` runs it.

Takes less than 6 minutes, asks no network, and ends with 0 if every stage has passed. `--dry-run` walks through all of it on
the CPU with a tiny model, in about a minute.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from gpu_check import report
from gpu_check.stages import STAGES, run_all

LEAST_PYTHON = (3, 11)
NEEDED = ("numpy", "torch", "triton")
"""Without these there is nothing to do."""
MISSING = 2
"""The exit code where nothing can be examined."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="gpu-check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, with a tiny model")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write everything as JSON as well")
    given = parser.parse_args()
    missing = _missing()
    if missing:
        sys.stderr.write(f"error: {missing}\n")
        return MISSING
    if given.output is not None and not _writable(given.output):
        sys.stderr.write(f"error: {given.output} cannot be written\n")
        return MISSING
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        outcomes = list(run_all(STAGES, Path(folder), dry_run=given.dry_run))
    if (fatal := outcomes[-1].found.fatal) is not None:
        sys.stderr.write(f"error: {fatal}\n")
        return MISSING
    took_s = time.monotonic() - began
    print("\n".join(report.lines(outcomes, dry_run=given.dry_run, took_s=took_s)))
    if given.output is not None:
        found = report.as_json(outcomes, dry_run=given.dry_run, took_s=took_s)
        given.output.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        sys.stderr.write(f"written to {given.output}\n")
    return 0 if all(outcome.passed for outcome in outcomes) else 1


def _writable(path: Path) -> bool:
    """Better known now than after six minutes. Nothing is written yet: there may be nothing to write in the end."""
    return not path.is_dir() and os.access(path if path.exists() else path.parent, os.W_OK)


def _missing() -> str | None:
    """In one line: what this Python lacks."""
    if sys.version_info < LEAST_PYTHON:
        return f"gpu-check needs Python {'.'.join(map(str, LEAST_PYTHON))} or newer, and this is {sys.version.split()[0]}"
    packages = [name for name in NEEDED if find_spec(name) is None]
    return f"not installed for {sys.executable}: {', '.join(packages)}" if packages else None


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        raise SystemExit(130) from None
