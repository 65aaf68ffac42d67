import io

from rich.console import Console

from chairlift.cli.progress import PLAIN_LEAST, Bars, Lines, progress, steps


def told(total: int | None, *steps: int) -> list[str]:
    lines: list[str] = []
    shown = Lines(lines.append)
    shown.start("Loading", total)
    for step in steps:
        shown.advance(step)
    shown.done()
    return lines


def test_long_work_gets_a_line_for_every_quarter() -> None:
    total = 100 * 2**20
    assert told(total, *[total // 10] * 10) == ["Loading (100 MiB)", "Loading: 25 %", "Loading: 50 %", "Loading: 75 %"]


def test_work_in_one_go_gets_one_line() -> None:
    total = 100 * 2**20
    assert told(total, total) == ["Loading (100 MiB)"]


def test_short_work_gets_one_line() -> None:
    total = PLAIN_LEAST - 2**20
    assert told(total, total // 2, total // 2) == ["Loading (63 MiB)"]


def test_work_of_unknown_length_gets_one_line() -> None:
    assert told(None, 5, 5) == ["Loading"]


def test_without_a_terminal_there_are_no_bars() -> None:
    output = io.StringIO()
    shown = progress(Console(file=output, width=20))
    shown.notice("[a licence] that is longer than a line")
    assert output.getvalue() == "[a licence] that is longer than a line\n"


def test_on_a_terminal_there_is_a_bar() -> None:
    output = io.StringIO()
    shown = progress(Console(file=output, force_terminal=True, width=100))
    assert isinstance(shown, Bars)
    shown.start("Loading", 10)
    shown.advance(10)
    shown.done()
    assert "Loading" in output.getvalue()


def test_steps_without_a_terminal_are_told_as_they_are_done() -> None:
    output = io.StringIO()
    with steps(Console(file=output, width=80), "Measuring", 10) as shown:
        shown.advance(5)
        shown.note("half of it")
    assert output.getvalue() == "half of it\n"


def test_steps_on_a_terminal_have_a_bar() -> None:
    output = io.StringIO()
    with steps(Console(file=output, force_terminal=True, width=80), "Measuring", 10) as shown:
        shown.advance(5)
        shown.note("half of it")
    assert "Measuring" in output.getvalue()
    assert "half of it" in output.getvalue()
