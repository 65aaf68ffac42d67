"""Followers as processes: what they say is heard, how they end is told, and none stays."""

import re
import sys

import pytest
from crews import crew

from chairlift.core.errors import ChairliftError, ConfigError, ExecutorLost, ModelError
from chairlift.execute.torch.parallel.channel import Free, Opened
from chairlift.execute.torch.parallel.launch import Crew


def test_every_follower_is_heard_in_the_order_of_ranks() -> None:
    with crew("wait", "wait", "wait") as followers:
        assert [one.bytes for one in followers.expect(Free)] == [100, 200, 300]


def test_a_frame_reaches_everyone() -> None:
    with crew("count", "count") as followers:
        followers.send(b"x" * 100_000)
        assert followers.expect(Opened) == [Opened(), Opened()]


def test_followers_end_when_they_are_asked_to() -> None:
    with crew("wait", "wait") as followers:
        processes = [one.process for one in followers._followers]
        followers.close()
        assert [process.returncode for process in processes] == [0, 0]
        assert not followers.lost.is_set()


@pytest.mark.parametrize("action", ["deaf", "wait"])
def test_nobody_waits_for_followers_that_are_ended_at_once(action: str) -> None:
    with crew(action) as followers:
        followers.expect(Free)
        process = followers._followers[0].process
        followers.close(at_once=True)
        assert process.returncode == -9


@pytest.mark.parametrize(
    ("action", "error", "said"),
    [
        ("die", ExecutorLost, r"rank 1 \(process \d+\) was killed by SIGKILL"),
        ("exit 3", ExecutorLost, r"rank 1 \(process \d+\) has ended with code 3"),
        ("fail ConfigError no such device", ConfigError, "rank 1: no such device"),
        ("fail ModelError the file is cut", ModelError, "rank 1: the file is cut"),
        ("fail KeyError 'q'", ExecutorLost, "rank 1: 'q'"),
        ("babble", ExecutorLost, "rank 1: it said what nobody understands: .*"),
    ],
)
def test_how_a_follower_ends_is_told_to_whoever_waits_for_it(action: str, error: type[ChairliftError], said: str) -> None:
    with crew(action, "wait") as followers:
        with pytest.raises(ChairliftError) as caught:
            followers.expect(Opened)
        assert (type(caught.value), bool(re.fullmatch(said, str(caught.value)))) == (error, True)
        assert followers.lost.is_set()


def test_who_was_killed_is_blamed_and_not_who_failed_for_it() -> None:
    actions = ("fail RuntimeError the connection is closed", "after 0.05 die", "wait")
    killed = r"rank 2 \(process \d+\) was killed by SIGKILL"
    with crew(*actions) as followers, pytest.raises(ExecutorLost, match=killed):
        followers.explain()


def test_a_failure_that_is_no_followers_doing_is_not_explained() -> None:
    with crew("wait") as followers:
        followers.explain(within_s=0.01)
        followers.check()


def test_a_process_that_cannot_be_started_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere")
    with pytest.raises(ConfigError, match=r"^rank 1 cannot be started: No such file or directory$"):
        Crew(("cpu", "cpu"), timeout_s=1.0).start()


def test_a_follower_that_takes_nothing_any_more_is_not_waited_for() -> None:
    with crew("deaf", timeout_s=0.05) as followers:
        with pytest.raises(ExecutorLost, match=r"rank 1 \(process \d+\) has taken no plan for 0.05 s"):
            followers.send(b"x" * 10_000_000)
        followers.close(at_once=True)


def test_who_asks_late_is_told_who_was_lost_and_not_who_was_ended_for_it() -> None:
    """As whoever watches does, whose thread comes to it when the engine has closed everything already."""
    with crew("exit 3", "wait") as followers:
        followers.lost.wait()
        followers.close(at_once=True)
        assert re.fullmatch(r"rank 1 \(process \d+\) has ended with code 3", followers.await_loss() or "")
