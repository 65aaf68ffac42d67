"""The command that plays records again, and the flag that makes them."""

import json
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from engines import config, ride
from processes import END_S, chairlift, until
from taped import Tape
from virtual import request

from chairlift.cli import main


def code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.fixture
def record(tmp_path: Path) -> Path:
    tape, engine = Tape(config()), ride()
    engine.submit(request("a", range(9), 5), request("b", range(9), 9))
    engine.run()
    for step in engine.steps:
        tape.on_step(step)
    path = tmp_path / "run.jsonl"
    path.write_text("".join(tape.lines))
    return path


def test_a_record_that_is_decided_again_ends_with_0(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code("replay", str(record)) == 0
    assert capsys.readouterr().out == "identical: 11 steps and 2 requests of shadow in 10.0 s (0 preemptions)\n"


def test_a_difference_ends_with_1_and_is_named(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record.write_text(record.read_text().replace('"rows":2,"tokens":2,"plan":"', '"rows":2,"tokens":2,"plan":"x'))
    assert code("replay", str(record)) == 1
    out = capsys.readouterr().out
    assert out.startswith("different: step 1: the recorded plan has 2 rows and 2 tokens")
    assert out.count("\n") == 1


def test_figures_are_written_as_json(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code("replay", str(record), "--json", "-") == 0
    figures: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (figures["identical"], figures["steps"], figures["requests"]) == (True, 11, 2)


@pytest.mark.parametrize(
    ("name", "reason"), [("missing.jsonl", "No such file"), ("other.txt", "line 1 is not JSON"), ("empty.txt", "is empty")]
)
def test_what_is_no_record_is_said_in_one_line(
    name: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.txt").write_bytes(b"\xff\x00 something\n")
    (tmp_path / "empty.txt").touch()
    assert code("replay", str(tmp_path / name)) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert reason in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(("name", "reason"), [("run.jsonl", "is there already"), ("no/run.jsonl", "no folder")])
def test_a_record_that_cannot_be_made_is_a_usage_error(
    name: str, reason: str, record: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code("serve", "dummy:tiny", "--record", str(record.parent / name)) == 2
    assert reason in " ".join(capsys.readouterr().err.split())


def test_a_server_is_recorded_and_its_record_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "served.jsonl"
    arguments = ("--port", "0", "--executor", "reference", "--max-model-len", "128", "--record", str(path))
    with chairlift("serve", "dummy:tiny", *arguments) as process:
        assert until(process, "record").endswith(str(path))
        url = until(process, "address").split()[1]
        for prompt in ("a secret", "a secret too"):
            answer = httpx.post(
                f"{url}/completions", json={"prompt": prompt, "max_tokens": 5, "ignore_eos": True}, timeout=END_S
            )
            assert answer.status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(END_S) == 0
    assert "secret" not in path.read_text()
    assert code("replay", str(path)) == 0
    assert capsys.readouterr().out.startswith("identical: ")
