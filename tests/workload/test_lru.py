"""The independent count, by cases that can be followed on paper. Blocks have 4 tokens."""

from collections.abc import Sequence

from chairlift.workload.lru import Lru

A, B, C, D = range(4)


def serve(lru: Lru, ids: Sequence[int], *, tokens: int = 0, name: str = "one") -> int:
    """A request that is computed and leaves. Its prompt has a token more than full blocks, unless said otherwise."""
    tokens = tokens or 4 * len(ids) + 1
    found = lru.get_on(name, ids, tokens)
    lru.compute(name, tokens)
    lru.leave(name)
    return found


def test_what_was_computed_is_found():
    lru = Lru(None, 4)
    assert serve(lru, [A, B]) == 0
    assert serve(lru, [A, B, C]) == 8
    assert serve(lru, [A, C]) == 4


def test_a_block_is_told_by_all_before_it():
    lru = Lru(None, 4)
    serve(lru, [A, B])
    assert serve(lru, [B, A]) == 0


def test_the_last_token_is_always_computed():
    lru = Lru(None, 4)
    serve(lru, [A, B])
    assert serve(lru, [A, B], tokens=8) == 4


def test_only_full_blocks_are_found():
    lru = Lru(None, 4)
    serve(lru, [A, B], tokens=7)
    assert serve(lru, [A, B]) == 4


def test_the_end_of_a_prompt_is_evicted_before_its_beginning():
    lru = Lru(4, 4)
    serve(lru, [A, B])
    serve(lru, [C])  # two blocks are blank, and enough
    serve(lru, [D], tokens=8)  # one is blank; the other was the end of the first
    assert serve(lru, [A, B], tokens=8) == 4


def test_whoever_was_let_go_of_first_is_evicted_first():
    lru = Lru(3, 4)
    for one in (A, B, C, A):  # A is used again, so B is the oldest
        serve(lru, [one], tokens=5)
    assert [serve(Lru(3, 4), [A]), serve(lru, [A])] == [0, 4]


def test_a_block_that_is_held_is_not_evicted():
    lru = Lru(4, 4)
    lru.get_on("long", [A], 5)
    lru.compute("long", 5)
    for one in (B, C, D):
        serve(lru, [one])
    assert serve(lru, [A]) == 4


def test_a_block_is_not_found_after_the_very_block_before_it_has_gone():
    lru = Lru(4, 4)
    lru.get_on("first", [A], 4)
    lru.get_on("twin", [A, B], 9)
    lru.compute("first", 4)
    lru.compute("twin", 9)  # its own copy of A cannot be found, and B comes after that of the first
    lru.leave("first")
    lru.leave("twin")  # B was let go of after A
    serve(lru, [C, D, B], tokens=12)  # takes two blanks and A
    assert serve(lru, [A], tokens=5) == 0
    assert serve(lru, [A, B], tokens=9) == 4
