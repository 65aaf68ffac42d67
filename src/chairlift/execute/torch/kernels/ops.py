"""The operations of `ops` by Triton kernels: on CUDA devices, and in Triton's interpreter."""

from torch import Tensor

from chairlift.execute.torch.kernels import gates, norms, rotary
from chairlift.execute.torch.ops import Activation, QKNorm


class TritonOps:
    """See `ops.Ops`. Elements of a row or head lie side by side; rows, and the KV's blocks and heads, may lie apart."""

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return norms.norm(x, weight, eps)

    def add_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return norms.add_norm(x, residual, weight, eps)

    def rotate_store(
        self,
        qkv: Tensor,
        positions: Tensor,
        cos: Tensor,
        sin: Tensor,
        slots: Tensor,
        kv: Tensor,
        heads: int,
        kv_heads: int,
        *,
        norms: QKNorm | None = None,
    ) -> Tensor:
        return rotary.rotate_store(qkv, positions, cos, sin, slots, kv, heads, kv_heads, norms=norms)

    def gate(self, gate_up: Tensor, activation: Activation) -> Tensor:
        return gates.gate(gate_up, activation)
