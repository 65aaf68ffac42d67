"""What the ranks that compute one step together say to each other. Knows tensors; knows nothing of models, plans or processes.

Every rank must ask for the same operations in the same order. On a GPU none of them waits on the host: they are asked of the
device as everything else is, and may be captured with it.
"""

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from chairlift.core.errors import ExecutorLost
from chairlift.execute.torch.device import Device
from chairlift.execute.torch.parallel.gloo import LOOPBACK


class Group(Protocol):
    """The ranks 0 to `size` - 1, of which this is `rank`. A rank that is gone makes the operations of the others raise."""

    rank: int
    size: int

    def sum(self, part: Tensor) -> Tensor:
        """The sum of the parts of all ranks, with the same bits on every one. `part` may be overwritten."""
        ...

    def gather(self, part: Tensor, widths: Sequence[int]) -> Tensor:
        """The parts [..., widths[rank]] of all ranks side by side, in the order of the ranks."""
        ...

    def broadcast(self, tensor: Tensor) -> Tensor:
        """That of rank 0 on every rank, in place. It must be contiguous."""
        ...

    def close(self) -> None:
        """Nobody can ask for anything any more, nor can the other ranks. Who waits for them is told by an exception."""
        ...


class Alone:
    """A single rank, which is handed back whatever it has."""

    rank = 0
    size = 1

    def sum(self, part: Tensor) -> Tensor:
        return part

    def gather(self, part: Tensor, widths: Sequence[int]) -> Tensor:
        assert tuple(widths) == part.shape[-1:]
        return part

    def broadcast(self, tensor: Tensor) -> Tensor:
        return tensor

    def close(self) -> None: ...


ALONE = Alone()


class Ranks:
    """Ranks that are connected by `torch.distributed`: NCCL between GPUs, gloo between processes on the CPU.

    The process group is this object's own and not PyTorch's global one, so a process may hold several ranks (as tests do).
    """

    def __init__(self, rank: int, size: int, device: Device, store: TCPStore, *, timeout_s: float) -> None:
        """See `join`."""
        self.rank, self.size = rank, size
        self._timeout_s = timeout_s
        self._store = store  # that of rank 0 is the server of all
        with self._patience():
            self._links = device.links(store, rank=rank, size=size, timeout=timedelta(seconds=timeout_s))

    @classmethod
    def join(cls, rank: int, size: int, device: Device, *, store: TCPStore, timeout_s: float) -> "Ranks":
        """Waits until all ranks are connected. `store` is that of `meet` on rank 0, that of `find` on the others.

        Whoever waits for longer than `timeout_s` for another rank gets ExecutorLost, here and in every operation. NCCL
        cannot raise it out of an operation that was only asked for: it ends the process instead.
        """
        ranks = cls(rank, size, device, store, timeout_s=timeout_s)
        ranks.sum(torch.zeros(1, device=device.on)).item()  # connects those that connect only when they must, and waits
        return ranks

    def sum(self, part: Tensor) -> Tensor:
        part = part.contiguous()
        with self._patience():
            self._links.allreduce([part]).wait()
        return part

    def gather(self, part: Tensor, widths: Sequence[int]) -> Tensor:
        # Neither library is asked for parts that differ: what lacks a column or so is filled up.
        widest = max(widths)
        part = F.pad(part, (0, widest - part.shape[-1])).contiguous()
        parts = [torch.empty_like(part) for _ in widths]
        with self._patience():
            self._links.allgather([parts], [part]).wait()
        return torch.cat([one[..., :width] for one, width in zip(parts, widths, strict=True)], dim=-1)

    def broadcast(self, tensor: Tensor) -> Tensor:
        assert tensor.is_contiguous()
        with self._patience():
            self._links.broadcast([tensor]).wait()
        return tensor

    def close(self) -> None:
        self._links.abort()

    @contextmanager
    def _patience(self) -> Iterator[None]:
        """Says in our words that a time limit is over: the libraries have none for it but those of where they waited."""
        began = time.monotonic()
        try:
            yield
        except RuntimeError:
            if time.monotonic() - began < self._timeout_s:
                raise
            raise ExecutorLost(f"another rank has not answered for {self._timeout_s:g} s") from None


def meet(*, timeout_s: float) -> TCPStore:
    """Where ranks find each other, served by rank 0 on a free `port` of the loopback interface."""
    # The store would listen on all interfaces.
    server = socket.create_server((LOOPBACK, 0))
    port = server.getsockname()[1]
    return TCPStore(
        LOOPBACK,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=timeout_s),
        master_listen_fd=server.detach(),
    )


def find(port: int, *, timeout_s: float) -> TCPStore:
    """The place that rank 0 serves on this port. An exception of `torch.distributed` if nobody does in that time."""
    return TCPStore(LOOPBACK, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))
