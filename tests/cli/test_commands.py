import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chairlift import __version__
from chairlift.cli import main

PLAIN = ("--executor", "reference")
"""Compiles nothing, which would take seconds with a cache that is empty."""


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAIRLIFT_CACHE", str(tmp_path / "cache"))


def code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert isinstance(caught.value.code, int)
    return caught.value.code


def figures(path: Path) -> Any:
    return json.loads(path.read_text())


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert code("--version") == 0
    assert capsys.readouterr().out == f"chairlift {__version__}\n"


def test_what_the_caller_has_closed_leads_nowhere() -> None:
    """Or the server's socket would be standard input, and an event loop that closes it ends the process by an assertion."""
    script = (
        "import os; from chairlift.cli import main\ntry: main(['--version'])\nfinally: print(os.readlink('/proc/self/fd/0'))"
    )
    ended = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, f"chairlift {__version__}\n{os.devnull}\n")


@pytest.mark.parametrize("command", ["serve", "chat", "run", "models", "check", "bench", "replay"])
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert code(command, "--help") == 0
    assert f"chairlift {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [("run", "dummy:tiny"), ("serve", "--port", "x"), ("check", "--max-model-len", "many"), ("fly",)]
)
def test_a_usage_error_has_its_own_exit_code(arguments: tuple[str, ...]) -> None:
    assert code(*arguments) == 2


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--preset", "none"), "'none' is none of continuous, static"),
        (("--scheduling-policy", "none"), "'none' is none of fcfs, priority, fair"),
        (("--split", "half"), "'half' is none of chunked, whole, balanced"),
        (("--headroom", "none"), "'none' is none of optimistic, reserve, expected"),
        (("--kv-layout", "heap"), "'heap' is none of paged, contiguous"),
        (("--preemption-mode", "swop"), "'swop' is none of recompute, swap"),
        (("--itl-target-ms", "0"), "must be above 0"),
        (("--batch-wait-ms", "-1"), "is not a number of milliseconds"),
        (("--max-priority", "101"), "100"),
        (("--tenant-header", "a b"), "cannot be the name of a header"),
        (("--trusted-proxy", "10.0.0.1/8"), "no network like 10.1.0.0/16"),
        (("--tenant-weight", "sesame"), "as in NAME=3"),
        (("--slo-class", "chat=fast"), "like chat=500,50"),
    ],
)
def test_a_flag_that_cannot_be_read_says_so_at_the_end(
    flags: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code("serve", *flags) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("Error: ")
    assert reason in last
    assert "sesame" not in last


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("serve", "--tenant-header", "X-Tenant"), "need each other"),
        (("serve", "--api-key", "k", "--tenant-weight", "other=2"), "with API keys a tenant_weight is for one of them"),
        (("run", "nosuchmodel", "hi"), "is no known model"),
        (("check", "./missing.gguf"), "there is no such file"),
        (("check", "dummy:tiny", "--max-model-len", "1M"), "more than the 4096 tokens"),
        (("run", "dummy:tiny", "hi", "--chat-template", "missing.jinja"), "No such file"),
        (("run", "dummy:tiny", "hi", "--chat-template", "broken.jinja"), "the chat template is broken"),
        (("models", "--fetch", "nosuchmodel"), "is no known model"),
        (("serve", "--config", "missing.yaml"), "No such file"),
        (("run", "dummy:tiny", "x" * 5000, *PLAIN), "maximum context length"),
        (("serve", "--executor", "abacus"), "there is no executor 'abacus'; there are cpu, torch, reference"),
        (("run", "dummy:tiny", "hi", "--quantization", "int3"), "it may be auto, int8, int4, none"),
        (("chat", "dummy:tiny", "--isa", "sse9"), "isa 'sse9' is unknown"),
        (("check", "dummy:tiny", "--kv-cache-dtype", "f8"), "kv_cache_dtype 'f8' is unknown"),
        (("check", "dummy:tiny", "--block-size", "8"), "block_size must be a multiple of 16"),
        (("check", "dummy:tiny", "--isa", "portable", *PLAIN), "isa is a setting of the executor cpu"),
    ],
)
def test_whatever_goes_wrong_is_said_in_one_line(
    arguments: tuple[str, ...],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.jinja").write_text("{% if %}")
    assert code(*arguments) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: ")
    assert reason in last


def test_run_streams_one_answer_and_reports_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "run.json"
    assert code("run", "dummy:tiny", "hello", "--max-tokens", "5", "--seed", "1", "--stats", "--json", str(report), *PLAIN) == 0
    captured, told = capsys.readouterr(), figures(report)
    assert captured.out == told["text"] + "\n"
    assert (told["completion_tokens"], told["finish_reason"]) == (5, "length")
    assert f"{told['prompt_tokens']} + 5 tokens" in captured.err


def test_the_same_seed_gives_the_same_answer(capsys: pytest.CaptureFixture[str]) -> None:
    answers: list[str] = []
    for _ in range(2):
        assert code("run", "dummy:tiny", "hello", "--max-tokens", "20", "--seed", "7", "--temperature", "1", *PLAIN) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]


def test_raw_leaves_the_template_out(tmp_path: Path) -> None:
    report = tmp_path / "run.json"
    assert code("run", "dummy:tiny", "hello", "--raw", "--max-tokens", "1", "--json", str(report), *PLAIN) == 0
    assert figures(report)["prompt_tokens"] == len("hello")


def test_check_says_what_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "check.json"
    limits = ("--max-num-seqs", "2", "--max-model-len", "1k", "--block-size", "16")
    assert code("check", "dummy:tiny", *limits, "--json", str(report)) == 0
    told = figures(report)
    assert (told["max_model_len"], told["kv_tokens"], told["full_contexts"]) == (1000, 2016, 2.0)
    assert "dummy:tiny can be served" in capsys.readouterr().out


def test_check_says_what_computes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "check.json"
    flags = ("--isa", "portable", "--threads", "1", "--quantization", "int4", "--kv-cache-dtype", "bf16")
    assert code("check", "dummy:tiny", *flags, "--json", str(report)) == 0
    told = figures(report)
    assert [told[name] for name in ("executor", "isa", "threads", "kv_cache_dtype")] == ["cpu", "portable", 1, "bf16"]
    assert "cpu: portable, 1 thread, weights in 4 bits, KV bf16" in capsys.readouterr().out


def test_check_with_the_reference_counts_four_bytes_a_weight(tmp_path: Path) -> None:
    report = tmp_path / "check.json"
    assert code("check", "dummy:tiny", *PLAIN, "--json", str(report)) == 0
    told = figures(report)
    assert told["weight_bytes"] == 4 * told["parameters"]


def test_models_lists_what_is_not_here_yet(capsys: pytest.CaptureFixture[str]) -> None:
    assert code("models") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["smollm2", "gemma3-270m"]
    assert all(line.endswith("not fetched yet") for line in lines)


def test_json_can_go_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert code("models", "--json", "-") == 0
    assert {entry["bytes"] for entry in json.loads(capsys.readouterr().out)} == {None}


@pytest.mark.parametrize(
    ("flags", "reason"),
    [(("--stop", ""), "--stop must not be empty"), (("--raw", "--system", "x"), "no place for --system")],
)
def test_flags_that_cannot_be_meant_are_usage_errors(
    flags: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code("run", "dummy:tiny", "hi", *flags) == 2
    assert reason in capsys.readouterr().err
