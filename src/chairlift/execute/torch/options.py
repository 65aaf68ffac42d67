"""What the executor in PyTorch can be asked for, and what it comes to on this machine. Knows names; knows no tensors."""

from dataclasses import dataclass

import torch

from chairlift.execute.torch.attention.backends import Backend
from chairlift.execute.torch.attention.backends import choose as choose_attention
from chairlift.execute.torch.device import Device
from chairlift.execute.torch.graphs import sizes

_IN_SHORT = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}


@dataclass(frozen=True, slots=True)
class Choice:
    """With nothing left open."""

    device: Device
    dtype: torch.dtype
    """Of weights, activations, keys and values."""
    attention: Backend
    eager: str | None
    """Why no steps are captured and launched as a whole; None if decode steps are."""
    fused: bool = False
    """Triton's kernels do what lies between matrix products, and draw."""

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def kv(self) -> str:
        """As `--kv-cache-dtype` names it."""
        return _IN_SHORT[self.dtype]

    def captured(self, max_rows: int) -> tuple[int, ...]:
        """Rows of the steps that are captured, where no step has more than `max_rows`."""
        return () if self.eager else sizes(max_rows)

    def kernels(self, max_rows: int) -> str:
        """In words: which implementations compute, and how their steps are launched where there is more than one way."""
        computed = f"attention {self.attention.words}, other kernels {'triton' if self.fused else 'torch'}"
        if not self.device.graphs:
            return computed
        if self.eager:
            return f"{computed}, no CUDA graphs ({self.eager})"
        rows = max(self.captured(max_rows))
        return f"{computed}, CUDA graphs for up to {'1 row' if rows == 1 else f'{rows} rows'}"


def resolve(
    device: str,
    dtype: str,
    attention_backend: str,
    *,
    enforce_eager: bool = False,
    head_dim: int | None = None,
    ranks: int = 1,
) -> Choice:
    """ConfigError for what there is not, or not on this machine; what the model's heads rule out only if they are known."""
    picked = Device.pick(device)
    numbers = picked.dtype(dtype)
    eager = _eager(picked, enforced=enforce_eager, ranks=ranks)
    attention = choose_attention(attention_backend, picked, dtype=numbers, head_dim=head_dim, captures=eager is None)
    if eager is None and not attention.captures:
        eager = f"attention {attention.name} cannot be captured"
    return Choice(picked, numbers, attention, eager, fused=picked.fused)


def _eager(device: Device, *, enforced: bool, ranks: int) -> str | None:
    if not device.graphs:
        return f"{device.words} captures nothing"
    if enforced:
        return "asked for eager"
    # That NCCL's sums can be captured is known; that ours are is not, and a server that does not start is no use to anybody.
    return None if ranks == 1 else "not tried with several ranks"
