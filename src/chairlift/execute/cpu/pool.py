"""The threads that compute a step: Python threads that enter machine code once and wait there for work.

Knows threads and the words they wait on; knows nothing of programs. The thread that calls `run` takes part, so a pool of one
has no threads of its own.
"""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from chairlift.execute.cpu import words
from chairlift.execute.cpu.governor import Governor
from chairlift.execute.cpu.memory import Words, aligned
from chairlift.execute.cpu.native import Native

SPINS = 2000
"""Turns of the loop in which a thread waits for the others before it gives its core away."""


class Pool:
    """Runs steps on `threads` threads, or on as many of them as a governor says. One caller at a time.

    `close` ends the workers and joins them.
    """

    def __init__(
        self,
        native: Native,
        *,
        threads: int,
        scratch_bytes: int,
        governor: Governor | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.threads = threads
        self._governor = governor
        self._clock = clock
        self.state = Words(words.STATE)
        self._sync = aligned(words.SYNC_BYTES, np.uint8)
        self._scratch = [aligned(scratch_bytes, np.uint8) for _ in range(threads)]
        self._waits = aligned(threads * words.LINE // words.WORD, np.int64)
        self._waited = memoryview(self._waits.data)[:: words.LINE // words.WORD]
        self._entries = native.entries()
        self._native = native
        self._owner = os.getpid()
        self._run: Callable[..., None] = self._entries["run_step"]
        self.state.set(threads=threads, wanted=threads, spins=SPINS, sync=self._sync.ctypes.data, waits=self._waits.ctypes.data)
        self._entries["prepare"](self._sync.ctypes.data)
        self._workers = [
            threading.Thread(target=self._work, args=(number,), name=f"chairlift-{number}", daemon=True)
            for number in range(1, threads)
        ]
        for worker in self._workers:
            worker.start()

    def run(self) -> None:
        """Computes the program that the state describes; returns when all of it is done."""
        if self._governor is None:
            self.run_on_all()
        else:
            self._run_governed(self._governor)

    def run_on_all(self) -> None:
        """The same on all threads, whatever the governor thinks."""
        self.state.set(wanted=self.threads)
        self._enter()

    @property
    def full_share(self) -> float:
        """The share of the time in which all threads computed."""
        return 1.0 if self._governor is None else self._governor.full_share

    def _enter(self) -> None:
        if os.getpid() != self._owner:
            raise RuntimeError("the threads of this pool stayed in the process that forked")
        self._run(self.state.address, self._scratch[0].ctypes.data)

    def _run_governed(self, governor: Governor) -> None:
        self.state.set(wanted=governor.threads)
        began = self._clock()
        self._enter()
        spent = self.state.get("spent")  # 0 where the processor has no counter of time
        longest = max(self._waited[: governor.threads])
        governor.observe(self._clock() - began, longest / spent if spent > 0 else 0.0)

    def close(self) -> None:
        if not self._workers or os.getpid() != self._owner:
            return
        self._entries["stop_workers"](self.state.address)
        for worker in self._workers:
            worker.join()
        self._workers = []

    def _work(self, number: int) -> None:
        self._entries["run_worker"](self.state.address, self._scratch[number].ctypes.data, number)


def usable_processors(system: Any = os) -> int:
    """Processors that this process may run on; all of them where the system (macOS) does not say which."""
    if hasattr(system, "sched_getaffinity"):
        return len(system.sched_getaffinity(0))
    return system.cpu_count() or 1


def default_threads(*, affinity: int, root: Path = Path("/")) -> int:
    """As many as processors may be used (`affinity`), or fewer if a control group (v2, v1) grants less time; at least one."""
    quota = _quota(root)
    return max(1, affinity if quota is None else min(affinity, quota))


def _quota(root: Path) -> int | None:
    """Whole processors that the control group grants, or None without a limit."""
    group = root / "sys/fs/cgroup"
    try:
        limit, period = (group / "cpu.max").read_text().split()
        return None if limit == "max" else int(limit) // int(period)
    except (OSError, ValueError):
        pass
    try:
        limit = int((group / "cpu/cpu.cfs_quota_us").read_text())
        period = int((group / "cpu/cpu.cfs_period_us").read_text())
        return None if limit <= 0 else limit // period
    except (OSError, ValueError):
        return None
