"""Two ranks that are processes: the tokens of one, and what becomes of rank 0 when the other stands still or dies."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from crews import crew
from engines import config
from tiny_decoders import random_tokens
from torch_executors import PLAIN_CHOICE
from virtual import Ride, request

from chairlift.core.config import EngineConfig
from chairlift.core.errors import ConfigError, ExecutorLost, ModelError
from chairlift.core.ports import Executor
from chairlift.core.types import Plan, Request, Result, Sampling
from chairlift.engine.core import EngineCore
from chairlift.execute.torch.device import Device
from chairlift.execute.torch.executor import TorchExecutor
from chairlift.execute.torch.parallel.channel import Sizes
from chairlift.execute.torch.parallel.executor import ParallelExecutor, least_free_bytes
from chairlift.execute.torch.parallel.group import ALONE, Alone
from chairlift.execute.torch.warming import plans
from chairlift.models.description import Model
from chairlift.models.registry import reopen

MODEL = replace(reopen("dummy:tiny"), reference="dummy:tiny")
SIZES: Sizes = {"num_blocks": 11, "block_size": 16, "max_tokens": 64, "max_rows": 4, "max_model_len": 128, "num_host_blocks": 6}
SAMPLINGS = {
    "greedy": Sampling(temperature=0),
    "penalised": Sampling(temperature=0, repetition_penalty=1.3, logprobs=3),
    "drawn": Sampling(seed=5, presence_penalty=0.7, frequency_penalty=0.4, top_k=20, logprobs=0),
    "biased": Sampling(temperature=0.5, seed=6, logit_bias=((3, 4.0), (7, -100.0)), top_p=0.9, min_p=0.01),
}
PROMPTS = [
    request(name, random_tokens(20 + 5 * place, seed=place), 40, arrival=float(place), sampling=sampling, samples=samples)
    for place, ((name, sampling), samples) in enumerate(zip(SAMPLINGS.items(), (1, 1, 2, 1), strict=True))
]


def settled(**changes: int | str) -> EngineConfig:
    known = {"num_blocks": 11, "block_size": 16, "max_model_len": 128, "max_num_seqs": 4, "max_num_batched_tokens": 24}
    return config(**(known | changes))


def ridden(executor: Executor, requests: list[Request], **changes: int | str) -> Ride:
    ride = Ride(EngineCore(settled(**changes), executor))
    ride.submit(*requests)
    ride.run()
    assert ride.free_again
    return ride


@contextmanager
def two_ranks(model: Model = MODEL, *, timeout_s: float = 60.0) -> Iterator[tuple[ParallelExecutor, subprocess.Popen[bytes]]]:
    """Rank 0, and the process of rank 1."""
    executor = ParallelExecutor.load(model, choice=PLAIN_CHOICE, size=2, group_s=timeout_s, sizes=SIZES)
    process = executor._crew._followers[0].process
    try:
        yield executor, process
    finally:
        executor.close()
        assert process.returncode is not None


@pytest.fixture(scope="module")
def both() -> Iterator[ParallelExecutor]:
    with two_ranks() as (executor, process):
        yield executor
        executor.close()
        assert process.returncode == 0


@pytest.mark.parametrize("depth", [1, 2])
def test_two_ranks_give_the_tokens_of_one(both: ParallelExecutor, depth: int) -> None:
    alone = TorchExecutor.load(MODEL.description, MODEL.weights, choice=PLAIN_CHOICE, **SIZES)
    ride, expected = ridden(both, PROMPTS, depth=depth), ridden(alone, PROMPTS, depth=depth)
    assert (ride.tokens, ride.preemptions > 0, len(ride.tokens)) == (expected.tokens, True, 5)


def test_two_ranks_store_and_load(both: ParallelExecutor) -> None:
    ride = ridden(both, PROMPTS, depth=2, num_host_blocks=6)
    assert any(step.plan.moves for step in ride.steps)
    assert ride.tokens == ridden(both, PROMPTS).tokens


def test_what_compiles_kernels_is_computed_by_all_and_forgotten(both: ParallelExecutor) -> None:
    expected = ridden(both, PROMPTS).tokens
    both.warm_up(plans(vocab=MODEL.description.vocab, block_size=SIZES["block_size"], max_tokens=SIZES["max_tokens"]))
    assert ridden(both, PROMPTS).tokens == expected


def test_a_model_that_a_follower_cannot_open_is_refused_in_one_line() -> None:
    with pytest.raises(ModelError, match=r"^rank 1: /gone\.gguf: there is no such file or folder$"):
        ParallelExecutor.load(replace(MODEL, reference="/gone.gguf"), choice=PLAIN_CHOICE, size=2, sizes=SIZES)


def test_the_name_of_a_file_need_not_be_text() -> None:
    name = os.fsdecode(b"/g\xffne.gguf")
    with pytest.raises(ModelError, match=r"^rank 1: /g\\udcffne\.gguf: there is no such file or folder$"):
        ParallelExecutor.load(replace(MODEL, reference=name), choice=PLAIN_CHOICE, size=2, sizes=SIZES)


def test_memory_that_a_follower_lacks_is_told_in_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    """Rank 0's own blocks are the same number, so it is a number that no machine has."""
    with pytest.raises(ConfigError, match=r"^(rank 1: )?there is too little memory for the weights and the KV cache: \S.*$"):
        ParallelExecutor.load(MODEL, choice=PLAIN_CHOICE, size=2, sizes={**SIZES, "num_blocks": 1 << 40})
    assert "Traceback" not in capfd.readouterr().err


