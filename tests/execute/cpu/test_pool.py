"""Threads: how many by default, that they end, and that they use no time while there is nothing to do."""

import multiprocessing
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cpu_executors import cpu_executor
from tiny_decoders import PLAIN, random_weights, row

from chairlift.execute.cpu.executor import CpuOptions
from chairlift.execute.cpu.pool import default_threads, usable_processors


def quota(root: Path, text: str) -> Path:
    folder = root / "sys/fs/cgroup"
    folder.mkdir(parents=True)
    (folder / "cpu.max").write_text(text)
    return root


class TestTheirNumber:
    def test_every_processor_that_may_be_used(self, tmp_path: Path) -> None:
        assert default_threads(affinity=6, root=tmp_path) == 6

    @pytest.mark.parametrize(("text", "threads"), [("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1), ("x", 8)])
    def test_no_more_than_the_control_group_grants(self, tmp_path: Path, text: str, threads: int) -> None:
        assert default_threads(affinity=8, root=quota(tmp_path, text)) == threads

    def test_no_more_than_an_old_control_group_grants(self, tmp_path: Path) -> None:
        folder = tmp_path / "sys/fs/cgroup/cpu"
        folder.mkdir(parents=True)
        (folder / "cpu.cfs_quota_us").write_text("300000\n")
        (folder / "cpu.cfs_period_us").write_text("100000\n")
        assert default_threads(affinity=8, root=tmp_path) == 3


def test_where_the_system_does_not_say_which_processors_may_be_used_all_are() -> None:
    assert usable_processors(SimpleNamespace(cpu_count=lambda: 6)) == 6


def test_only_processors_that_may_be_used_count() -> None:
    assert usable_processors(SimpleNamespace(cpu_count=lambda: 6, sched_getaffinity=lambda _: {1, 5})) == 2


def test_there_is_always_one_processor() -> None:
    assert usable_processors(SimpleNamespace(cpu_count=lambda: None)) == 1


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("chairlift-")]


def test_they_end_with_the_executor() -> None:
    with cpu_executor(PLAIN, random_weights(PLAIN), options=CpuOptions(threads=3)) as executor:
        executor.logits([row([1, 2], [0])])
        assert len(workers()) == 2
    assert workers() == []


def test_closing_twice_is_allowed() -> None:
    with cpu_executor(PLAIN, random_weights(PLAIN), options=CpuOptions(threads=2)) as executor:
        executor.close()


def test_many_steps_in_a_row_never_hang() -> None:
    with cpu_executor(PLAIN, random_weights(PLAIN), options=CpuOptions(threads=3)) as executor:
        first = executor.logits([row([1, 2, 3], [0])])
        for _ in range(50):
            assert np.array_equal(executor.logits([row([1, 2, 3], [0])]), first)


def test_they_use_no_time_while_nothing_runs() -> None:
    with cpu_executor(PLAIN, random_weights(PLAIN), options=CpuOptions(threads=3)) as executor:
        executor.logits([row([1], [0])])
        before = time.process_time()
        threading.Event().wait(0.2)
        assert time.process_time() - before < 0.05


def _in_child(executor) -> None:
    try:
        executor.logits([row([1], [0])])
    except AssertionError:
        os._exit(7)
    os._exit(0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_is_refused_instead_of_hanging() -> None:
    with cpu_executor(PLAIN, random_weights(PLAIN), options=CpuOptions(threads=2)) as executor:
        child = multiprocessing.get_context("fork").Process(target=_in_child, args=(executor,))
        child.start()
        child.join(20)
        assert child.exitcode == 7
