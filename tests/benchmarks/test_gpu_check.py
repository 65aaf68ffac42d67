"""What goes on around the stages of gpu-check: processes that fail, what is kept of them, and what is told. Without PyTorch."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gpu_check import report
from gpu_check.__main__ import main
from gpu_check.records import Figure, Found, Record, read
from gpu_check.stages import STAGES, Outcome, Stage, run, run_all

ROOT = Path(__file__).parents[2]
SOME = Figure(
    "batch 8, CUDA graphs", "tokens/s", 800.0, (700.0, 900.0), step_ms=10.0, bytes_per_step=20, operations_per_step=40
)
LIMITS = [Figure(report.COPY, "GB/s", 4e-6), Figure(report.MATRIX, "Tops/s", 16e-9)]
"""4,000 bytes and 16,000 operations a second, so half and a quarter of them are asked for."""


@pytest.fixture(autouse=True)
def _found_by_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `scripts/gpu-check` sets it."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT / 'benchmarks'}")


def outcome(name: str, *, figures: list[Figure] | None = None, failures: list[str] | None = None) -> Outcome:
    return Outcome(Stage(name, 30), Found({"a fact": "so it is"}, figures or [], failures or []), 1.5)


def record(path: Path) -> Record:
    return Record(path, stage="a stage", began=time.monotonic())


class TestRecords:
    def test_what_is_written_is_read(self, tmp_path: Path) -> None:
        written = record(tmp_path / "found")
        written.fact("cores", 3)
        written.figure(SOME)
        written.failure("one thing")
        assert read(tmp_path / "found") == Found({"cores": "3"}, [SOME], ["one thing"])

    def test_a_line_that_was_cut_off_is_left_out(self, tmp_path: Path) -> None:
        record(tmp_path / "found").fact("cores", 3)
        with (tmp_path / "found").open("a") as file:
            file.write('["fact", ["memo')
        assert read(tmp_path / "found").facts == {"cores": "3"}

    def test_a_case_that_is_written_again_has_the_later_figure(self, tmp_path: Path) -> None:
        for value in (1.0, 2.0):
            for case in ("one", "two"):
                record(tmp_path / "found").figure(Figure(case, "tokens/s", value))
        assert [(figure.case, figure.value) for figure in read(tmp_path / "found").figures] == [("one", 2.0), ("two", 2.0)]

    def test_nothing_was_found_where_nothing_was_written(self, tmp_path: Path) -> None:
        assert read(tmp_path / "nowhere") == Found()


class TestStages:
    def test_one_that_fails_is_told_and_the_next_goes_on(self, tmp_path: Path) -> None:
        found = list(run_all([Stage("missing", 30), Stage("absent", 30)], tmp_path, dry_run=True))
        assert [outcome.passed for outcome in found] == [False, False]
        told = [outcome.found.failures for outcome in found]
        assert told == [[f"ModuleNotFoundError: No module named 'gpu_check.{name}'"] for name in ("missing", "absent")]

    def test_one_that_takes_too_long_is_ended(self, tmp_path: Path) -> None:
        found = run(Stage("environment", 0.01), tmp_path, began=time.monotonic(), dry_run=True)
        assert found.found.failures == ["it was not done after 0 s, and was ended"]

    def test_all_of_them_together_take_less_than_six_minutes(self) -> None:
        assert sum(stage.seconds for stage in STAGES) <= 350


class TestReport:
    def test_shares_are_of_what_the_same_run_measured(self) -> None:
        told = report.as_json(
            [outcome("environment", figures=LIMITS), outcome("decode", figures=[SOME])], dry_run=False, took_s=3
        )
        figure = told["stages"][1]["figures"][0]
        assert (figure["copy_share"], figure["matrix_share"]) == (pytest.approx(0.5), pytest.approx(0.25))

    def test_without_limits_there_are_no_shares(self) -> None:
        told = report.as_json([outcome("decode", figures=[SOME])], dry_run=False, took_s=3)
        figure = told["stages"][0]["figures"][0]
        assert (figure["copy_share"], figure["matrix_share"]) == (None, None)

    def test_json_has_every_stage_and_says_whether_all_passed(self) -> None:
        told = report.as_json([outcome("environment"), outcome("decode", failures=["it broke"])], dry_run=True, took_s=3.04)
        assert json.loads(json.dumps(told)) == {
            "version": 1,
            "dry_run": True,
            "passed": False,
            "took_s": 3.0,
            "stages": [
                {
                    "name": name,
                    "passed": not failures,
                    "took_s": 1.5,
                    "seconds": 30,
                    "failures": failures,
                    "facts": {"a fact": "so it is"},
                    "figures": [],
                }
                for name, failures in (("environment", []), ("decode", ["it broke"]))
            ],
            "ratio_to_transformers": None,
        }

    def test_the_tables_line_up_and_failures_are_named(self) -> None:
        lines = report.lines(
            [outcome("environment", figures=LIMITS), outcome("decode", figures=[SOME], failures=["it broke"])],
            dry_run=True,
            took_s=61,
        )
        rows = [line for line in lines if line.startswith("| ")]
        assert len({len(row) for row in rows[:4]}) == len({len(row) for row in rows[4:]}) == 1
        assert [cell.strip() for cell in rows[-1].split("|")[1:-1]] == [
            "decode",
            "batch 8, CUDA graphs",
            "800.0",
            "tokens/s",
            "700.0 to 900.0, 2 runs",
            "10.000",
            "50.0%",
            "25.0%",
            "",
        ]
        assert "FAILED decode: it broke" in lines
        assert lines[-2:] == [report.DRY, "1 of 2 stages passed in 61 s"]

    def test_aims_are_met_missed_or_not_measured(self) -> None:
        many = Figure("batch 256, CUDA graphs", "tokens/s", 1.0, step_ms=1000.0, bytes_per_step=1)
        slow = Figure("batch 8, eager", "tokens/s", 1.0, step_ms=1000.0, bytes_per_step=1)
        rivals = [
            Figure(f"batch 128, {name}", "tokens/s", rate) for name, rate in ((report.OURS, 700.0), (report.THEIRS, 200.0))
        ]
        measured = [
            outcome("environment", figures=LIMITS),
            outcome("decode", figures=[SOME, slow, many]),
            outcome("rivals", figures=rivals),
        ]
        assert [line.rpartition(": ")[2] for line in report.aims(measured)] == ["0.50, MISSED", "3.50, met"]
        assert [line.rpartition(": ")[2] for line in report.aims([])] == ["not measured", "not measured"]


def test_a_file_that_cannot_be_written_is_told_before_anything_is_examined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("triton")
    for path in (tmp_path, tmp_path / "missing" / "found.json"):
        monkeypatch.setattr(sys, "argv", ["gpu-check", "--output", str(path)])
        assert main() == 2
        assert capsys.readouterr().err == f"error: {path} cannot be written\n"


def test_what_is_not_installed_is_told_in_one_line(tmp_path: Path) -> None:
    """A Python that finds the standard library alone."""
    command = [sys.executable, "-S", "-m", "gpu_check", "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == f"error: not installed for {sys.executable}: numpy, torch, triton\n"
