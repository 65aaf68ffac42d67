"""What thousands of steps leave behind, what a step allocates, and what an interrupt does to the threads."""

import multiprocessing
import os
import signal
import threading
import tracemalloc
from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cpu_executors import cpu_executor, put_logits
from tiny_decoders import PLAIN, random_tokens, random_weights, row

from chairlift.core.types import Draw, Plan, Sampling, Work
from chairlift.execute.cpu.executor import CpuExecutor, CpuOptions

STATM = Path("/proc/self/statm")
STEPS = 5_000
GROWTH_BYTES = 1 << 20
WIDE = replace(PLAIN, vocab=50_000)
ROWS = 64


def resident_bytes() -> int:
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def step(executor: CpuExecutor, number: int, rows: int, *, sampling: Sampling) -> None:
    work = tuple(
        Work(str(r), number % 16, array("i", [number % 61]), array("i", [r]), (Draw(0, sampling),)) for r in range(rows)
    )
    executor.launch(Plan(number, work))
    assert len(executor.collect().rows) == rows


@pytest.mark.skipif(not STATM.exists(), reason="there is no /proc here")
def test_thousands_of_steps_leave_no_memory_behind() -> None:
    with cpu_executor(PLAIN, random_weights(PLAIN), options=CpuOptions(threads=2)) as executor:
        sampling = Sampling(temperature=0.8, top_p=0.9)
        for number in range(STEPS // 5):
            step(executor, number, 4, sampling=sampling)
        before = resident_bytes()
        for number in range(STEPS):
            step(executor, number, 4, sampling=sampling)
        assert resident_bytes() - before < GROWTH_BYTES


def test_a_step_allocates_nothing_of_the_size_of_its_logits() -> None:
    with cpu_executor(WIDE, random_weights(WIDE), num_blocks=ROWS, max_rows=ROWS) as executor:
        step(executor, 0, ROWS, sampling=Sampling(temperature=0.7, top_k=40))
        tracemalloc.start()
        try:
            step(executor, 1, ROWS, sampling=Sampling(temperature=0.7, top_k=40))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < WIDE.vocab * 4


@pytest.mark.parametrize("rows", [1, 63, 64, 65, 256])
def test_rows_in_any_number_have_the_bits_that_they_have_alone(rows: int) -> None:
    texts = [random_tokens(2, seed=number) for number in range(rows)]
    with cpu_executor(PLAIN, random_weights(PLAIN), num_blocks=rows, max_rows=rows) as executor:
        together = executor.logits([row(text, [number], seq_id=str(number)) for number, text in enumerate(texts)])
        alone = executor.logits([row(texts[-1], [rows - 1])])[0]
    assert together[-1].tobytes() == alone.tobytes()


class Interrupted(Exception):
    pass


@pytest.fixture
def interrupting() -> Iterator[None]:
    """A signal raises in the main thread, as Ctrl-C does."""

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def without_end(executor: CpuExecutor, tokens: list[int], blocks: range) -> None:
    while True:
        executor.logits([row(tokens, blocks)])


@pytest.mark.usefixtures("interrupting")
def test_an_interrupt_comes_after_the_step_and_hurts_no_thread() -> None:
    tokens = random_tokens(500)
    blocks = range(32)
    with cpu_executor(PLAIN, random_weights(PLAIN), options=CpuOptions(threads=3)) as executor:
        expected = executor.logits([row(tokens, blocks)])
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        with pytest.raises(Interrupted):
            without_end(executor, tokens, blocks)
        assert np.array_equal(executor.logits([row(tokens, blocks)]), expected)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("chairlift-")]


def test_a_spawned_process_has_threads_of_its_own() -> None:
    context = multiprocessing.get_context("spawn")
    answers: multiprocessing.Queue[bytes] = context.Queue()
    with cpu_executor(PLAIN, random_weights(PLAIN), options=CpuOptions(threads=2)) as executor:
        child = context.Process(target=put_logits, args=(answers,))
        child.start()
        try:
            assert answers.get(timeout=60) == executor.logits([row([1, 2, 3], [0])]).tobytes()
        finally:
            child.join(20)
    assert child.exitcode == 0