def test_a_rank_that_is_killed_in_the_midst_of_a_step_ends_it(both: ParallelExecutor) -> None:
    """It is stopped first, so that rank 0 waits for it when it dies."""
    [step] = [step.plan for step in ridden(both, PROMPTS[:1]).steps if step.plan.step == 0]
    with two_ranks() as (executor, process), ThreadPoolExecutor(1) as thread:
        _stop(process)
        computing = thread.submit(_compute, executor, step)
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(ExecutorLost, match=rf"rank 1 \(process {process.pid}\) was killed by SIGKILL"):
            computing.result()
        with pytest.raises(ExecutorLost, match="was killed by SIGKILL"):
            executor.launch(step)


def test_a_rank_that_stands_still_is_given_up(both: ParallelExecutor) -> None:
    [step] = [step.plan for step in ridden(both, PROMPTS[:1]).steps if step.plan.step == 0]
    with two_ranks(timeout_s=2.0) as (executor, process):
        _stop(process)
        with pytest.raises(ExecutorLost, match=r"^another rank has not answered for 2 s$"):
            _compute(executor, step)


class Busy(TorchExecutor):
    """Whose device gets to the end of so many `steps`, and of no more, as one does that waits for a rank that is gone."""

    def __init__(self, *, steps: int = 0) -> None:
        self.steps, self.closed = steps, False

    @property
    def done(self) -> bool:
        return self.steps > 0

    def launch(self, plan: Plan) -> None: ...

    def collect(self) -> Result:
        self.steps -= 1
        return Result(0, ())

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("action", "timeout_s", "said"),
    [
        ("after 0.05 die", 30.0, r"rank 1 \(process \d+\) was killed by SIGKILL"),
        ("wait", 0.5, "the ranks have not ended a step in 0.5 s"),
    ],
)
def test_nobody_waits_for_a_device_that_waits_for_the_dead(action: str, timeout_s: float, said: str) -> None:
    with crew(action) as followers:
        own = Busy()
        executor = ParallelExecutor(own, followers, ALONE, timeout_s=timeout_s)
        with pytest.raises(ExecutorLost, match=said):
            _compute(executor, Plan(0, ()))
        executor.close()
        assert not own.closed


class Greedy(Busy):
    """Which has too little memory for a step."""

    def launch(self, plan: Plan) -> None:
        raise MemoryError("Unable to allocate 2 GiB\nmore")


def test_memory_that_rank_0_lacks_in_a_step_is_told_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with crew("wait") as followers:
        executor = ParallelExecutor(Greedy(), followers, ALONE)
        with pytest.raises(ExecutorLost, match=r"^rank 0: too little memory: Unable to allocate 2 GiB$"):
            executor.launch(Plan(0, ()))
        executor.close()
    assert not caplog.records


class Released(Alone):
    """A group, and whether it is closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()


class HeldUp(Busy):
    """Whose device takes no more launches until nobody waits in the group any more; then it has ended all of its steps."""

    def __init__(self, group: Released) -> None:
        super().__init__(steps=9)
        self._group = group

    def launch(self, plan: Plan) -> None:
        self._group.closed.wait()


def test_nobody_is_held_up_for_long_in_the_midst_of_a_launch_nor_takes_its_result() -> None:
    with crew("after 0.05 die") as followers:
        group = Released()
        executor = ParallelExecutor(HeldUp(group), followers, group, release_s=0.0)
        executor.guard()
        executor.launch(Plan(0, ()))
        with pytest.raises(ExecutorLost, match="was killed by SIGKILL"):
            executor.collect()
        executor.close()


@pytest.mark.parametrize("action", ["after 0.05 die", "wait"])
def test_nor_at_the_end_with_a_step_in_flight(action: str) -> None:
    with crew(action) as followers:
        own = Busy()
        executor = ParallelExecutor(own, followers, ALONE, timeout_s=0.5)
        executor.launch(Plan(0, ()))
        executor.close()
        assert not own.closed


def test_a_step_in_flight_at_the_end_is_waited_for() -> None:
    with crew("wait") as followers:
        own = Busy(steps=1)
        executor = ParallelExecutor(own, followers, ALONE, timeout_s=30.0)
        executor.launch(Plan(0, ()))
        executor.close()
        assert (own.steps, own.closed) == (0, True)


@pytest.mark.parametrize(("own", "ranks", "least"), [(250, 3, 100), (50, 3, 50), (250, 1, 250)])
def test_memory_is_that_of_the_rank_with_the_least(own: int, ranks: int, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On GPUs, of which PyTorch believes to have three; scripted followers have 100 bytes, 200, and so on."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (own, 300))
    assert least_free_bytes(Device(torch.device("cuda", 0)), ranks, follower="scripted_follower") == least


def test_the_death_of_a_rank_is_told_while_nothing_runs() -> None:
    with two_ranks() as (executor, process):
        told: Future[str] = Future()
        executor.watch(told.set_result)
        process.kill()
        assert told.result() == f"rank 1 (process {process.pid}) was killed by SIGKILL"


def _compute(executor: Executor, plan: Plan) -> None:
    executor.launch(plan)
    executor.collect()


def _stop(process: subprocess.Popen[bytes]) -> None:
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
