"""The commands over traces, run as people run them, on small files of the same formats."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


def run(script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def figures(script: str, *arguments: str | Path) -> Any:
    done = run(script, *arguments, "--json", "-")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def azure(tmp_path: Path) -> Path:
    path = tmp_path / "azure.csv"
    rows = (f"2023-11-16 18:00:{second:02}.5000000,{100 + second},{10 + second}" for second in range(10))
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n")
    return path


@pytest.fixture
def mooncake(tmp_path: Path) -> Path:
    path = tmp_path / "mooncake.jsonl"
    rows = ({"timestamp": n, "input_length": 1025, "output_length": 2, "hash_ids": [0, n % 2, 9 + n]} for n in range(6))
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_waste_of_a_trace(azure: Path) -> None:
    found = figures("kv_waste.py", "--trace", azure, "--block-size", "16,4", "--max-tokens", "50")
    assert [one["block_size"] for one in found] == [16, 4]
    assert found[0]["requests"] == 10
    assert 0 < found[1]["paged"] < found[0]["paged"] < found[0]["reserved"]["0"] < found[0]["reserved"]["50"] < 1


def test_hits_of_a_trace(mooncake: Path) -> None:
    found = figures("prefix_hits.py", "--trace", mooncake, "--blocks", "4", "--in-flight", "1")
    assert [one["blocks"] for one in found] == [None, 4]
    assert found[0]["cached_tokens"] == found[0]["counted_tokens"] == (0 + 1 + 2 * 4) * 512
    assert [one["differences"] for one in found] == [[], []]


def test_the_tables_name_their_trace(azure: Path, mooncake: Path) -> None:
    assert "azure.csv: 10 requests" in run("kv_waste.py", "--trace", azure, "--block-size", "16").stdout
    assert "mooncake.jsonl: 6 requests, 6,150 tokens" in run("prefix_hits.py", "--trace", mooncake, "--blocks", "8").stdout


@pytest.mark.parametrize("script", ["kv_waste.py", "prefix_hits.py"])
def test_a_broken_trace_is_one_line(tmp_path: Path, script: str) -> None:
    broken = tmp_path / "broken"
    broken.write_text("no trace")
    done = run(script, "--trace", broken)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith(f"error: {broken}: line 1: ")


def test_costs_of_decisions() -> None:
    small = ("--running", "4", "--waiting", "20", "--prompt", "20", "--answer", "4", "--steps", "5")
    found = figures("scheduler_cost.py", "--order", "shortest", *small)
    assert [(one["order"], one["steps"]) for one in found] == [("shortest", 5)]
