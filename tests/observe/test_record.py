"""A record in a file: all of it is there in the end, it is there while it grows, and no disk ever hurts the engine."""

import io
import threading
from pathlib import Path
from typing import TextIO

import pytest
from engines import config, ride
from virtual import request

from chairlift.core.events import Step
from chairlift.core.types import Plan, Snapshot
from chairlift.engine.tape import Writer
from chairlift.observe.record import Recorder, create
from chairlift.sim.replay import replay

WAIT_S = 5.0
QUIET = Step(now=0.0, plan=Plan(0, ()), outputs=(), admitted=(), snapshot=Snapshot(0, 0, 1, 1))


class File(io.StringIO):
    """Tells when something has been made to be in the file, may be stuck, and may be full."""

    def __init__(self, *, stuck: bool = False, room: int = 10**9) -> None:
        super().__init__()
        self.flushed = threading.Semaphore(0)
        self.free = threading.Event()
        self.room = room
        if not stuck:
            self.free.set()

    def write(self, text: str) -> int:
        self.free.wait(WAIT_S)
        if self.tell() + len(text) > self.room:
            raise OSError(28, "No space left on device")
        return super().write(text)

    def flush(self) -> None:
        if not self.closed:
            super().flush()
            self.flushed.release()


def recorder(file: TextIO, *, backlog: int = 100) -> Recorder:
    writer = Writer(config(), key=b"k")
    return Recorder(file, writer, writer.header(version="1", model="m", started=0.0), backlog=backlog).start()


def test_a_record_in_a_file_can_be_replayed(tmp_path: Path):
    path = tmp_path / "run.jsonl"
    sink = recorder(create(path))
    engine = ride()
    engine.submit(request("a", range(9), 5), request("b", range(9), 9))
    engine.run()
    for step in engine.steps:
        sink.on_step(step)
    sink.close()
    with path.open() as lines:
        played = replay(lines)
    assert (played.difference, played.steps, played.requests) == (None, len(engine.steps), 2)


def test_what_was_told_is_in_the_file_before_it_is_closed():
    file = File()
    sink = recorder(file)
    assert file.flushed.acquire(timeout=WAIT_S)  # the header
    sink.on_step(QUIET)
    assert file.flushed.acquire(timeout=WAIT_S)
    assert file.getvalue().count("\n") == 2
    sink.close()


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path):
    path = tmp_path / "run.jsonl"
    path.write_text("precious")
    with pytest.raises(FileExistsError):
        create(path)
    assert path.read_text() == "precious"


def test_a_record_is_for_its_owner_alone(tmp_path: Path):
    path = tmp_path / "run.jsonl"
    create(path).close()
    assert path.stat().st_mode & 0o077 == 0


def test_a_full_disk_ends_the_record_with_one_line(caplog: pytest.LogCaptureFixture):
    file = File(room=600)
    sink = recorder(file)
    for _ in range(50):
        sink.on_step(QUIET)
    sink.close()
    assert not sink._thread.is_alive()
    sink.on_step(QUIET)
    assert [line.getMessage() for line in caplog.records] == [
        "the record ends here, the server goes on: [Errno 28] No space left on device"
    ]


def test_a_disk_that_is_too_slow_ends_the_record_and_holds_nobody_up(caplog: pytest.LogCaptureFixture):
    file = File(stuck=True)
    sink = recorder(file, backlog=3)
    for _ in range(10):
        sink.on_step(QUIET)  # returns at once
    file.free.set()
    sink.close()
    assert len(caplog.records) == 1
    assert "3 steps wait to be written" in caplog.text


def test_closing_twice_is_closing_once(caplog: pytest.LogCaptureFixture):
    sink = recorder(File())
    sink.close()
    sink.close()
    sink.on_step(QUIET)
    assert not caplog.records
