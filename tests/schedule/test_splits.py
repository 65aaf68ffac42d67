"""How the splits divide a budget."""

from hypothesis import given
from hypothesis import strategies as st
from virtual import request

from chairlift.core.types import Sequence
from chairlift.schedule.splits import Chunked, PrefillFirst


def missing(*counts: int) -> list[Sequence]:
    return [Sequence(request(str(number), range(count)), number) for number, count in enumerate(counts)]


def shares(counts: list[int], budget: int, *, behind: bool = False, floor: int = 4) -> dict[str, int]:
    return {s.id: n for s, n in Chunked(floor=floor).share(missing(*counts), budget, behind=behind)}


def test_next_tokens_come_before_prompts():
    assert shares([100, 1, 1], 10) == {"1": 1, "2": 1, "0": 8}


def test_a_prompt_alone_gets_everything():
    assert shares([100], 16) == {"0": 16}


def test_a_long_prompt_leaves_half_to_those_behind_it():
    assert shares([100, 3], 16, behind=True) == {"0": 8, "1": 3}


def test_a_long_prompt_leaves_half_to_those_who_wait():
    assert shares([100], 16, behind=True) == {"0": 8}


def test_what_was_kept_for_others_and_not_needed_goes_back_to_the_first():
    assert shares([100, 3], 16) == {"0": 13, "1": 3}


def test_chunks_do_not_become_crumbs():
    assert shares([100, 100, 100, 100], 16, floor=4) == {"0": 8, "1": 4, "2": 4}


@given(st.lists(st.integers(1, 40), max_size=8), st.integers(8, 64), st.booleans(), st.integers(1, 20))
def test_shares_are_positive_needed_and_within_the_budget(counts: list[int], budget: int, behind: bool, floor: int):
    given_shares = shares(counts, budget, behind=behind, floor=floor)
    assert sum(given_shares.values()) <= budget
    assert all(1 <= share <= counts[int(number)] for number, share in given_shares.items())
    assert all(str(number) in given_shares for number, count in enumerate(counts) if count == 1)
    if not behind:
        assert sum(given_shares.values()) == min(budget, sum(counts)), (
            "no part of the budget is left while somebody misses tokens"
        )


def answering(number: int) -> Sequence:
    """Its prompt is computed, and so is all of its answer but the last token."""
    sequence = Sequence(request(str(number), range(3)), number)
    sequence.tokens.append(7)
    sequence.computed = 3
    return sequence


class TestPrefillFirst:
    SPLIT = PrefillFirst(Chunked(floor=4))

    def test_next_tokens_wait_for_prompts(self):
        running = [answering(0), *missing(100), answering(2)]
        assert [n for _, n in self.SPLIT.share(running, 10, behind=False)] == [10]

    def test_next_tokens_wait_for_those_who_get_on_in_this_step(self):
        assert self.SPLIT.share([answering(0), answering(1)], 10, behind=True) == []

    def test_without_prompts_everybody_goes_on(self):
        shared = self.SPLIT.share([answering(0), answering(1)], 10, behind=False)
        assert {s.id: n for s, n in shared} == {"0": 1, "1": 1}

    def test_the_last_token_of_a_prompt_is_a_prompt(self):
        rest = missing(100)[0]
        rest.computed = 99
        assert [(s.id, n) for s, n in self.SPLIT.share([answering(1), rest], 10, behind=False)] == [("0", 1)]
