"""Captured steps where nothing can be captured: they are computed anew, and must do to the letter what they did the first time.

And attention that can be captured, in plain PyTorch.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from chairlift.execute.torch.attention.rows import Rows

WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "item")
"""Operations that look at numbers of the device."""


class Written(TorchDispatchMode):
    """Lists all operations: by name, and each argument by what it is, or by where it is and how it lies there."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[object, ...]] = []
        self._made: dict[int, int] = {}
        """By what number of a call memory was allocated while this wrote: where it lies is chance."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = str(func)
        assert not any(name.startswith(f"aten.{waiting}.") for waiting in WAITING), f"{name} waits for the device"
        given = tree_leaves((args, kwargs or {}))
        self.calls.append((name, *map(self._described, given)))
        out = func(*args, **(kwargs or {}))
        known = {_memory(tensor) for tensor in given if isinstance(tensor, Tensor)}
        for made in tree_leaves(out):
            if isinstance(made, Tensor) and _memory(made) not in known:
                self._made[_memory(made)] = len(self.calls)
        return out

    def _described(self, value: object) -> object:
        if isinstance(value, torch.UntypedStorage):
            return self._place(value.data_ptr())
        if not isinstance(value, Tensor):
            return value
        return (self._place(_memory(value)), value.storage_offset(), tuple(value.shape), value.stride(), value.dtype)

    def _place(self, memory: int) -> str:
        return f"made by call {self._made[memory]}" if memory in self._made else f"at {memory}"


class Rewritten:
    """Computes what was captured and compares."""

    def __init__(self, run: Callable[[], None], calls: list[tuple[object, ...]]) -> None:
        self._run, self._calls = run, calls
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        with Written() as written:
            self._run()
        assert written.calls == self._calls, "what is captured would do something else by now"


class WritingRecorder:
    """See `device.Recorder`. For any device."""

    def __init__(self) -> None:
        self.captured: list[Rewritten] = []

    def capture(self, run: Callable[[], None]) -> Rewritten:
        run()
        with Written() as written:
            run()
        self.captured.append(Rewritten(run, written.calls))
        return self.captured[-1]


class DenseAttention:
    """Every token looks at all places of its row's table. Nothing depends on what the host knows of contexts."""

    def __init__(self, *, scale: float) -> None:
        self._scale = scale
        self._batch: Rows | None = None

    def plan(self, batch: Rows) -> None:
        self._batch = batch

    def run(self, layer: int, queries: Tensor, kv: Tensor, window: int | None) -> Tensor:
        batch = self._batch
        assert batch is not None
        tokens, heads, _ = queries.shape
        at = torch.arange(tokens, dtype=torch.int32, device=queries.device)
        rows = torch.searchsorted(batch.bounds[1:], at, right=True)
        positions = batch.contexts[rows] - batch.bounds[rows + 1] + at
        keys, values = (
            kv[batch.tables[rows].long()][:, :, part].flatten(1, 2).repeat_interleave(heads // kv.shape[3], dim=2)
            for part in (0, 1)
        )
        places = torch.arange(keys.shape[1], device=queries.device)
        behind = positions[:, None] - places
        seen = (behind >= 0) & (behind < (window or len(places))) & (positions >= 0)[:, None]
        scores = torch.einsum("thd,tphd->thp", queries, keys).float() * self._scale
        shares = torch.where(seen[:, None], scores, -torch.inf).softmax(dim=-1)
        shares = torch.where(seen[:, None], shares, 0).to(queries.dtype)
        return torch.einsum("thp,tphd->thd", shares, torch.where(seen[..., None, None], values, 0))


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
