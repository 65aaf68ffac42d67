"""Followers that are processes and have no PyTorch: see `scripted_follower`."""

from collections.abc import Iterator
from contextlib import contextmanager

from chairlift.execute.torch.parallel.launch import Crew


@contextmanager
def crew(*actions: str, timeout_s: float = 30.0) -> Iterator[Crew]:
    """Rank 0 and a scripted follower for each action."""
    started = Crew(("cpu", *actions), timeout_s=timeout_s, follower="scripted_follower").start()
    processes = [one.process for one in started._followers]
    try:
        yield started
    finally:
        started.close()
        assert all(process.returncode is not None for process in processes)
        assert not started._watcher.is_alive()
