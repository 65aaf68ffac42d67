"""Weights on their device, and what an executor says that it will take."""

import math

import numpy as np
import pytest
import torch
from tiny_decoders import PLAIN, VARIANTS, ArrayWeights, random_weights
from torch_executors import choice, torch_executor

from chairlift.core.errors import ConfigError, ModelError
from chairlift.execute.torch.device import Device, lacking
from chairlift.execute.torch.parallel.shards import Share
from chairlift.execute.torch.sizing import footprint
from chairlift.execute.torch.weights import ModelWeights, read
from chairlift.models.description import Description

EVERYTHING = VARIANTS["everything"]
CPU = Device.pick("cpu")


def loaded(description: Description, weights: ArrayWeights, dtype: torch.dtype = torch.float32) -> ModelWeights:
    return read(Share(description), weights, device=CPU, dtype=dtype)


def test_queries_keys_and_values_lie_below_each_other() -> None:
    weights = random_weights(EVERYTHING)
    layer = loaded(EVERYTHING, weights).layers[1]
    assert layer.qkv_bias is not None
    for merged, end in ((layer.qkv, ""), (layer.qkv_bias, "_bias")):
        parts = [weights.float32(f"layers.1.{name}{end}") for name in "qkv"]
        np.testing.assert_array_equal(merged.numpy(), np.concatenate(parts))


def test_the_gate_lies_above_what_it_is_multiplied_with() -> None:
    weights = random_weights(EVERYTHING)
    layer = loaded(EVERYTHING, weights).layers[0]
    assert layer.gate_up_bias is not None
    for merged, end in ((layer.gate_up, ""), (layer.gate_up_bias, "_bias")):
        parts = [weights.float32(f"layers.0.{name}{end}") for name in ("gate", "up")]
        np.testing.assert_array_equal(merged.numpy(), np.concatenate(parts))


def test_a_tied_head_is_the_embedding() -> None:
    held = loaded(VARIANTS["tied"], random_weights(VARIANTS["tied"]))
    assert held.head is held.embed


def test_norms_keep_their_precision() -> None:
    """Gemma's are 1 and a little: a type of 16 bits would round the little away."""
    held = loaded(EVERYTHING, random_weights(EVERYTHING), torch.bfloat16)
    assert held.norm.dtype is torch.float32
    assert held.layers[0].qkv.dtype is torch.bfloat16


def test_tensors_that_cannot_be_written_to_are_read() -> None:
    weights = random_weights(PLAIN)
    for tensor in weights.tensors.values():
        tensor.setflags(write=False)
    np.testing.assert_array_equal(loaded(PLAIN, weights).embed.numpy(), weights.float32("embed"))


@pytest.mark.parametrize("name", ["plain", "tied", "everything"])
def test_progress_counts_every_tensor(name: str) -> None:
    description, seen = VARIANTS[name], list[tuple[int, int]]()
    read(
        Share(description),
        random_weights(description),
        device=CPU,
        dtype=torch.float32,
        on_tensor=lambda done, total: seen.append((done, total)),
    )
    total = len(description.layout())
    assert seen == [(done, total) for done in range(1, total + 1)]


def test_a_tensor_of_another_shape_is_named() -> None:
    weights = ArrayWeights({**random_weights(PLAIN).tensors, "layers.1.k": np.ones((3, 24), dtype=np.float32)})
    with pytest.raises(ModelError, match=r"tensor layers\.1\.k has shape \(3, 24\), expected \(12, 24\)"):
        loaded(PLAIN, weights)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["plain", "tied", "everything"])
def test_weights_take_what_was_said(name: str, dtype: str) -> None:
    description, chosen = VARIANTS[name], choice(dtype)
    held = loaded(description, random_weights(description), chosen.dtype)
    tensors = {id(one): one.nbytes for one in (held.embed, held.head, held.norm)}
    told = footprint(description, chosen, max_tokens=8, max_rows=2, longest=64, block_size=16)
    assert told.weight_bytes == sum(tensors.values()) + sum(layer.nbytes for layer in held.layers)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_keys_and_values_take_what_was_said(dtype: str) -> None:
    executor = torch_executor(EVERYTHING, random_weights(EVERYTHING), num_blocks=3, choice=choice(dtype))
    told = footprint(EVERYTHING, choice(dtype), max_tokens=8, max_rows=2, longest=64, block_size=16)
    assert executor._kv.nbytes == 3 * 16 * told.token_bytes
    assert math.prod(executor._kv.shape[:2]) == 3 * len(EVERYTHING.layers)


def test_a_step_costs_the_same_as_the_reference_says() -> None:
    """In float32 both hold the same numbers."""
    from chairlift.execute.reference import ReferenceExecutor

    weights = random_weights(EVERYTHING)
    other = ReferenceExecutor.load(EVERYTHING, weights, num_blocks=3, block_size=16)
    assert torch_executor(EVERYTHING, weights).cost == other.cost


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError("Unable to allocate 36.0 MiB"), "Unable to allocate 36.0 MiB"),
        (MemoryError(), "no memory"),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nmore"),
            "CUDA out of memory. Tried to allocate 2 GiB.",
        ),
        (RuntimeError("[enforce fail at a.cpp:1] err == 0. DefaultCPUAllocator: can't allocate"), "can't allocate"),
        (RuntimeError("shapes differ"), None),
    ],
)
def test_too_little_memory_is_told_from_other_faults(error: Exception, said: str | None) -> None:
    assert lacking(error) == said


def test_blocks_that_no_memory_can_hold_are_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^there is too little memory for the weights and the KV cache: \S.*$"):
        torch_executor(PLAIN, random_weights(PLAIN), num_blocks=1 << 40)
