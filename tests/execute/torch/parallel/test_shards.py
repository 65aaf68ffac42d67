"""How a model is cut: every number goes to the right rank, and none is lost."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tiny_decoders import PLAIN, VARIANTS, random_weights
from torch_executors import choice

from chairlift.core.errors import ConfigError
from chairlift.execute.torch.device import Device
from chairlift.execute.torch.options import Choice
from chairlift.execute.torch.parallel.shards import Share
from chairlift.execute.torch.sizing import footprint
from chairlift.execute.torch.weights import ModelWeights, read
from chairlift.models.description import Description

EVERYTHING = VARIANTS["everything"]
CPU = Device.pick("cpu")
LARGE = replace(PLAIN, hidden=96, heads=24, kv_heads=12, head_dim=8, mlp=240, vocab=4001)


@st.composite
def cuts(draw: st.DrawFn) -> tuple[Description, int]:
    """A model, and a number of ranks that it can be cut for."""
    kv_heads, group = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    sizes = [size for size in range(1, 9) if kv_heads * group % size == 0 and (kv_heads % size == 0 or size % kv_heads == 0)]
    biases = st.fixed_dictionaries(
        dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias", "qk_norm", "sandwich", "tied"), st.booleans())
    )
    description = replace(
        PLAIN,
        vocab=draw(st.integers(8, 40)),
        mlp=draw(st.integers(8, 40)),
        heads=kv_heads * group,
        kv_heads=kv_heads,
        **draw(biases),
    )
    return description, draw(st.sampled_from(sizes))


def shares(description: Description, size: int) -> list[Share]:
    return [Share(description, rank, size) for rank in range(size)]


def own(share: Share, name: str, tensor: NDArray[np.float32]) -> NDArray[np.float32]:
    part = share.part(name)
    return tensor if part.axis is None else np.take(tensor, range(part.first, part.end), axis=part.axis)


def held(share: Share, dtype: torch.dtype = torch.float32) -> ModelWeights:
    return read(share, random_weights(share.whole), device=CPU, dtype=dtype)


class TestParts:
    @given(cuts())
    def test_the_parts_of_all_ranks_make_the_whole(self, cut: tuple[Description, int]) -> None:
        description, size = cut
        everyone = shares(description, size)
        for name, whole in random_weights(description).tensors.items():
            having = [share for share in everyone if name in share.layout]
            parts = [own(share, name, whole) for share in having]
            assert [part.shape for part in parts] == [share.layout[name] for share in having]
            axis = having[0].part(name).axis
            if axis is None:
                assert all(part is whole for part in parts)
                continue
            if name.rpartition(".")[2] in ("k", "v", "k_bias", "v_bias"):
                parts = parts[:: max(1, size // description.kv_heads)]  # the others have one of these once more
            np.testing.assert_array_equal(np.concatenate(parts, axis=axis), whole)

    @given(cuts())
    def test_every_query_head_is_beside_its_key_head(self, cut: tuple[Description, int]) -> None:
        description, size = cut
        group = description.heads // description.kv_heads
        for share in shares(description, size):
            of_rank, queries, keys = share.description, share.part("q"), share.part("k")
            for head in range(of_rank.heads):
                query = head + queries.first // description.head_dim
                key = head // (of_rank.heads // of_rank.kv_heads) + keys.first // description.head_dim
                assert key == query // group

    @given(cuts())
    def test_a_bias_of_a_sum_is_added_by_the_first_rank_only(self, cut: tuple[Description, int]) -> None:
        once = [name for name in cut[0].layout() if name.endswith(("o_bias", "down_bias"))]
        for share in shares(*cut):
            assert [name for name in once if name in share.layout] == (once if share.rank == 0 else [])

    @given(cuts())
    def test_no_rank_has_more_than_the_first(self, cut: tuple[Description, int]) -> None:
        counts = [sum(np.prod(shape) for shape in share.layout.values()) for share in shares(*cut)]
        assert max(counts) == counts[0]

    def test_one_rank_has_all(self) -> None:
        share = Share(EVERYTHING)
        assert (share.description, share.layout) == (EVERYTHING, EVERYTHING.layout())


class TestRefusals:
    @pytest.mark.parametrize(("heads", "kv_heads", "size"), [(9, 3, 2), (4, 2, 8)])
    def test_query_heads_that_cannot_be_cut(self, heads: int, kv_heads: int, size: int) -> None:
        with pytest.raises(ConfigError) as raised:
            Share(replace(PLAIN, heads=heads, kv_heads=kv_heads), 0, size)
        told = f"tensor_parallel_size {size}: the model's {heads} query heads cannot be cut into {size} equal parts"
        assert str(raised.value) == told

    def test_key_heads_that_can_be_neither_cut_nor_shared(self) -> None:
        with pytest.raises(ConfigError, match="4 key heads can be neither cut into 6 equal parts nor each be given to"):
            Share(replace(PLAIN, heads=12, kv_heads=4), 0, 6)


class TestReading:
    @pytest.mark.parametrize("rank", range(3))
    def test_merged_matrices_are_of_the_parts(self, rank: int) -> None:
        share, weights = Share(EVERYTHING, rank, 3), random_weights(EVERYTHING)
        layer = held(share).layers[1]
        assert layer.qkv_bias is not None
        assert layer.gate_up_bias is not None
        for merged, names in (
            (layer.qkv, ("q", "k", "v")),
            (layer.qkv_bias, ("q_bias", "k_bias", "v_bias")),
            (layer.gate_up, ("gate", "up")),
            (layer.gate_up_bias, ("gate_bias", "up_bias")),
            (layer.o, ("o",)),
            (layer.down, ("down",)),
        ):
            parts = [own(share, name, weights.float32(f"layers.1.{name}")) for name in names]
            np.testing.assert_array_equal(merged.numpy(), np.concatenate(parts))

    @pytest.mark.parametrize("tied", [False, True])
    @pytest.mark.parametrize("size", [2, 3, 4])
    def test_every_rank_holds_its_part_of_the_bytes(self, size: int, tied: bool) -> None:
        description = replace(LARGE, tied=tied)

        def nbytes(share: Share) -> int:
            weights = held(share)
            tensors = {id(one): one.nbytes for one in (weights.embed, weights.head, weights.norm)}
            return sum(tensors.values()) + sum(layer.nbytes for layer in weights.layers)

        whole = nbytes(Share(description))
        for share in shares(description, size):
            assert nbytes(share) == pytest.approx(whole / size, rel=0.01)

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_the_first_rank_takes_what_was_said(self, dtype: str) -> None:
        share, chosen = Share(EVERYTHING, 0, 3), choice(dtype)
        weights = held(share, chosen.dtype)
        told = footprint(EVERYTHING, chosen, max_tokens=8, max_rows=2, longest=64, block_size=16, ranks=3)
        assert told.weight_bytes == weights.embed.nbytes + weights.norm.nbytes + sum(layer.nbytes for layer in weights.layers)
        assert (
            told.token_bytes * 3
            == footprint(EVERYTHING, chosen, max_tokens=8, max_rows=2, longest=64, block_size=16).token_bytes
        )

    @pytest.mark.parametrize(("ranks", "taken"), [(1, 0), (3, 512 << 20)])
    def test_on_a_gpu_being_connected_takes_memory_too(self, ranks: int, taken: int) -> None:
        def work(chosen: Choice) -> int:
            sized = footprint(EVERYTHING, chosen, max_tokens=8, max_rows=2, longest=64, block_size=16, ranks=ranks)
            return sized.work_bytes

        gpu = replace(choice(), device=Device(torch.device("cuda", 0)))
        assert work(gpu) == work(choice()) + taken

    def test_a_tied_head_is_the_embedding(self) -> None:
        weights = held(Share(EVERYTHING, 1, 3))
        assert weights.head is weights.embed

    def test_progress_counts_what_a_rank_has(self) -> None:
        share, seen = Share(EVERYTHING, 1, 3), list[tuple[int, int]]()
        weights = random_weights(EVERYTHING)
        read(share, weights, device=CPU, dtype=torch.float32, on_tensor=lambda done, total: seen.append((done, total)))
        assert seen == [(done, len(share.layout)) for done in range(1, len(share.layout) + 1)]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_what_all_ranks_look_up_adds_up_to_the_row(size: int) -> None:
    embed, tokens = torch.from_numpy(random_weights(PLAIN).float32("embed")), torch.randperm(PLAIN.vocab)
    description = replace(PLAIN, heads=size, kv_heads=1)
    found = [share.embedded(held(share).embed, tokens) for share in shares(description, size)]
    assert torch.equal(torch.stack(found).sum(dim=0), embed[tokens])
