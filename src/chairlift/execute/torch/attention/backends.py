"""What the decoder asks of attention, and which implementation there is to ask. Knows names; knows no arithmetic."""

from importlib.util import find_spec
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from chairlift.core.errors import ConfigError
from chairlift.execute.torch.attention.heads import Heads
from chairlift.execute.torch.attention.rows import Rows
from chairlift.execute.torch.device import Device

AUTO, REFERENCE, TRITON, FLASHINFER = "auto", "reference", "triton", "flashinfer"
BACKENDS = (REFERENCE, TRITON, FLASHINFER)

FLASHINFER_DTYPES = (torch.bfloat16, torch.float16)
FLASHINFER_HEAD_DIMS = (64, 128, 256)


class Attention(Protocol):
    """Attention of all rows of a step over their blocks."""

    def plan(self, batch: Rows) -> None:
        """Prepares for the layers of a step: what depends on the rows alone."""
        ...

    def run(self, layer: int, queries: Tensor, kv: Tensor, window: int | None) -> Tensor:
        """What the queries [tokens, heads, head_dim] of one layer see in `kv` [blocks, 2, block_size, kv_heads, head_dim].

        The query at position p sees positions max(0, p - window + 1) to p of its row; one of a row that sees nothing is
        answered with zeros. Consecutive query heads share a key head (Ainslie et al., "GQA", 2023).
        """
        ...


class Place(Protocol):
    """What a choice depends on of a device; see `device.Device`."""

    @property
    def capability(self) -> tuple[int, int] | None: ...
    @property
    def triton(self) -> bool: ...
    @property
    def words(self) -> str: ...


class Backend(NamedTuple):
    """An implementation by its name, and in words why it is this one."""

    name: str
    why: str

    @property
    def words(self) -> str:
        return f"{self.name} ({self.why})"

    @property
    def captures(self) -> bool:
        """`run` may be captured once and be launched again for other rows of the same lengths, whatever they see."""
        return self.name == TRITON


def choose(asked: str, device: Place, *, dtype: torch.dtype, head_dim: int | None = None, captures: bool = False) -> Backend:
    """The backend of that name; for "auto" the fastest there is for this device, type and size of heads: one that `captures`,
    if steps shall be captured.

    Until the model is known, `head_dim` is None and any will do. ConfigError for a name that there is not, and for a backend
    that cannot compute this here.
    """
    if asked == AUTO:
        return _fastest(device, dtype, head_dim, captures=captures)
    if asked not in BACKENDS:
        raise ConfigError(f"attention_backend {asked!r:.40} is unknown: it may be auto, {', '.join(BACKENDS)}")
    obstacle = _obstacle(asked, device, dtype, head_dim)
    if obstacle is not None:
        raise ConfigError(f"attention_backend {asked!r}: {obstacle}")
    return Backend(asked, "asked for")


def build(backend: Backend, *, heads: Heads, device: Device, max_rows: int, longest: int) -> Attention:
    """For steps of at most `max_rows` rows, each of at most `longest` positions."""
    if backend.name == TRITON:
        from chairlift.execute.torch.attention import triton

        return triton.build(heads, max_rows=max_rows, longest=longest, device=device.on, capability=device.capability)
    if backend.name == FLASHINFER:
        from chairlift.execute.torch.attention import flashinfer

        return flashinfer.build(heads, device=device.on)
    from chairlift.execute.torch.attention.reference import ReferenceAttention

    assert backend.name == REFERENCE
    return ReferenceAttention(scale=heads.scale)


def workspace_bytes(backend: Backend, *, heads: Heads, device: Device, max_rows: int, longest: int) -> int:
    """What `build` allocates on the device."""
    if backend.name == TRITON:
        from chairlift.execute.torch.attention import triton

        tiles = triton.tiles_for(heads, longest=longest, capability=device.capability)
        return triton.workspace_bytes(heads, tiles, max_rows=max_rows)
    if backend.name == FLASHINFER:
        from chairlift.execute.torch.attention import flashinfer

        return flashinfer.WORKSPACE_BYTES
    return 0


def _fastest(device: Place, dtype: torch.dtype, head_dim: int | None, *, captures: bool) -> Backend:
    if device.capability is None:
        return Backend(REFERENCE, "the others are for GPUs")
    if captures and device.triton:
        return Backend(TRITON, "it can be captured")
    without = _obstacle(FLASHINFER, device, dtype, head_dim)
    if without is None:
        return Backend(FLASHINFER, "it is installed")
    if device.triton:
        return Backend(TRITON, f"FlashInfer: {without}")
    return Backend(REFERENCE, "neither FlashInfer nor Triton can be used")


def _obstacle(name: str, device: Place, dtype: torch.dtype, head_dim: int | None) -> str | None:
    """Why a backend cannot compute this here."""
    if name == TRITON and not device.triton:
        return "Triton is not installed" if find_spec("triton") is None else f"its kernels are for GPUs, not for {device.words}"
    if name != FLASHINFER:
        return None
    if find_spec("flashinfer") is None:
        return "flashinfer is not installed"
    if device.capability is None:
        return f"its kernels are for GPUs, not for {device.words}"
    if dtype not in FLASHINFER_DTYPES:
        return "it computes in bfloat16 and float16"
    if head_dim is not None and head_dim not in FLASHINFER_HEAD_DIMS:
        return f"it has heads of {', '.join(map(str, FLASHINFER_HEAD_DIMS))} numbers, and the model's have {head_dim}"
    return None
