"""What a step says of its rows, after whatever steps before it."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_decoders import row

from chairlift.core.types import PENDING, Work
from chairlift.execute.torch.batch import Batch, Batches
from chairlift.execute.torch.device import Device

SIZE, BLOCKS, ROWS, TOKENS = 4, 9, 4, 30
NOTHING = torch.zeros(1, dtype=torch.int64)


def batches(flights: int = 2, max_rows: int = ROWS) -> Batches:
    return Batches(
        Device.pick("cpu"),
        max_tokens=TOKENS,
        max_rows=max_rows,
        num_blocks=BLOCKS,
        block_size=SIZE,
        most_blocks=5,
        flights=flights,
    )


@st.composite
def rows(draw: st.DrawFn, number: int) -> Work:
    start, count = draw(st.integers(0, 12)), draw(st.integers(1, 7))
    blocks = draw(st.lists(st.integers(0, BLOCKS - 1), min_size=-(-(start + count) // SIZE), max_size=5))
    tokens = draw(st.lists(st.integers(0, 60), min_size=count, max_size=count))
    pad = draw(st.booleans())
    return row(tokens, [] if pad else blocks, seq_id=str(number), start=start, draws=draw(st.integers(0, 2)), pad=pad)


steps = st.lists(
    st.integers(1, ROWS).flatmap(lambda count: st.tuples(*(rows(number) for number in range(count)))), min_size=1, max_size=4
)


def check(batch: Batch, work: tuple[Work, ...]) -> None:
    rows, padding = [one for one in work if not one.pad], sum(len(one.tokens) for one in work if one.pad)
    pad = [padding] if padding else []
    assert batch.tokens.tolist() == [token for one in rows for token in one.tokens] + [0] * padding
    assert list(batch.counts) == [len(one.tokens) for one in rows] + pad
    assert list(batch.seen) == [one.end for one in rows] + [0] * len(pad)
    assert batch.contexts.tolist() == list(batch.seen)
    assert batch.bounds.tolist() == [0, *np.cumsum(batch.counts).tolist()]
    assert (batch.longest, batch.furthest) == (max(batch.counts), max(batch.seen))
    assert batch.last.tolist() == [batch.bounds[at + 1].item() - 1 for at, one in enumerate(rows) if one.draws]
    places = [(one, position) for one in rows for position in range(one.start, one.end)]
    assert batch.positions.tolist() == [position for _, position in places] + [0] * padding
    slots = [one.blocks[position // SIZE] * SIZE + position % SIZE for one, position in places]
    assert batch.slots.tolist() == slots + [-1] * padding
    for at, one in enumerate(rows):
        assert batch.tables[at, : len(one.blocks)].tolist() == list(one.blocks)


@given(steps=steps)
def test_every_step_says_all_of_its_rows(steps: list[tuple[Work, ...]]) -> None:
    filled = batches()
    for work in steps:
        check(filled.fill(work, NOTHING, {}), work)


@given(steps=steps)
def test_the_buffers_never_move(steps: list[tuple[Work, ...]]) -> None:
    filled, places = batches(), set[tuple[tuple[int, int], ...]]()
    for work in steps:
        batch = filled.fill(work, NOTHING, {})
        several = (batch.tokens, batch.positions, batch.slots, batch.bounds, batch.contexts, batch.tables, batch.last)
        places.add(tuple((tensor.untyped_storage().data_ptr(), int(tensor.storage_offset())) for tensor in several))
    assert len(places) == 1


@given(steps=steps, count=st.integers(1, ROWS), rows=st.integers(ROWS, 2 * ROWS))
def test_a_step_that_is_padded_to_some_rows_fills_what_is_captured(
    steps: list[tuple[Work, ...]], count: int, rows: int
) -> None:
    """Whatever steps came before."""
    filled = batches(max_rows=2 * ROWS)
    captured = filled.single(rows, furthest=20)
    for work in steps:
        filled.fill(work, NOTHING, {})
    work = [row([at + 7], [at, 8], seq_id=str(at), start=at) for at in range(count)]
    pads = [row([9], seq_id="p", pad=True)] * (rows - count - 1)
    batch = filled.fill([*work, *pads], NOTHING, {}, rows=rows)
    missing = rows - count
    assert captured.tokens.tolist() == [at + 7 for at in range(count)] + [0] * missing
    assert captured.contexts.tolist() == list(batch.seen) == [at + 1 for at in range(count)] + [0] * missing
    assert captured.positions.tolist() == [*range(count)] + [0] * missing
    assert captured.slots.tolist() == [at * SIZE + at for at in range(count)] + [-1] * missing
    assert captured.bounds.tolist() == [*range(rows + 1)]
    assert captured.tables[:count, :2].tolist() == [[at, 8] for at in range(count)]
    assert (captured.last.tolist(), batch.last.tolist()) == ([*range(rows)], [*range(count)])
    assert captured.counts == batch.counts == (1,) * rows


def test_tokens_that_are_pending_come_out_of_those_that_were_drawn() -> None:
    drawn = torch.tensor([11, 12, 13])
    work = (
        row([PENDING], [0], seq_id="c", start=3),
        row([5, 6], [1], seq_id="new"),
        row([7, PENDING], [2], seq_id="a", start=1, draws=0),
        row([PENDING], [3], seq_id="b", start=2),
    )
    batch = batches().fill(work, drawn, {"a": 0, "b": 1, "c": 2})
    assert batch.tokens.tolist() == [13, 5, 6, 7, 11, 12]
    assert batch.pending is not None
    assert batch.pending.tolist() == [13, -1, 12]


def test_nothing_is_pending_in_a_step_whose_tokens_are_known() -> None:
    assert batches().fill((row([5], [0]),), NOTHING, {"a": 0}).pending is None


def test_tokens_may_grow_after_they_were_taken_in() -> None:
    """Whoever looks into an array of the standard library keeps it from growing for as long."""
    work = row([1], [1])
    batches().fill((work,), NOTHING, {})
    work.tokens.append(3)
