"""What the executor in PyTorch can be asked for, and what it comes to on this machine. Knows names; knows no tensors."""

from dataclasses import dataclass

import torch

from chairlift.execute.torch.attention.backends import Backend
from chairlift.execute.torch.attention.backends import choose as choose_attention
from chairlift.execute.torch.device import Device

_IN_SHORT = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}


@dataclass(frozen=True, slots=True)
class Choice:
    """With nothing left open."""

    device: Device
    dtype: torch.dtype
    """Of weights, activations, keys and values."""
    attention: Backend
    fused: bool = False
    """Triton's kernels do what lies between matrix products, and draw."""

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def kv(self) -> str:
        """As `--kv-cache-dtype` names it."""
        return _IN_SHORT[self.dtype]

    @property
    def kernels(self) -> str:
        """In words: which implementations compute."""
        return f"attention {self.attention.words}, other kernels {'triton' if self.fused else 'torch'}"


def resolve(device: str, dtype: str, attention_backend: str, *, head_dim: int | None = None) -> Choice:
    """ConfigError for what there is not, or not on this machine; what the model's heads rule out only if they are known."""
    picked = Device.pick(device)
    numbers = picked.dtype(dtype)
    attention = choose_attention(attention_backend, picked, dtype=numbers, head_dim=head_dim)
    return Choice(picked, numbers, attention, fused=picked.fused)
