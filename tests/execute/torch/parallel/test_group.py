"""What ranks say to each other: over gloo between threads, and by one that is alone."""

from threading import Barrier, Timer

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import together

from chairlift.core.errors import ExecutorLost
from chairlift.execute.torch.parallel.group import ALONE, Group, find, meet

SIZES = (1, 2, 3, 4)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def part(rank: int, dtype: torch.dtype = torch.float32, width: int = 129) -> torch.Tensor:
    return torch.randn(5, width, generator=torch.Generator().manual_seed(rank)).to(dtype)


class TestSum:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("size", SIZES)
    def test_every_rank_has_the_same_bits(self, size: int, dtype: torch.dtype) -> None:
        sums = together(size, lambda group: group.sum(part(group.rank, dtype)))
        assert all(torch.equal(one, sums[0]) for one in sums)
        expected = torch.stack([part(rank, dtype).double() for rank in range(size)]).sum(dim=0)
        assert torch.allclose(sums[0].double(), expected, rtol=0, atol=size * 4 * torch.finfo(dtype).eps)

    def test_a_part_that_lies_in_columns_is_summed(self) -> None:
        sums = together(2, lambda group: group.sum(part(group.rank).t()))
        assert torch.allclose(sums[1], (part(0) + part(1)).t())


class TestGather:
    @settings(max_examples=10)
    @given(widths=st.lists(st.integers(0, 5), min_size=2, max_size=4).filter(any))
    def test_parts_of_any_width_stand_side_by_side(self, widths: list[int]) -> None:
        whole = part(0, width=sum(widths))
        parts = whole.split(widths, dim=1)
        for gathered in together(len(widths), lambda group: group.gather(parts[group.rank], widths)):
            assert torch.equal(gathered, whole)

    def test_nothing_is_gathered_of_no_rows(self) -> None:
        gathered = together(2, lambda group: group.gather(torch.empty(0, 3), (3, 3)))
        assert [one.shape for one in gathered] == [(0, 6), (0, 6)]


class TestBroadcast:
    def test_everyone_gets_what_rank_0_has(self) -> None:
        told = together(3, lambda group: group.broadcast(torch.tensor([7, 8]) * (group.rank + 1)))
        assert [one.tolist() for one in told] == [[7, 8]] * 3

    def test_it_is_written_in_place(self) -> None:
        def run(group: Group) -> bool:
            held = torch.full((4,), group.rank, dtype=torch.uint8)
            return group.broadcast(held) is held

        assert together(2, run) == [True, True]


def test_one_alone_is_handed_back_what_it_has() -> None:
    held = part(0)
    assert ALONE.sum(held) is held
    assert ALONE.gather(held, [129]) is held
    assert ALONE.broadcast(held) is held
    ALONE.close()


class TestWhoIsNotThere:
    def test_a_rank_that_has_gone_makes_the_others_raise(self) -> None:
        def run(group: Group) -> str:
            if group.rank == 1:
                return "gone"
            with pytest.raises(RuntimeError):
                group.sum(part(group.rank))
            return "told"

        assert together(3, run) == ["told", "gone", "told"]

    def test_a_rank_that_says_nothing_is_waited_for_only_so_long(self) -> None:
        """Two of three go on; the third does nothing until they have both given up. Who does so first ends it for the other."""
        given_up = Barrier(3, timeout=20)

        def run(group: Group) -> str | None:
            said = None
            if group.rank:
                with pytest.raises((RuntimeError, ExecutorLost)) as caught:
                    group.sum(part(0))
                said = str(caught.value)
            given_up.wait()
            return said

        assert "another rank has not answered for 1 s" in together(3, run, timeout_s=1.0)

    def test_whoever_waits_is_released_when_the_group_is_closed(self) -> None:
        """Rank 1 never answers."""
        released = Barrier(2, timeout=20)

        def run(group: Group) -> str | None:
            if group.rank:
                released.wait()
                return None
            Timer(0.1, group.close).start()
            with pytest.raises(RuntimeError) as caught:
                group.sum(part(0))
            released.wait()
            return str(caught.value)

        assert together(2, run)[0] is not None

    def test_nobody_to_be_found(self) -> None:
        server = meet(timeout_s=5)
        port = server.port
        del server
        with pytest.raises(RuntimeError):
            find(port, timeout_s=0.2)
