"""Chat is a conversation with a process: these tests type into one."""

import asyncio
import os
import pty
import signal
import subprocess

import pytest
from processes import COMMAND, END_S, chairlift, ended, until
from scripted_engine import scripted

from chairlift.cli.chat import _Conversation
from chairlift.cli.talk import Asked, Talker
from chairlift.core.errors import ExecutorLost, Unavailable

PLAIN = ("chat", "dummy:tiny", "--executor", "reference", "--temperature", "0")
"""At temperature 0 the made-up model writes newlines to the end of its context, which takes the reference seconds."""
READY = "/new starts afresh"


def send(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def first_characters(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.read(1)


def test_every_line_gets_an_answer_until_the_input_ends() -> None:
    with chairlift(*PLAIN, "--max-tokens", "3") as process:
        out, err = process.communicate("hello\n\nagain\n", timeout=END_S)
    assert (out, process.returncode) == ("\n\n\n\n" * 2, 0)
    assert "error" not in err


def test_ctrl_c_stops_the_answer_and_not_the_program() -> None:
    with chairlift(*PLAIN) as process:
        until(process, READY)
        send(process, "hello")
        first_characters(process)
        process.send_signal(signal.SIGINT)
        until(process, " (stopped)")
        send(process, "/new")
        until(process, "a new conversation")
        send(process, "/exit")
        assert process.wait(END_S) == 0


def test_a_conversation_longer_than_the_context_says_how_to_go_on() -> None:
    with chairlift(*PLAIN, "--max-tokens", "2", "--max-model-len", "50") as process:
        out, err = process.communicate("hello\nhello\n/new\nhello\n", timeout=END_S)
    assert out == "\n\n\n" * 2
    assert "/new starts afresh" in err.partition("error: ")[2]


def test_an_engine_that_is_lost_ends_the_conversation() -> None:
    lines = iter(["hello", "again"])
    with asyncio.Runner() as runner:
        talker = runner.run(_talker())
        try:
            with pytest.raises(Unavailable, match="rank 1 was killed"):
                _Conversation(runner, talker, None).hold(lambda: next(lines))
        finally:
            runner.run(talker.close())
    assert list(lines) == ["again"]


async def _talker() -> Talker:
    return Talker(scripted(_lost), Asked())


def _lost(prefix: tuple[int, ...]) -> int:
    raise ExecutorLost("rank 1 was killed")


def test_ctrl_c_at_the_prompt_says_how_to_leave_and_ctrl_d_leaves() -> None:
    keyboard, terminal = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *PLAIN],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=os.environ | {"TERM": "dumb"},
    )
    os.close(terminal)
    with process, ended(process):
        read_until(keyboard, b"> ")
        process.send_signal(signal.SIGINT)
        # A signal between the prompt and the wait for a key shows only with the next key; otherwise this is an empty line.
        os.write(keyboard, b"\n")
        read_until(keyboard, b"Ctrl-D ends")
        read_until(keyboard, b"> ")
        os.write(keyboard, b"\x04")
        assert process.wait(END_S) == 0
    os.close(keyboard)


def read_until(descriptor: int, end: bytes) -> None:
    seen = b""
    while not seen.endswith(end):
        seen += os.read(descriptor, 1)
