"""What the decoder asks of attention, and which implementation there is to ask. Knows names; knows no arithmetic."""

from typing import NamedTuple, Protocol

from torch import Tensor

from chairlift.core.errors import ConfigError
from chairlift.execute.torch.batch import Batch
from chairlift.execute.torch.device import Device

AUTO = "auto"
BACKENDS = ("reference",)


class Attention(Protocol):
    """Attention of all rows of a step over their blocks."""

    def plan(self, batch: Batch) -> None:
        """Prepares for the layers of a step: what depends on the rows alone."""
        ...

    def run(self, layer: int, queries: Tensor, kv: Tensor, window: int | None) -> Tensor:
        """What the queries [tokens, heads, head_dim] of one layer see in `kv` [blocks, 2, block_size, kv_heads, head_dim].

        The query at position p sees positions max(0, p - window + 1) to p of its row; one of a row that sees nothing is
        answered with zeros. Consecutive query heads share a key head (Ainslie et al., "GQA", 2023).
        """
        ...


class Backend(NamedTuple):
    """An implementation by its name, and in words why it is this one."""

    name: str
    why: str

    @property
    def words(self) -> str:
        return f"{self.name} ({self.why})"


def choose(asked: str, device: Device) -> Backend:  # noqa: ARG001  (the only one runs anywhere)
    """ConfigError for a name that there is not."""
    if asked == AUTO:
        return Backend("reference", "the only one")
    if asked not in BACKENDS:
        raise ConfigError(f"attention_backend {asked!r:.40} is unknown: it may be auto, {', '.join(BACKENDS)}")
    return Backend(asked, "asked for")


def build(backend: Backend, *, scale: float) -> Attention:
    """`scale` is what products of queries and keys are multiplied with."""
    from chairlift.execute.torch.attention.reference import ReferenceAttention

    assert backend.name == "reference"
    return ReferenceAttention(scale=scale)
