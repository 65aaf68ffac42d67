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
        return f"attention {self.attention.words}"


def resolve(device: str, dtype: str, attention_backend: str) -> Choice:
    """ConfigError for what there is not, or not on this machine."""
    picked = Device.pick(device)
    return Choice(picked, picked.dtype(dtype), choose_attention(attention_backend, picked))
