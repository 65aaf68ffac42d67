"""The prefix index: what hits, what must never hit, and a comparison with a slow twin."""

from __future__ import annotations

import sys
from array import array

from hypothesis import given
from hypothesis import strategies as st

from chairlift.cache.prefix import NoPrefixIndex, PrefixIndex


def enter(index: PrefixIndex, tokens: list[int], blocks: list[int], salt: str = "", size: int = 2) -> None:
    index.add(salt, array("i", tokens[: len(blocks) * size]), blocks)


def hit(index: PrefixIndex, tokens: list[int], salt: str = "") -> list[int]:
    return index.match(array("i", tokens), salt).blocks


def test_a_known_prefix_is_found():
    index = PrefixIndex(2)
    enter(index, [1, 2, 3, 4], [7, 8])
    assert hit(index, [1, 2, 3, 4, 5]) == [7, 8]


def test_a_hit_never_covers_the_last_token():
    index = PrefixIndex(2)
    enter(index, [1, 2, 3, 4], [7, 8])
    assert hit(index, [1, 2, 3, 4]) == [7]


def test_equal_blocks_after_different_beginnings_do_not_match():
    index = PrefixIndex(2)
    enter(index, [1, 2, 3, 4], [7, 8])
    assert hit(index, [9, 9, 3, 4, 5]) == []


def test_another_salt_never_hits():
    index = PrefixIndex(2)
    enter(index, [1, 2], [7], salt="x")
    assert (hit(index, [1, 2, 3], "y"), hit(index, [1, 2, 3]), hit(index, [1, 2, 3], "x")) == ([], [], [7])


def test_a_salt_that_looks_like_a_place_in_the_tree_is_none():
    index = PrefixIndex(2)
    enter(index, [1, 2, 3, 4], [7, 8])
    place = index.match(array("i", [1, 2, 0]), "").place
    assert (place, hit(index, [3, 4, 5], salt=str(place))) == (1, [])


def test_blocks_whose_hashes_are_equal_are_told_apart():
    """Elsewhere a block was found by its hash alone, and an answer could go on from somebody else's prompt."""
    index = PrefixIndex(2)
    enter(index, [1, 2, 3, 4], [7, 8])
    index._next_node = 1 + sys.hash_info.modulus
    enter(index, [5, 6], [3])
    first, second = (index.match(array("i", [*start, 0]), "").place for start in ([1, 2], [5, 6]))
    assert hash((first, b"the same tokens")) == hash((second, b"the same tokens"))
    assert hit(index, [5, 6, 3, 4, 0]) == [3]


def test_an_evicted_block_is_not_found_and_hides_what_is_below_it():
    index = PrefixIndex(2)
    enter(index, [1, 2, 3, 4], [7, 8])
    index.forget([7])
    assert hit(index, [1, 2, 3, 4, 5]) == []


def test_children_of_an_evicted_block_stay_out_of_reach_when_its_place_is_filled_again():
    index = PrefixIndex(2)
    enter(index, [1, 2, 3, 4], [7, 8])
    index.forget([7])
    enter(index, [1, 2], [5])
    assert hit(index, [1, 2, 3, 4, 5]) == [5]


def test_the_first_of_two_equal_blocks_stays():
    index = PrefixIndex(2)
    enter(index, [1, 2, 3, 4], [7, 8])
    enter(index, [1, 2, 5, 6], [3, 4])
    assert hit(index, [1, 2, 5, 6, 0]) == [7, 4]
    assert 3 not in index


def test_switched_off_it_learns_nothing():
    index = NoPrefixIndex(2)
    enter(index, [1, 2], [7])
    assert hit(index, [1, 2, 3]) == []


@given(
    prompts=st.lists(st.tuples(st.sampled_from(["", "s"]), st.lists(st.integers(0, 1), min_size=1, max_size=9)), max_size=6),
    wanted=st.tuples(st.sampled_from(["", "s"]), st.lists(st.integers(0, 1), min_size=1, max_size=9)),
)
def test_it_equals_a_list_of_whole_prefixes(prompts: list[tuple[str, list[int]]], wanted: tuple[str, list[int]]):
    index, known, block = PrefixIndex(2), {}, 0
    for salt, tokens in prompts:
        full = len(tokens) // 2
        enter(index, tokens, list(range(block, block + full)), salt)
        for end in range(1, full + 1):
            known.setdefault((salt, tuple(tokens[: 2 * end])), block + end - 1)
        block += full
    salt, tokens = wanted
    expected: list[int] = []
    for end in range(2, len(tokens), 2):
        if (salt, tuple(tokens[:end])) not in known:
            break
        expected.append(known[salt, tuple(tokens[:end])])
    assert hit(index, tokens, salt) == expected


def test_a_trail_over_a_block_that_came_back_is_not_followed():
    """The block and all of its tokens are the same, but what was below it belongs to the one that was evicted."""
    index = PrefixIndex(2)
    enter(index, [1, 2, 3, 4], [7, 8])
    trail = index.retrace(array("i", [1, 2, 3, 4, 5]), "", None)
    index.forget([7])
    enter(index, [1, 2], [7])
    assert index.retrace(array("i", [1, 2, 3, 4, 5]), "", trail).match.blocks == [7]


def test_a_trail_is_cut_where_tokens_are():
    index = PrefixIndex(2)
    enter(index, [1, 2, 3, 4], [7, 8])
    trail = index.retrace(array("i", [1, 2, 3, 4, 5]), "", None)
    assert index.retrace(array("i", [1, 2, 3, 4]), "", trail).match.blocks == [7]


Change = tuple[list[int], list[int]]
"""Blocks that are forgotten, and a prompt that is entered then."""


@given(
    changes=st.lists(st.tuples(st.lists(st.integers(0, 7)), st.lists(st.integers(0, 1), max_size=9)), max_size=8),
    wanted=st.lists(st.integers(0, 1), min_size=9, max_size=9),
    lengths=st.lists(st.integers(1, 9), min_size=8, max_size=8),
)
def test_whoever_follows_a_trail_finds_what_he_finds_without_one(
    changes: list[Change], wanted: list[int], lengths: list[int]
) -> None:
    index, trail = PrefixIndex(2), None
    for (forgotten, prompt), length in zip(changes, lengths, strict=False):
        index.forget(forgotten)
        free = [block for block in range(8) if block not in index][: len(prompt) // 2]
        enter(index, prompt, free)
        tokens = array("i", wanted[:length])
        trail = index.retrace(tokens, "", trail)
        assert trail.match == index.match(tokens, "")
