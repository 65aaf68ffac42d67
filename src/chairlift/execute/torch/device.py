"""Where tensors live: picks the device and its type of numbers, moves bytes to it and back without waiting, marks moments.

The only module that knows the name "cuda", and the only one that asks which kind of device it is. Knows nothing of models.
"""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed
from numpy.typing import NDArray
from torch import Tensor

from chairlift.core.errors import ConfigError
from chairlift.execute.torch.parallel.gloo import Gloo

_AUTO, _CPU, _CUDA = "auto", "cpu", "cuda"
_NUMBERED = re.compile(r"cuda(?::([0-9]{1,3}))?")
_BFLOAT16_SINCE = (8, 0)
"""Compute capability of the first generation that multiplies bfloat16 in its tensor cores (Ampere)."""

_NCCL_BYTES = 512 << 20
"""Of a GPU's memory, for the buffers through which NCCL talks. An estimate: it takes what it thinks right for the machine."""

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


_ALLOCATOR = "DefaultCPUAllocator: "
"""What PyTorch's errors of the machine's memory say before they get to the point. They have no class of their own."""


def lacking(error: Exception) -> str | None:
    """What could not be had, in one line, if the error is one of too little memory, the machine's or a device's."""
    said = (str(error).strip() or "no memory").splitlines()[0]
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return said
    _, found, after = said.partition(_ALLOCATOR)
    return after if found else None


class Mark(Protocol):
    """A moment in the work of a device."""

    def wait(self) -> None:
        """Returns when everything that was asked of the device before the mark is done."""
        ...

    @property
    def passed(self) -> bool:
        """Whether `wait` would return at once."""
        ...


class Links(Protocol):
    """A connection to the other ranks, as `torch.distributed` has it.

    What is returned has a `wait`. On a GPU only its current stream waits there: what is asked for next comes behind.
    """

    def allreduce(self, tensors: list[Tensor], /) -> Any: ...
    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], /) -> Any: ...
    def broadcast(self, tensors: list[Tensor], /) -> Any: ...
    def abort(self) -> None: ...


class _Past:
    """A device that has done everything by the time it is asked for the next thing."""

    passed = True

    def wait(self) -> None: ...


class _Event:
    """Behind what the current stream was asked for so far."""

    def __init__(self) -> None:
        self._event = torch.cuda.Event()
        self._event.record()

    def wait(self) -> None:
        self._event.synchronize()

    @property
    def passed(self) -> bool:
        return self._event.query()


class Captured(Protocol):
    """Work of a device that it has learnt by heart."""

    def replay(self) -> None:
        """Asks for all of it with one call, behind what was asked for before."""
        ...


class Recorder(Protocol):
    """Captures what a device is asked for."""

    def capture(self, run: Callable[[], None]) -> Captured:
        """What `run` asks for, of the same tensors each time: whatever they hold then is read and overwritten anew.

        It is run here as well, so that nothing is compiled or loaded while it is captured. It must not look at numbers of the
        device, and its tensors must outlive what is captured. What one captured piece leaves in memory that it allocated
        itself is lost when another runs.
        """
        ...


