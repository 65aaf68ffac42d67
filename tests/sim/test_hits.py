"""The engine finds in its cache what an independent count says that it must find, whatever the trace and the size."""

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from chairlift.core.errors import ConfigError
from chairlift.sim.hits import Hits, measure
from chairlift.workload.traces import HASHED_TOKENS, Arrival


def arrival(*ids: int, tokens: int = HASHED_TOKENS - 1, answer: int = 2) -> Arrival:
    """A prompt of these blocks, `tokens` of them in the last one."""
    return Arrival(0.0, HASHED_TOKENS * (len(ids) - 1) + tokens, answer, ids)


# Few ids, so that prompts begin alike often. Some answers are long enough to fill the blocks that prompts have begun.
ARRIVALS = st.lists(
    st.builds(
        lambda ids, tokens, answer: arrival(*ids, tokens=tokens, answer=answer),
        st.lists(st.integers(0, 1), min_size=2, max_size=5),
        st.sampled_from([1, HASHED_TOKENS - 1, HASHED_TOKENS]),
        st.sampled_from([1, 1, 2, 3]),
    ),
    min_size=12,
    max_size=30,
)


def test_a_prompt_is_found_up_to_its_last_full_block() -> None:
    found = measure([arrival(1, 2, 3), arrival(1, 2, 4), arrival(1, 2, 3, 5)])
    assert found.cached_tokens == (0 + 2 + 2) * HASHED_TOKENS
    assert found == Hits(None, 1, 3, 13 * HASHED_TOKENS - 3 * HASHED_TOKENS - 3, 4 * HASHED_TOKENS, 4 * HASHED_TOKENS, ())
    assert found.rate == found.cached_tokens / found.prompt_tokens


def test_a_small_cache_finds_less() -> None:
    trace = [arrival(n, n + 10, n + 20) for n in (0, 1, 2, 0, 1, 2)]
    assert measure(trace).cached_tokens == 6 * HASHED_TOKENS
    assert measure(trace, blocks=4).cached_tokens == 0


def test_an_answer_is_no_part_of_another_prompt() -> None:
    long = arrival(0, tokens=HASHED_TOKENS - 1, answer=HASHED_TOKENS + 2)
    assert measure([long, long]).cached_tokens == 0


IDS = ([0, 0], [0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 0], [0, 0], [1, 0, 0], *([0, 0] for _ in range(6)))
"""Two compute the same block at once, one of whom draws and one does not: the first in the plan is the one that is kept."""


@settings(max_examples=40)
@example(arrivals=[arrival(*ids, tokens=1, answer=1) for ids in IDS], blocks=7, in_flight=2)
@given(arrivals=ARRIVALS, blocks=st.one_of(st.none(), st.integers(6, 12)), in_flight=st.sampled_from([1, 2, 3]))
def test_both_find_the_same(arrivals: list[Arrival], blocks: int | None, in_flight: int) -> None:
    found = measure(arrivals, blocks=blocks, in_flight=in_flight, tokens_a_step=700)
    unlimited = measure(arrivals, in_flight=in_flight, tokens_a_step=700)
    event(f"evicted: {found.cached_tokens < unlimited.cached_tokens}")
    assert (found.differences, found.cached_tokens) == ((), found.counted_tokens)
    assert (found.requests, found.prompt_tokens) == (len(arrivals), sum(one.prompt_tokens for one in arrivals))


def test_a_trace_without_hash_ids_is_refused() -> None:
    with pytest.raises(ConfigError, match="no hash ids"):
        measure([Arrival(0.0, 5, 1)])


def test_a_cache_that_is_too_small_for_a_request_is_refused() -> None:
    with pytest.raises(ConfigError, match="2 blocks are too few for the longest request, which takes 4"):
        measure([arrival(1, 2, 3)], blocks=2)
