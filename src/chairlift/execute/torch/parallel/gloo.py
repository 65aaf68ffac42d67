"""Connects ranks on the CPU, by gloo. Knows tensors and a store; knows no models, plans or processes.

Whoever waits for the others looks up now and then: gloo goes on waiting for a rank whose death it has missed, and to abort it
releases nobody who already waits.
"""

import threading
from datetime import timedelta
from typing import Any

import torch.distributed
from torch import Tensor

LOOPBACK = "127.0.0.1"

TURN = timedelta(seconds=0.25)
"""Between two looks at whether there is anything left to wait for."""


class Waiting:
    """An operation that the other ranks take part in."""

    def __init__(self, work: Any, closed: threading.Event) -> None:
        self._work, self._closed = work, closed

    def wait(self) -> None:
        """RuntimeError if it has failed, or is over as the connection has been aborted."""
        while True:
            try:
                self._work.wait(TURN)
            except RuntimeError:
                if self._work.is_completed() or self._closed.is_set():
                    raise
            else:
                return


class Gloo:
    """See `device.Links`. It listens within this machine only."""

    def __init__(self, store: object, *, rank: int, size: int, timeout: timedelta) -> None:
        dist: Any = torch.distributed  # its types leave these classes half empty
        options = dist.ProcessGroupGloo._Options()  # noqa: SLF001  (the public form takes any interface)
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=LOOPBACK)]  # noqa: SLF001
        options._timeout = timeout  # noqa: SLF001
        self._group = dist.ProcessGroupGloo(store, rank, size, options)
        self._closed = threading.Event()

    def allreduce(self, tensors: list[Tensor], /) -> Waiting:
        return Waiting(self._group.allreduce(tensors), self._closed)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], /) -> Waiting:
        return Waiting(self._group.allgather(outputs, inputs), self._closed)

    def broadcast(self, tensors: list[Tensor], /) -> Waiting:
        return Waiting(self._group.broadcast(tensors), self._closed)

    def abort(self) -> None:
        self._closed.set()
        self._group.abort()
