"""Small files in the formats of published traces, whole and broken."""

import json
from pathlib import Path
from typing import Any

import pytest

from chairlift.core.errors import TraceError
from chairlift.workload.traces import Arrival, read_azure, read_mooncake

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
ROW = {"timestamp": 0, "input_length": 513, "output_length": 2, "hash_ids": [0, 1]}


def azure(folder: Path, *lines: str) -> list[Arrival]:
    path = folder / "azure.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_azure(path)


def mooncake(folder: Path, *rows: dict[str, Any] | str) -> list[Arrival]:
    path = folder / "mooncake.jsonl"
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_mooncake(path)


class TestAzure:
    def test_times_are_seconds_after_the_first(self, tmp_path: Path) -> None:
        rows = azure(tmp_path, HEADER, "2023-11-16 18:17:03.9799600,4808,10", "2023-11-16 18:18:04.0319600,3180,8")
        assert rows == [Arrival(0.0, 4808, 10), Arrival(60.052, 3180, 8)]

    def test_rows_are_put_into_the_order_of_time(self, tmp_path: Path) -> None:
        rows = azure(tmp_path, HEADER, "2023-11-16 18:00:02,2,1", "2023-11-16 18:00:01,1,1")
        assert rows == [Arrival(0.0, 1, 1), Arrival(1.0, 2, 1)]

    def test_columns_are_read_by_name(self, tmp_path: Path) -> None:
        rows = azure(tmp_path, "NumImages,GeneratedTokens,TIMESTAMP,ContextTokens", "3,7,2024-05-10 00:00:00.009930+00:00,5")
        assert rows == [Arrival(0.0, 5, 7)]

    def test_a_mark_of_byte_order_is_no_part_of_a_name(self, tmp_path: Path) -> None:
        assert azure(tmp_path, "\ufeff" + HEADER, "2023-11-16 18:00:02,2,1") == [Arrival(0.0, 2, 1)]

    @pytest.mark.parametrize(
        ("lines", "reason"),
        [
            (["TIMESTAMP,ContextTokens", "x"], "line 1: there is no column GeneratedTokens, only TIMESTAMP, ContextTokens"),
            ([HEADER, "2023-11-16 18:00:02,2,1", "yesterday,2,1"], "line 3: TIMESTAMP is no time: 'yesterday'"),
            ([HEADER, "2023-11-16 18:00:02,2"], "line 2: it has not as many values as there are columns"),
            ([HEADER, "2023-11-16 18:00:02,2,3,4"], "line 2: it has not as many values as there are columns"),
            ([HEADER, "2" * 200_000 + ",2,3"], "line 2: field larger than field limit (131072)"),
            ([HEADER, "2023-11-16 18:00:02,-2,1"], "line 2: ContextTokens is no number of tokens: '-2'"),
            ([HEADER, "2023-11-16 18:00:02,2,"], "line 2: GeneratedTokens is no number of tokens: ''"),
            ([HEADER, "2023-11-16 18:00:02,0,1"], "line 2: ContextTokens is no number of tokens from 1 to 100,000,000: 0"),
            ([HEADER, "2023-11-16 18:00:02,1,1", "2023-11-16 18:00:02Z,1,1"], "line 3: only some times have a time zone"),
        ],
    )
    def test_what_is_wrong_is_named_with_its_line(self, tmp_path: Path, lines: list[str], reason: str) -> None:
        with pytest.raises(TraceError) as caught:
            azure(tmp_path, *lines)
        assert str(caught.value) == f"{tmp_path / 'azure.csv'}: {reason}"


class TestMooncake:
    def test_times_are_seconds_after_the_first(self, tmp_path: Path) -> None:
        rows = mooncake(tmp_path, ROW | {"timestamp": 3000}, ROW | {"timestamp": 4500, "input_length": 512, "hash_ids": [0]})
        assert rows == [Arrival(0.0, 513, 2, (0, 1)), Arrival(1.5, 512, 2, (0,))]

    def test_other_fields_are_passed_over(self, tmp_path: Path) -> None:
        assert mooncake(tmp_path, ROW | {"chat_id": 3}) == [Arrival(0.0, 513, 2, (0, 1))]

    @pytest.mark.parametrize(
        ("row", "reason"),
        [
            ("{'a': 1}", """this is no JSON: "{'a': 1}\""""),
            ("[1]", "this is no JSON object: '[1]'"),
            ({"timestamp": 0, "input_length": 1, "output_length": 1}, "there is no field 'hash_ids'"),
            (ROW | {"timestamp": True}, "timestamp is no number of milliseconds: True"),
            (ROW | {"timestamp": float("nan")}, "timestamp is no number of milliseconds: nan"),
            (ROW | {"timestamp": 10**400}, f"timestamp is no number of milliseconds: 1{'0' * 39}…"),
            (ROW | {"output_length": 0}, "output_length is no number of tokens from 1 to 100,000,000: 0"),
            (ROW | {"input_length": 1.5}, "input_length is no number of tokens from 1 to 100,000,000: 1.5"),
            (ROW | {"hash_ids": [0, "1"]}, "hash_ids is no list of integers from 0 to 2,000,000,000: [0, '1']"),
            (ROW | {"hash_ids": [0, -1]}, "hash_ids is no list of integers from 0 to 2,000,000,000: [0, -1]"),
            (ROW | {"input_length": 512}, "2 hash_ids of 512 tokens are not 512 tokens"),
        ],
    )
    def test_what_is_wrong_is_named_with_its_line(self, tmp_path: Path, row: dict[str, Any] | str, reason: str) -> None:
        with pytest.raises(TraceError) as caught:
            mooncake(tmp_path, ROW, row)
        assert str(caught.value) == f"{tmp_path / 'mooncake.jsonl'}: line 2: {reason}"


@pytest.mark.parametrize("read", [read_azure, read_mooncake])
class TestFiles:
    def test_one_that_is_not_there(self, tmp_path: Path, read: Any) -> None:
        with pytest.raises(TraceError, match="No such file"):
            read(tmp_path / "none")

    def test_an_empty_one(self, tmp_path: Path, read: Any) -> None:
        (tmp_path / "empty").touch()
        with pytest.raises(TraceError, match="the file is empty"):
            read(tmp_path / "empty")

    def test_one_that_is_no_text(self, tmp_path: Path, read: Any) -> None:
        (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(TraceError, match="this is no text"):
            read(tmp_path / "binary")
