"""Threads: how many by default, that they end, and that they use no time while there is nothing to do."""

import itertools
import multiprocessing
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cpu_executors import cpu_executor
from native_kernels import HOST_ISAS, kernels
from tiny_decoders import PLAIN, random_weights, row

from chairlift.execute.cpu import words
from chairlift.execute.cpu.executor import CpuOptions
from chairlift.execute.cpu.governor import Governor
from chairlift.execute.cpu.memory import Words, aligned
from chairlift.execute.cpu.operations import OPERATIONS
from chairlift.execute.cpu.pool import Pool, default_threads, usable_processors


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


class Scripted(Governor):
    """Changes the number of threads at every step, by a list."""

    def __init__(self, numbers: list[int]) -> None:
        super().__init__(max(numbers))
        self._numbers = itertools.cycle(numbers)

    def observe(self, elapsed_s: float, waited: float) -> None:
        self.threads = next(self._numbers)


STEPS, INSTRUCTIONS, PIECES, PIECE_BYTES = 3000, 5, 24, 2048


class Reads:
    """Several instructions in a row, each of which sums the pieces of an array."""

    def __init__(self, pool: Pool) -> None:
        data = aligned(PIECES * PIECE_BYTES // 4, np.int32)
        data[:] = np.random.default_rng(1).integers(-1000, 1000, data.shape)
        self.expected = data.reshape(PIECES, -1).sum(axis=1, dtype=np.int32)
        self.sums = aligned(PIECES, np.int32)
        self.claims = aligned(INSTRUCTIONS * words.LINE // words.WORD, np.int64).reshape(INSTRUCTIONS, -1)
        count = Words(("count",))
        count.set(count=PIECES)
        code = aligned(INSTRUCTIONS * words.INSTRUCTION_WORDS, np.int64).reshape(INSTRUCTIONS, -1)
        operands = {"data": data.ctypes.data, "bytes": PIECE_BYTES, "sums": self.sums.ctypes.data}
        head = {"opcode": OPERATIONS.index("probe_read"), "barrier": 1, "count": count.at("count")}
        for claims, instruction in zip(self.claims, code, strict=True):
            for name, value in (head | operands | {"counter": claims.ctypes.data}).items():
                instruction[words.OPERANDS["probe_read"].index(name)] = value
        pool.state.set(program=code.ctypes.data, instructions=INSTRUCTIONS)
        self._alive = (data, count, code)


def test_threads_that_come_and_go_take_part_in_their_own_steps_only() -> None:
    """A thread's last claim finds nothing left, so the claims tell how many threads there were."""
    governor = Scripted([3, 2, 3, 1, 3, 1, 1, 2])
    pool = Pool(kernels(HOST_ISAS[0]), threads=3, scratch_bytes=1 << 20, governor=governor)
    try:
        reads = Reads(pool)
        for _ in range(STEPS):
            reads.sums[:] = 0
            threads = governor.threads
            pool.run()
            assert np.array_equal(reads.sums, reads.expected)
            assert reads.claims[:, 0].tolist() == [PIECES + threads] * INSTRUCTIONS
    finally:
        pool.close()


def test_they_use_no_time_while_nothing_runs() -> None:
    with cpu_executor(PLAIN, random_weights(PLAIN), options=CpuOptions(threads=3)) as executor:
        executor.logits([row([1], [0])])
        before = time.process_time()
        threading.Event().wait(0.2)
        assert time.process_time() - before < 0.05


def _in_child(executor) -> None:
    try:
        executor.logits([row([1], [0])])
    except RuntimeError:
        os._exit(7)
    os._exit(0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_is_refused_instead_of_hanging() -> None:
    with cpu_executor(PLAIN, random_weights(PLAIN), options=CpuOptions(threads=2)) as executor:
        child = multiprocessing.get_context("fork").Process(target=_in_child, args=(executor,))
        child.start()
        child.join(20)
        assert child.exitcode == 7
