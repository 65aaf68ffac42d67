"""The operations: PyTorch's form against plain formulas, and Triton's, in its interpreter, against PyTorch's.

All are worked out in float32, so two ways of adding up differ by some of its last bits, and after rounding to a smaller type
by one unit of that type at most now and then. The interpreter cuts digits off where it makes a bfloat16, and a GPU rounds.
"""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ops_cases import ACTIVATIONS, TOLERANCE, RotationCase, assert_close, random

from chairlift.execute import rotary
from chairlift.execute.torch.kernels.ops import TritonOps
from chairlift.execute.torch.ops import Activation, TorchOps
from chairlift.models.description import Rope

dtypes = st.sampled_from(list(TOLERANCE))
seeds = st.integers(0, 1 << 30)


class TestFormulas:
    """PyTorch's form in float32 against the words of float64."""

    def test_a_norm_divides_by_the_root_of_the_mean_square(self) -> None:
        x, weight = random(1, 3, 40), random(2, 40)
        exact = x.double() / (x.double().square().mean(1, keepdim=True) + 1e-5).sqrt() * weight.double()
        assert_close(TorchOps().norm(x, weight, 1e-5), exact.float())

    def test_the_sum_is_rounded_before_it_is_normed(self) -> None:
        x, residual, weight = (
            random(seed, *shape, dtype=torch.bfloat16) for seed, shape in ((1, (3, 40)), (2, (3, 40)), (3, (40,)))
        )
        normed, total = TorchOps().add_norm(x, residual, weight, 1e-5)
        assert total.equal((x.float() + residual.float()).to(torch.bfloat16))
        assert normed.equal(TorchOps().norm(total, weight, 1e-5))

    @pytest.mark.parametrize("activation", ACTIVATIONS)
    def test_a_gate_is_an_activation_times_the_other_half(self, activation: Activation) -> None:
        plain = {
            "silu": lambda x: x / (1 + math.exp(-x)),
            "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
            "gelu": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
        }[activation]
        both = 3 * random(4, 5, 14)
        exact = [[plain(row[i]) * row[7 + i] for i in range(7)] for row in both.double().tolist()]
        assert_close(TorchOps().gate(both, activation), torch.tensor(exact))

    def test_rotation_is_that_of_the_reference_executor(self) -> None:
        case = RotationCase(tokens=4, heads=3, kv_heads=1, head_dim=8, block_size=4, dtype=torch.float32, seed=5, normed=False)
        turn = rotary.turn(Rope(10_000.0), 8, case.positions.numpy())
        queries, kv = case.run(TorchOps())
        parts = case.qkv.unflatten(1, (5, 8)).numpy()
        assert_close(queries, torch.from_numpy(rotary.rotate(parts[:, :3], turn)))
        keys = torch.from_numpy(rotary.rotate(parts[:, 3:4], turn))
        for token, slot in enumerate(case.slots.tolist()):
            if slot >= 0:
                assert_close(kv[slot // 4, 0, slot % 4], keys[token])
                assert kv[slot // 4, 1, slot % 4].equal(torch.from_numpy(parts[token, 4:]))


class TestTriton:
    @given(rows=st.integers(0, 4), size=st.integers(1, 300), dtype=dtypes, seed=seeds)
    @settings(max_examples=40)
    def test_norms_equal_pytorch(self, rows: int, size: int, dtype: torch.dtype, seed: int) -> None:
        x, weight = random(seed, rows, size + 5, dtype=dtype)[:, 2:-3], random(seed + 1, size, dtype=dtype)
        assert_close(TritonOps().norm(x, weight, 1e-6), TorchOps().norm(x, weight, 1e-6))

    @given(rows=st.integers(0, 4), size=st.integers(1, 300), dtype=dtypes, seed=seeds)
    @settings(max_examples=40)
    def test_sums_with_norms_equal_pytorch(self, rows: int, size: int, dtype: torch.dtype, seed: int) -> None:
        x, residual = random(seed, rows, size + 5, dtype=dtype)[:, 2:-3], random(seed + 1, rows, size, dtype=dtype)
        weight = random(seed + 2, size)
        normed, total = TritonOps().add_norm(x, residual, weight, 1e-6)
        expected, exact = TorchOps().add_norm(x, residual, weight, 1e-6)
        assert_close(total, exact)
        assert_close(normed, expected)

    @given(rows=st.integers(0, 3), size=st.one_of(st.integers(1, 40), st.integers(1020, 1030)), dtype=dtypes, seed=seeds)
    @pytest.mark.parametrize("activation", ACTIVATIONS)
    @settings(max_examples=20)
    def test_gates_equal_pytorch(self, activation: Activation, rows: int, size: int, dtype: torch.dtype, seed: int) -> None:
        both = 4 * random(seed, rows, 2 * size + 3, dtype=dtype)[:, :-3]
        assert_close(TritonOps().gate(both, activation), TorchOps().gate(both, activation))

    @given(
        tokens=st.integers(0, 5),
        kv_heads=st.integers(1, 3),
        group=st.integers(1, 8),
        head_dim=st.sampled_from([8, 64, 80, 96, 112, 128, 256]),
        block_size=st.sampled_from([1, 8, 16]),
        dtype=dtypes,
        seed=seeds,
        normed=st.booleans(),
    )
    @settings(max_examples=60)
    def test_rotation_and_store_equal_pytorch(self, kv_heads: int, group: int, **shape: Any) -> None:
        case = RotationCase(kv_heads=kv_heads, heads=kv_heads * group, **shape)
        queries, kv = case.run(TritonOps())
        expected, stored = case.run(TorchOps())
        assert_close(queries, expected)
        assert_close(kv, stored)

    @pytest.mark.parametrize("ops", [TorchOps(), TritonOps()])
    def test_what_has_no_slot_is_nowhere_stored(self, ops: TorchOps | TritonOps) -> None:
        case = RotationCase(tokens=3, heads=2, kv_heads=1, head_dim=16, block_size=4, dtype=torch.float32, seed=3, normed=True)
        case.slots[:] = -1
        _, kv = case.run(ops)
        assert kv.equal(case.kv)
