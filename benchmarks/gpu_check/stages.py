"""Which stages there are, how long each may take, and how one is run in a process of its own. Needs no PyTorch."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_check.records import Found, read

STDERR = 2
"""Where everything goes that a stage prints: the tables alone are for the standard output."""
SOFT_SHARE = 0.85
"""Of its time is what a stage plans with. The rest is for what it cannot foresee; then it is ended."""


@dataclass(frozen=True, slots=True)
class Stage:
    """By the name of its module. `seconds` are all that it may take, imports and compilation included."""

    name: str
    seconds: float


STAGES = (
    Stage("environment", 30),
    Stage("conformance", 100),
    Stage("decode", 60),
    Stage("prefill", 25),
    Stage("engine", 50),
    Stage("rivals", 85),
)
"""350 s together at most."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a stage."""

    stage: Stage
    found: Found
    took_s: float

    @property
    def passed(self) -> bool:
        return not self.found.failures and self.found.fatal is None


def run_all(stages: Sequence[Stage], folder: Path, *, dry_run: bool) -> Iterator[Outcome]:
    """One after another, whatever becomes of them; but where one finds that none can run, it is the last."""
    began = time.monotonic()
    for stage in stages:
        outcome = run(stage, folder, began=began, dry_run=dry_run)
        yield outcome
        if outcome.found.fatal is not None:
            return


def run(stage: Stage, folder: Path, *, began: float, dry_run: bool) -> Outcome:
    """Runs a stage to its end, or ends it when its time is over. What it found until then counts as found."""
    into = folder / f"{stage.name}.jsonl"
    entered = time.monotonic()
    command = [sys.executable, "-m", "gpu_check.stage", stage.name, "--into", str(into), "--began", str(began)]
    command += ["--until", str(entered + SOFT_SHARE * stage.seconds), *(["--dry-run"] if dry_run else [])]
    try:
        environment = _environment(dry_run=dry_run)
        code = subprocess.run(command, env=environment, stdout=STDERR, timeout=stage.seconds, check=False).returncode  # noqa: S603
        fault = None if code == 0 else f"its process ended with code {code}"
    except subprocess.TimeoutExpired:
        fault = f"it was not done after {stage.seconds:.0f} s, and was ended"
    found = read(into)
    if fault is not None and not found.failures:
        found.failures.append(fault)
    return Outcome(stage, found, time.monotonic() - entered)


def _environment(*, dry_run: bool) -> dict[str, str]:
    """Nobody may ask the network. On the CPU, Triton's kernels run in its interpreter, and one thread does for tiny tensors."""
    changes = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}
    changes["TRITON_INTERPRET"] = "1" if dry_run else "0"
    if dry_run:
        changes |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return os.environ | changes
