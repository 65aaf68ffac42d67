"""A server of two ranks as its users see it: the answers of one, and an end with a code and without orphans."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier
from typing import Any

import httpx
import pytest
from processes import END_S, chairlift, until

from chairlift.cli import main

SERVE = ("serve", "dummy:tiny", "--port", "0", "--max-model-len", "1k")
TORCH = ("--executor", "torch", "--device", "cpu")
TWO = (*SERVE, *TORCH, "--tensor-parallel-size", "2")
BODIES: tuple[dict[str, Any], ...] = (
    {"prompt": "Once upon a time", "temperature": 0},
    {"prompt": "hello", "temperature": 1, "seed": 7, "top_p": 0.9},
    {"prompt": ["a", "bc"], "temperature": 0.7, "seed": 1, "n": 2, "frequency_penalty": 0.5},
)
LONG = {"prompt": "x", "temperature": 0, "max_tokens": 900, "ignore_eos": True}


@contextmanager
def serving(*command: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server that is ready, and its address."""
    with chairlift(*command, OMP_NUM_THREADS="1") as process:
        url = until(process, "address").split()[1]
        until(process, "try")
        yield process, url


def completion(url: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{url}/completions", json={"max_tokens": 12} | body, timeout=END_S)


def texts(url: str) -> list[list[str]]:
    return [[choice["text"] for choice in completion(url, body).json()["choices"]] for body in BODIES]


def children(process: subprocess.Popen[str]) -> list[int]:
    lists = (path.read_text() for path in Path(f"/proc/{process.pid}/task").glob("*/children"))
    return [int(child) for text in lists for child in text.split()]


def gone(pid: int) -> bool:
    """Ended, if perhaps not yet fetched by whoever is now its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def ends(pid: int) -> bool:
    """Nothing tells when a process ends that is not our child."""
    until_s = time.monotonic() + END_S
    while not gone(pid) and time.monotonic() < until_s:
        time.sleep(0.01)
    return gone(pid)


def test_two_ranks_answer_as_one_and_end_with_the_server() -> None:
    """Signals for all processes of the terminal, or of the service, are rank 0's alone."""
    with serving(*SERVE, "--executor", "reference") as (_, url):
        expected = texts(url)
    with serving(*TWO) as (process, url):
        assert texts(url) == expected
        [follower] = children(process)
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(follower, number)
        assert completion(url, BODIES[0]).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(END_S) == 0
        assert gone(follower)


def test_a_rank_that_is_killed_ends_every_request_with_an_answer_and_the_server_with_a_code() -> None:
    with serving(*TWO) as (process, url), ThreadPoolExecutor(3) as threads:
        [follower] = children(process)
        begun = Barrier(3)
        streams = [threads.submit(_stream, url, begun) for _ in range(2)]
        whole = threads.submit(completion, url, LONG)
        begun.wait(END_S)
        while len(httpx.get(f"{url}/requests").json()["data"]) < 3:
            time.sleep(0.01)
        os.kill(follower, signal.SIGKILL)
        said = f"the engine has failed: rank 1 (process {follower}) was killed by SIGKILL"
        ends = [one.result()[-2:] for one in streams]
        assert [json.loads(one[0].removeprefix("data: "))["error"]["message"] for one in ends] == [said] * 2
        assert [one[1] for one in ends] == ["data: [DONE]"] * 2
        assert (whole.result().status_code, whole.result().json()["error"]["message"]) == (500, said)
        assert process.wait(END_S) == 1
        assert process.stderr is not None
        told = process.stderr.read()
        assert len(re.findall(re.escape(said), told)) == 1
        assert "Traceback" not in told


def _stream(url: str, begun: Barrier) -> list[str]:
    """All lines of a long answer."""
    with httpx.stream("POST", f"{url}/completions", json=LONG | {"stream": True}, timeout=END_S) as answer:
        lines = answer.iter_lines()
        first = next(lines)
        begun.wait(END_S)
        return [first, *(line for line in lines if line)]


def test_followers_end_when_rank_0_is_killed() -> None:
    with serving(*TWO) as (process, _):
        [follower] = children(process)
        process.kill()
        assert ends(follower)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ((), "tensor_parallel_size is a setting of the executor torch, not of cpu"),
        ((*TORCH,), "tensor_parallel_size 3: the model's 4 query heads cannot be cut into 3 equal parts"),
    ],
)
def test_what_cannot_be_cut_is_one_line(flags: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="1"):
        main(("check", "dummy:tiny", "--tensor-parallel-size", "3", *flags))
    assert capsys.readouterr().err.splitlines()[-1] == f"error: {reason}"


def test_sizes_are_those_of_a_rank(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    bytes_of: list[int] = []
    for ranks in ("1", "2"):
        report = tmp_path / f"{ranks}.json"
        with pytest.raises(SystemExit, match="0"):
            main(("check", "dummy:tiny", "--tensor-parallel-size", ranks, "--json", str(report), *TORCH))
        bytes_of.append(json.loads(report.read_text())["weight_bytes"])
    assert bytes_of[1] < 0.6 * bytes_of[0]
    assert "torch: 2 ranks (gloo), cpu, " in capsys.readouterr().out
