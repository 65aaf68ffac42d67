"""Random steps for attention (`attention_cases`)."""

import torch
from attention_cases import SCALE, Case
from hypothesis import strategies as st

from chairlift.execute.torch.attention.heads import Heads

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@st.composite
def cases(draw: st.DrawFn, *, most_rows: int = 3, most_tokens: int = 9, furthest: int = 50) -> Case:
    """Next tokens, chunks, whole prompts and pads, of any heads."""
    group, kv_heads = draw(st.integers(1, 8)), draw(st.integers(1, 2))
    heads = Heads(
        heads=group * kv_heads,
        kv_heads=kv_heads,
        head_dim=draw(st.sampled_from((16, 24, 40, 64))),
        block_size=draw(st.sampled_from((1, 4, 8, 16, 32, 64))),
        scale=SCALE,
        dtype=draw(st.sampled_from(FLOATS)),
    )
    rows = draw(st.lists(_rows(most_tokens, furthest), min_size=1, max_size=most_rows))
    window = draw(st.none() | st.integers(1, furthest + 3))
    return Case(heads, tuple(rows), window, draw(st.integers(0, 99)))


def _rows(most_tokens: int, furthest: int) -> st.SearchStrategy[tuple[int, int]]:
    next_token = st.tuples(st.just(1), st.integers(1, furthest))
    chunk = st.integers(1, most_tokens).flatmap(lambda count: st.tuples(st.just(count), st.integers(count, furthest)))
    prompt = st.integers(1, most_tokens).map(lambda count: (count, count))
    pad = st.tuples(st.integers(1, most_tokens), st.just(0))
    return st.one_of(next_token, chunk, prompt, pad)
