"""Ranks of one model as threads of one process, connected by gloo as processes would be."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from torch_executors import one_thread

from chairlift.execute.torch.device import Device
from chairlift.execute.torch.parallel.group import Group, Ranks, find, meet

T = TypeVar("T")
CPU = Device.pick("cpu")
PATIENCE_S = 30.0
"""Nobody waits that long but after a mistake."""


def together(size: int, run: Callable[[Group], T], *, timeout_s: float = PATIENCE_S) -> list[T]:
    """What every rank comes to. The exception of the first that raises one."""
    server = meet(timeout_s=timeout_s)

    def rank(number: int) -> T:
        one_thread()
        store = find(server.port, timeout_s=timeout_s) if number else server
        group = Ranks.join(number, size, CPU, store=store, timeout_s=timeout_s)
        try:
            return run(group)
        finally:
            group.close()

    with ThreadPoolExecutor(size) as pool:
        return [future.result() for future in [pool.submit(rank, number) for number in range(size)]]
