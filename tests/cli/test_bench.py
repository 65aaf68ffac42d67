"""`chairlift bench engine`, with a model of a few thousand numbers."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from scripted_engine import scripted

from chairlift.bench.engine import Subject, Workload
from chairlift.cli import main
from chairlift.cli.bench import Report, measure, sizes
from chairlift.compose import EngineOptions
from chairlift.core.costs import Limits, ModelCost
from chairlift.core.types import Plan, Result

SHORT = ("--input-len", "20", "--output-len", "4")


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(("bench", "engine", *arguments))
    assert isinstance(caught.value.code, int)
    return caught.value.code


def figures(path: Path) -> Any:
    return json.loads(path.read_text())


def test_a_table_and_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "bench.json"
    assert code("dummy:tiny", "--batch", "1,3", *SHORT, "--executor", "reference", "--json", str(report)) == 0
    told, shown = figures(report), capsys.readouterr()
    assert [(row["batch"], row["input_len"], row["output_len"]) for row in told["rows"]] == [(1, 20, 4), (3, 20, 4)]
    for row in told["rows"]:
        assert min(row["prefill_tokens_per_s"], row["decode_tokens_per_s"], row["decode_ms_per_step"]) > 0
        assert (row["bandwidth_share"], row["int8_share"]) == (None, None)
    assert (told["model"], told["complete"]) == ("dummy:tiny", True)
    assert {"cpu", "cores", "threads", "isa", "system", "python", "bandwidth_gb_per_s", "int8_gops"} <= told["machine"].keys()
    assert "handover" in shown.out
    assert "round 1, batch 3" in shown.err


def test_the_compiled_executor_beside_the_limits_of_the_machine(tmp_path: Path) -> None:
    report = tmp_path / "bench.json"
    assert code("dummy:tiny", "--batch", "2", *SHORT, "--executor", "cpu", "--threads", "1", "--json", str(report)) == 0
    told = figures(report)
    assert told["machine"]["threads"] == 1
    assert min(told["machine"]["bandwidth_gb_per_s"], told["machine"]["int8_gops"]) > 0
    assert 0 < told["rows"][0]["int8_share"] < 1


@pytest.mark.parametrize("executor", ["cpu", "reference"])
def test_the_contiguous_layout_is_measured_when_asked_for(
    tmp_path: Path, executor: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "bench.json"
    asked = ("--kv-layout", "contiguous", "--executor", executor, "--json", str(report))
    assert code("dummy:tiny", "--batch", "1,3", *SHORT, *asked) == 0
    told = figures(report)
    assert (told["complete"], told["options"]["kv_layout"]) == (True, "contiguous")
    assert ", contiguous: prompts" in capsys.readouterr().out


def test_the_figures_can_go_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert code("dummy:tiny", "--batch", "1", *SHORT, "--rounds", "2", "--executor", "reference", "--json", "-") == 0
    assert len(json.loads(capsys.readouterr().out)["rows"][0]["rounds"]) == 2


@pytest.mark.parametrize(("asked", "tokens"), [((), 512), (("--max-num-batched-tokens", "2"), 3)])
def test_a_step_holds_what_suits_the_executor_and_a_token_of_everybody_at_least(
    tmp_path: Path, asked: tuple[str, ...], tokens: int
) -> None:
    report = tmp_path / "bench.json"
    assert code("dummy:tiny", "--batch", "1,3", *SHORT, "--executor", "reference", *asked, "--json", str(report)) == 0
    assert figures(report)["options"]["max_num_batched_tokens"] == tokens


def test_context_is_the_length_of_the_prompts(tmp_path: Path) -> None:
    report = tmp_path / "bench.json"
    asked = ("--context", "70", "--output-len", "2", "--executor", "reference", "--json", str(report))
    assert code("dummy:tiny", "--batch", "1", *asked) == 0
    assert figures(report)["rows"][0]["input_len"] == 70


@pytest.mark.parametrize("written", ["0", "1,x", "", "1,,2", "-1", "1,2000000", "1;2"])
def test_a_bad_list_is_a_usage_error(written: str) -> None:
    with pytest.raises(typer.BadParameter):
        sizes(written)


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (("--batch", "1,x"), 2, "not a list of sizes like 1,8,32"),
        (("--context", "64", "--input-len", "64"), 2, "give one of them"),
        (("--output-len", "1"), 2, "--output-len"),
        (("--input-len", "4090"), 1, "are 4154: dummy:tiny was made for 4096"),
        (("--batch", "1000000", "--context", "4000"), 1, "do not fit into"),
        (("--executor", "abacus"), 1, "there is no executor 'abacus'"),
    ],
)
def test_what_cannot_be_measured_is_said_in_one_line(
    arguments: tuple[str, ...], status: int, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code("dummy:tiny", *arguments) == status
    assert reason in " ".join(capsys.readouterr().err.split())


def test_help_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert code("--help") == 0
    assert "Measure how fast a model runs here" in capsys.readouterr().out


class Interrupted:
    """An executor at which somebody presses Ctrl-C in step `at`."""

    threads, isa, computed = None, None, (0.0, 0.0)
    cost = ModelCost(0, 0, 0, 0, 0, ())

    def __init__(self, inner: Any, at: int) -> None:
        self._inner, self._left = inner, at

    def launch(self, plan: Plan) -> None:
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt
        self._inner.launch(plan)

    def collect(self) -> Result:
        return self._inner.collect()

    def limits(self) -> Limits | None:
        return None

    def close(self) -> None: ...


def interrupted(at: int) -> tuple[bool, Report]:
    """One row a batch: 3 steps to warm up, then 3 for each batch of a prompt and an answer of three tokens."""
    loaded = scripted()
    executor = Interrupted(loaded.executor, at)
    workload = Workload((1,), input_len=5, output_len=3, rounds=3)
    report = Report("scripted", EngineOptions(), loaded, executor, workload, None)
    subject = Subject(loaded.fit.config, executor, executor, 50)
    return measure(subject, workload, report, Console(file=io.StringIO(), width=80)), report


def test_ctrl_c_keeps_what_was_measured() -> None:
    stopped, report = interrupted(at=9)
    assert stopped
    assert [run.round for run in report.runs] == [1]


def test_without_it_everything_is_measured() -> None:
    stopped, report = interrupted(at=100)
    assert not stopped
    assert [run.round for run in report.runs] == [1, 2, 3]


def test_what_is_incomplete_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, report = interrupted(at=9)
    report.show(tmp_path / "part.json")
    assert figures(tmp_path / "part.json")["complete"] is False
    assert "prompts of 5 tokens" in capsys.readouterr().out


def test_nothing_at_all_is_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    _, report = interrupted(at=2)
    report.show(None)
    assert capsys.readouterr().out == "nothing has been measured yet\n"


def test_limits_that_differ_tell_of_others_at_work(capsys: pytest.CaptureFixture[str]) -> None:
    _, report = interrupted(at=100)
    loaded, executor = scripted(), Interrupted(None, 0)
    busy = Report("scripted", EngineOptions(), loaded, executor, Workload((1,), 5, 3), Limits(1e9, 4e9))
    busy.runs += report.runs
    busy.limits_afterwards(Limits(2e9, 4e9))
    busy.show(None)
    shown = capsys.readouterr().out
    assert "reads 2.0 GB/s, computes 4 GOPS" in shown
    assert "differed by 50 %" in shown
