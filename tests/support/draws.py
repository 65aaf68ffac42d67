"""Random draws over small vocabularies, with ties, extremes, histories and masks."""

from array import array

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from chairlift.core.types import Draw, Sampling

GRID = st.integers(-12, 12).map(lambda number: number / 4)


@st.composite
def logits_and_draws(draw: st.DrawFn, *, largest_vocab: int = 70) -> tuple[NDArray[np.float32], Draw, int]:
    """Logits [vocab] on a coarse grid, so that there are ties, at times the largest numbers of all; a draw from them; a place.

    Histories are of the best tokens, so that penalties matter, and most of them come more than once.
    """
    vocab = draw(st.one_of(st.integers(2, 9), st.integers(2, largest_vocab)))
    logit = draw(st.sampled_from([GRID, GRID, GRID, st.one_of(GRID, st.sampled_from([-3.4e38, 3.4e38, -0.0]))]))
    logits = np.array(draw(st.lists(logit, min_size=vocab, max_size=vocab)), dtype=np.float32)
    ids = st.integers(0, vocab + 1)
    likely = st.sampled_from([*np.argsort(-logits, kind="stable")[:6].tolist(), vocab])
    history = draw(st.lists(likely, min_size=draw(st.sampled_from([0, 8, 20])), max_size=30))
    prompt_len = draw(st.one_of(st.just(0), st.integers(0, len(history))))
    place = draw(st.one_of(st.just(len(history)), st.integers(prompt_len, len(history))))
    wanted = Draw(
        choice=draw(st.integers(0, 3)),
        sampling=draw(samplings(ids)),
        banned=draw(st.one_of(st.just(frozenset[int]()), st.frozensets(ids, max_size=3), st.frozensets(ids, max_size=vocab))),
        history=array("i", history),
        prompt_len=prompt_len,
        mask=draw(masks(vocab)),
    )
    return logits, wanted, place


def masks(vocab: int) -> st.SearchStrategy["array[int] | None"]:
    word = st.sampled_from([0, 1, 0xFFFFFFFF, 0x80000000, 0x55555555, 0x3FFCFFF7])
    words = st.lists(word, min_size=-(-vocab // 32), max_size=-(-vocab // 32)).map(lambda content: array("I", content))
    return st.one_of(st.none(), st.none(), st.none(), words)


def samplings(ids: st.SearchStrategy[int]) -> st.SearchStrategy[Sampling]:
    penalties = st.one_of(st.just(0.0), GRID.map(lambda number: number / 2), st.floats(-2, 2))
    biases = st.dictionaries(ids, st.one_of(GRID, st.floats(-100, 100)), max_size=6).map(lambda found: tuple(found.items()))
    return st.builds(
        Sampling,
        temperature=st.sampled_from([0.0, 0.0, 0.0, 1e-3, 0.7, 1.0, 50.0]),
        top_k=st.sampled_from([0, 1, 2, 10, 1000]),
        top_p=st.one_of(st.just(1.0), st.floats(0.01, 0.99)),
        min_p=st.one_of(st.just(0.0), st.floats(0.001, 0.99)),
        seed=st.integers(0, (1 << 64) - 1),
        presence_penalty=penalties,
        frequency_penalty=penalties,
        repetition_penalty=st.sampled_from([1.0, 1.0, 0.5, 1.1, 2.0, 1e-30, 1e30]),
        logit_bias=st.one_of(st.just(()), biases),
        logprobs=st.one_of(st.none(), st.integers(0, 20)),
    )
