import pytest
import typer

from chairlift.cli.options import count, seconds


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ("0", 0),
        ("4096", 4096),
        ("32k", 32_000),
        ("32K", 32_768),
        ("1.5g", 1_500_000_000),
        ("2G", 2 << 30),
        (" 7 ", 7),
        (512, 512),
    ],
)
def test_numbers_are_read_as_people_write_them(written: str | int, number: int) -> None:
    assert count(written) == number


@pytest.mark.parametrize("written", ["", "k", "-1", "1.5", "1e3", "2GB", "1.0001k", "9" * 19, "0x10", "٣"])
def test_anything_else_is_a_usage_error(written: str) -> None:
    with pytest.raises(typer.BadParameter):
        count(written)


@pytest.mark.parametrize(("written", "time_s"), [("0", 0.0), ("0.05", 0.05), ("1e3", 1000.0), (15.0, 15.0)])
def test_times_are_numbers_of_seconds(written: str | float, time_s: float) -> None:
    assert seconds(written) == time_s


@pytest.mark.parametrize("written", ["", "-1", "nan", "inf", "1e9", "5s"])
def test_what_no_clock_can_wait_for_is_a_usage_error(written: str) -> None:
    with pytest.raises(typer.BadParameter):
        seconds(written)