class _CudaRecorder:
    """CUDA graphs, which share one pool of memory, as no two of them ever run at once."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def capture(self, run: Callable[[], None]) -> Captured:
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            run()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads may ask the device for something meanwhile, as those that watch over collective operations do.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            run()
        return graph


@dataclass(frozen=True, slots=True)
class Device:
    """A processor with memory of its own, or the one that this program runs on."""

    on: torch.device
    """As PyTorch names it."""

    @classmethod
    def pick(cls, name: str) -> "Device":
        """The device that "auto", "cpu", "cuda" or "cuda:1" names; "auto" is the first GPU, if there is one.

        ConfigError for any other name, and for a GPU that is not there.
        """
        if name == _CPU or (name == _AUTO and not torch.cuda.is_available()):
            return cls(torch.device(_CPU))
        numbered = _NUMBERED.fullmatch(_CUDA if name == _AUTO else name)
        if numbered is None:
            raise ConfigError(f"device {name!r:.40} is unknown: it may be auto, cpu, cuda, or cuda:1 for the second one")
        if torch.version.cuda is None:
            raise ConfigError(f"device {name!r}: the installed PyTorch {torch.__version__} was built without CUDA")
        count = torch.cuda.device_count()
        index = int(numbered[1] or 0)
        if index >= count:
            there = "no CUDA device" if count == 0 else "only cuda:0" if count == 1 else f"only cuda:0 to cuda:{count - 1}"
            raise ConfigError(f"device {name!r}: this machine has {there}")
        return cls(torch.device(_CUDA, index))

    @property
    def words(self) -> str:
        """As in "cuda:0 (NVIDIA H200)"."""
        return f"{self.on} ({torch.cuda.get_device_name(self.on)})" if self._cuda else _CPU

    def dtype(self, name: str) -> torch.dtype:
        """The type of weights, activations, keys and values. "auto" is bfloat16 where a GPU multiplies it, or else float16; on
        the CPU it is float32.

        ConfigError for an unknown name.
        """
        if name == _AUTO:
            if not self._cuda:
                return torch.float32
            able = torch.cuda.get_device_capability(self.on) >= _BFLOAT16_SINCE
            return torch.bfloat16 if able else torch.float16
        if name not in _DTYPES:
            raise ConfigError(f"dtype {name!r:.40} is unknown: it may be auto, {', '.join(_DTYPES)}")
        return _DTYPES[name]

    def active(self) -> AbstractContextManager[object]:
        """Work of the current thread goes to this device. Kernels that are not PyTorch's own run on the current one."""
        return torch.cuda.device(self.on) if self._cuda else nullcontext()

    def free_bytes(self) -> int | None:
        """Of the device's own memory; None if it works in that of the machine."""
        return torch.cuda.mem_get_info(self.on)[0] if self._cuda else None

    @property
    def capability(self) -> tuple[int, int] | None:
        """A GPU's compute capability. None for any other processor."""
        return torch.cuda.get_device_capability(self.on) if self._cuda else None

    @property
    def overlaps(self) -> bool:
        """It works while the machine goes on: a step can be asked for before the one before it is done."""
        return self._cuda

    @property
    def graphs(self) -> bool:
        """A step can be captured once and be launched as a whole."""
        return self._cuda

    def recorder(self) -> Recorder:
        """Of a device that has `graphs`, while it is `active`."""
        assert self.graphs, f"{self.words} captures nothing"
        return _CudaRecorder()

    @property
    def triton(self) -> bool:
        """Triton's kernels run here: on a GPU, or in Triton's interpreter."""
        if find_spec("triton") is None:
            return False
        if self._cuda:
            return True
        from triton import knobs

        return bool(knobs.runtime.interpret)

    @property
    def fused(self) -> bool:
        """Triton's kernels are the faster way here. Its interpreter is none."""
        return self._cuda and self.triton

    def host(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Zeros in the machine's memory, from where the device can take them by itself."""
        return torch.zeros(shape, dtype=dtype, pin_memory=self._cuda)

    def upload(self, target: Tensor, source: Tensor) -> None:
        """Copies out of a tensor of `host`, which must not change until a mark behind this has passed."""
        target.copy_(source, non_blocking=True)

    def put(self, values: NDArray[np.generic]) -> Tensor:
        """A new tensor of the device. `values` may change at once."""
        staged = torch.from_numpy(values).pin_memory() if self._cuda else torch.from_numpy(values).clone()
        # Pinned memory that is dropped is given out again only after copies out of it are done (PyTorch's host allocator).
        return staged.to(self.on, non_blocking=True)

    def fetch(self, values: Tensor) -> Tensor:
        """The machine's own copy of a tensor. It may be read when a mark behind this has passed."""
        copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=self._cuda)
        return copy.copy_(values, non_blocking=True)

    def mark(self) -> Mark:
        return _Event() if self._cuda else _Past()

    def settle(self) -> None:
        """Waits until the device has nothing to do."""
        if self._cuda:
            torch.cuda.synchronize(self.on)

    def ranks(self, size: int) -> tuple[str, ...]:
        """The names of the devices of so many ranks, this one for the first. ConfigError if there are not so many."""
        if not self._cuda or size == 1:
            return (str(self.on),) * size
        if self.on.index:
            raise ConfigError(f"device '{self.on}': {size} ranks take the first {size} GPUs, so it can only be cuda")
        count = torch.cuda.device_count()
        if size > count:
            raise ConfigError(f"tensor_parallel_size {size}: this machine has {count} GPU{'s' * (count != 1)}")
        return tuple(f"{_CUDA}:{index}" for index in range(size))

    def share(self, size: int) -> None:
        """So many processes compute at once on this machine: on the CPU, each with its part of the processors."""
        if not self._cuda:
            torch.set_num_threads(max(1, torch.get_num_threads() // size))

    def links(self, store: object, *, rank: int, size: int, timeout: timedelta) -> Links:
        """Connects this one of `size` ranks, which find each other in `store`: its tensors to those of the others.

        A GPU's by NCCL, in the order of its work; the CPU's by gloo, at once, and within this machine only.
        """
        if not self._cuda:
            return Gloo(store, rank=rank, size=size, timeout=timeout)
        dist: Any = torch.distributed  # its types leave these classes half empty
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout  # noqa: SLF001
        links = dist.ProcessGroupNCCL(store, rank, size, options)
        links.eager_connect_single_device(self.on)
        return links

    @property
    def link_bytes(self) -> int:
        """What being connected to other ranks takes of the device's own memory."""
        return _NCCL_BYTES if self._cuda else 0

    @property
    def transport(self) -> str:
        """By what ranks are connected, in a word."""
        return "NCCL" if self._cuda else "gloo"

    @property
    def _cuda(self) -> bool:
        return self.on.type == _CUDA
