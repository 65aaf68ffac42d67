import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import typer
from native_kernels import HOST_ISAS, OBJECTS, kernels

from chairlift.cli import main
from chairlift.cli.report import table
from chairlift.cli.sameness import Asked, tell
from chairlift.evaluate.invariance import BESIDE, Difference, Place, Report
from chairlift.executors import Computes

FEW = ("--tokens", "60", "--window", "32")
ASKED = Asked("dummy:tiny", 3, 0, (1, 2), "auto", "auto", "auto")
COMPUTES = Computes("cpu", "", "f16", "avx2", 1)
SAME = Report({"1 thread": 9}, {"1 thread": Counter({BESIDE: 4})}, ())
WRONG = Difference(2, "1 thread", Place(1, 17), frozenset({BESIDE}), 5, 512, 3, 0.5, 0.25)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache without models, but with the compiled code that all tests share."""
    kernels(HOST_ISAS[0])
    cache = tmp_path / "cache"
    shutil.copytree(OBJECTS, cache / "kernels", ignore=shutil.ignore_patterns("*.part", "*-emulated.o"))
    (cache / "kernels").chmod(0o700)
    monkeypatch.setenv("CHAIRLIFT_CACHE", str(cache))


def code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(("evaluate", *arguments))
    assert isinstance(caught.value.code, int)
    return caught.value.code


def figures(path: Path) -> Any:
    return json.loads(path.read_text())


def perplexity(*flags: str) -> int:
    return code("perplexity", "dummy:tiny", *FEW, *flags)


@pytest.mark.parametrize("command", ["perplexity", "invariance"])
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert code(command, "--help") == 0
    assert f"chairlift evaluate {command}" in capsys.readouterr().out


# ── perplexity ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_perplexity_has_a_row_for_every_combination(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    lists = ("--quantization", "none,int8", "--kv-cache-dtype", "f32,f16")
    assert perplexity(*lists, "--threads", "1", "--json", str(report)) == 0
    told = figures(report)
    tried = [(row["quantization"], row["kv_cache_dtype"]) for row in told["rows"]]
    assert tried == [("none", "f32"), ("none", "f16"), ("int8", "f32"), ("int8", "f16")]
    assert told["tokens"] == 60 - 2
    for row in told["rows"]:
        ratio = row["perplexity"] / told["reference"]["perplexity"]
        assert row["change_percent"] == pytest.approx(100 * (ratio - 1), abs=1e-9)
        assert abs(row["change_percent"]) < 1
        assert row["same_best_percent"] > 90
    out = capsys.readouterr().out
    assert f"{told['reference']['perplexity']:.4f}" in out
    assert len(out.splitlines()) == 2 + 1 + len(tried)


def test_perplexity_in_floats_is_that_of_the_reference(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    exact = ("--quantization", "none", "--kv-cache-dtype", "f32")
    assert perplexity(*exact, "--json", str(report)) == 0
    (row,) = figures(report)["rows"]
    assert abs(row["change_percent"]) < 0.001
    assert row["same_best_percent"] == 100


def test_perplexity_of_a_file(tmp_path: Path) -> None:
    text, report = tmp_path / "text", tmp_path / "report.json"
    text.write_text("a few bytes")
    assert code("perplexity", "dummy:tiny", "--text", str(text), "--json", str(report)) == 0
    told = figures(report)
    assert (told["text"], told["tokens"]) == (str(text), len("a few bytes") - 1)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--text", "missing"), "missing: No such file"),
        (("--text", "empty"), "no token that could be predicted"),
        (("--quantization", "auto,int3"), "quantization 'int3' is unknown"),
        (("--kv-cache-dtype", "f32,f8"), "kv_cache_dtype 'f8' is unknown"),
        (("--isa", "sse"), "isa 'sse' is unknown"),
        (("--window", "5000"), "more than the 4096 tokens"),
    ],
)
def test_whatever_cannot_be_measured_is_refused_before_anything_is_loaded(
    flags: tuple[str, ...],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").touch()
    assert perplexity(*flags) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert reason in lines[0]


def test_a_wrong_name_is_found_before_a_model_is_sought(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("perplexity", "invariance"):
        assert code(command, "nosuchmodel", "--quantization", "int3") == 1
        assert "quantization 'int3' is unknown" in capsys.readouterr().err


# ── invariance ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_invariance_says_what_was_tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    assert code("invariance", "dummy:tiny", "--trials", "2", "--seed", "4", "--threads", "1,2", "--json", str(report)) == 0
    told = figures(report)
    assert [one["name"] for one in told["executors"]] == ["1 thread", "2 threads"]
    assert told["differences"] == []
    first, second = told["executors"]
    assert first["compared"] > 0
    assert first["circumstances"] == second["circumstances"]
    out = capsys.readouterr().out
    assert re.search(rf"logits compared +{first['compared']} +{second['compared']}\n", out)
    assert re.search(r"different +0 +0\n", out)


def test_the_command_ends_well_if_nothing_differs(capsys: pytest.CaptureFixture[str]) -> None:
    tell("dummy:tiny", ASKED, COMPUTES, SAME, None)
    assert re.search(r"different +0\n", capsys.readouterr().out)


def test_a_difference_ends_the_command_with_1_and_is_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    with pytest.raises(typer.Exit) as caught:
        tell("dummy:tiny", ASKED, COMPUTES, Report(SAME.compared, SAME.met, (WRONG, WRONG)), report)
    assert caught.value.exit_code == 1
    captured = capsys.readouterr()
    assert re.search(r"different +2\n", captured.out)
    assert captured.err == f"error: {WRONG}\n"
    assert figures(report)["differences"] == [str(WRONG)] * 2


# ── lists ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "arguments",
    [
        ("perplexity", "--quantization", "auto,,int8"),
        ("perplexity", "--kv-cache-dtype", ""),
        ("perplexity", "--window", "1"),
        ("perplexity", "--tokens", "some"),
        ("invariance", "--threads", "0"),
        ("invariance", "--threads", "1,x"),
        ("invariance", "--trials", "0"),
        ("parity2",),
    ],
)
def test_a_usage_error_has_its_own_exit_code(arguments: tuple[str, ...]) -> None:
    assert code(*arguments) == 2


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert table([("", "b"), ("long", "1"), ("x", "234")]) == ["        b", "long    1", "x     234"]
