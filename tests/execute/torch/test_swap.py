"""Blocks that are stored beside the device and loaded again, however many are on the way at once, and in whatever pieces."""

import pytest
import torch

from chairlift.core.types import Move
from chairlift.execute.torch.device import Device
from chairlift.execute.torch.swap import HostStore

LAYERS, BLOCKS, BLOCK, HEADS, HEAD = 3, 12, 4, 2, 8
BLOCK_BYTES = LAYERS * 2 * BLOCK * HEADS * HEAD * 2


def filled() -> torch.Tensor:
    """Every number of it is another one."""
    shape = (LAYERS, BLOCKS, 2, BLOCK, HEADS, HEAD)
    return torch.arange(LAYERS * BLOCKS * 2 * BLOCK * HEADS * HEAD, dtype=torch.int16).reshape(shape)


@pytest.mark.parametrize("staged", [1, 2, 5, 100])
@pytest.mark.parametrize("piece", [1, 3, 100])
def test_what_is_stored_comes_back_into_other_blocks(staged: int, piece: int) -> None:
    kv, before = filled(), filled()
    sizes = {"staged_bytes": staged * BLOCK_BYTES + 1, "pinned_bytes": piece * BLOCK_BYTES + 1}
    store = HostStore(Device.pick("cpu"), kv, num_blocks=7, **sizes)
    blocks, host, others = [11, 0, 5, 3, 8, 1, 2], [6, 2, 0, 1, 5, 4, 3], [0, 1, 2, 3, 4, 5, 6]
    store.store([Move("store", source, target) for source, target in zip(blocks, host, strict=True)])
    kv.fill_(-1)
    store.load([Move("load", source, target) for source, target in zip(host, others, strict=True)])
    assert torch.equal(kv[:, others], before[:, blocks])
    assert bool((kv[:, 7:] == -1).all())


def test_a_block_is_stored_as_it_is_at_that_moment() -> None:
    kv = filled()
    store = HostStore(Device.pick("cpu"), kv, num_blocks=1)
    store.store([Move("store", 4, 0)])
    store.store([Move("store", 5, 0)])
    store.load([Move("load", 0, 6)])
    assert torch.equal(kv[:, 6], filled()[:, 5])


def test_no_store_takes_no_memory() -> None:
    store = HostStore(Device.pick("cpu"), filled(), num_blocks=0)
    assert (store._pieces, store._staged.nbytes) == ([], 0)


def test_a_block_of_the_host_is_one_stretch_of_memory() -> None:
    """Only such a one is sent without a copy on the host, which would have to wait."""
    store = HostStore(Device.pick("cpu"), filled(), num_blocks=3)
    assert all(store._of_host(block).is_contiguous() for block in range(3))
    assert store._staged[0].is_contiguous()
