import io

from rich.console import Console

from chairlift.cli.counting import PLAIN_LEAST, CountingBars, CountingLines, counter


def told(total: int, *steps: int) -> list[str]:
    lines: list[str] = []
    shown = CountingLines(lines.append)
    shown.start("Reading", total)
    for step in steps:
        shown.advance(step)
    shown.done()
    return lines


def test_long_work_gets_a_line_for_every_quarter() -> None:
    assert told(4000, *[400] * 10) == ["Reading", "Reading: 25 %", "Reading: 50 %", "Reading: 75 %"]


def test_short_work_gets_one_line() -> None:
    assert told(PLAIN_LEAST - 1, *[100] * 9) == ["Reading"]


def test_steps_of_many_quarters_get_one_line_each() -> None:
    assert told(4000, 2500, 1500) == ["Reading", "Reading: 50 %"]


def test_without_a_terminal_there_are_lines() -> None:
    assert isinstance(counter(Console(file=io.StringIO())), CountingLines)


def test_a_bar_counts_to_its_total_and_vanishes() -> None:
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=100, highlight=False)
    shown = counter(console)
    assert isinstance(shown, CountingBars)
    shown.start("Reading", 300)
    shown.advance(120)
    shown.done()
    shown.notice("Done [1]")
    assert "Reading" in written.getvalue()
    assert "120/300" in written.getvalue()
    assert written.getvalue().endswith("Done [1]\n")
