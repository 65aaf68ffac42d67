"""How the splits divide a budget."""

from array import array

from engines import ride
from hypothesis import given
from hypothesis import strategies as st
from virtual import request

from chairlift.core.types import Plan, Sequence, Work
from chairlift.schedule.policy import Past
from chairlift.schedule.splits import Adaptive, Balanced, Chunked, PrefillFirst, Whole


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
        assert not list(self.SPLIT.share([answering(0), answering(1)], 10, behind=True))

    def test_without_prompts_everybody_goes_on(self):
        shared = self.SPLIT.share([answering(0), answering(1)], 10, behind=False)
        assert {s.id: n for s, n in shared} == {"0": 1, "1": 1}

    def test_the_last_token_of_a_prompt_is_a_prompt(self):
        rest = missing(100)[0]
        rest.computed = 99
        assert [(s.id, n) for s, n in self.SPLIT.share([answering(1), rest], 10, behind=False)] == [("0", 1)]


class TestWhole:
    SPLIT = Whole(budget=16)

    def test_a_prompt_that_fits_starts(self):
        assert self.SPLIT.starts(10, 10)

    def test_a_prompt_that_does_not_fit_waits_for_another_step(self):
        assert not self.SPLIT.starts(11, 10)

    def test_a_prompt_longer_than_any_step_is_cut(self):
        assert self.SPLIT.starts(17, 10)
        assert self.SPLIT.chunk(17, 10, behind=True) == 10

    def test_nothing_starts_without_tokens(self):
        assert not self.SPLIT.starts(17, 0)

    def test_a_prompt_that_was_cut_goes_on_with_what_is_left(self):
        assert {s.id: n for s, n in self.SPLIT.share(missing(20, 1), 16, behind=True)} == {"0": 15, "1": 1}

    def test_prompts_are_computed_in_one_row_each(self):
        engine = ride(split="whole", num_blocks=60, max_num_batched_tokens=20)
        lengths = (12, 12, 15)
        engine.submit(*(request(str(n), range(n, n + length), 8) for n, length in enumerate(lengths)))
        engine.run()
        assert tuple(engine.work_of(str(n))[0][1] for n in range(3)) == lengths


class TestBalanced:
    @staticmethod
    def shares(counts: list[int], budget: int, *, behind: bool = False) -> dict[str, int]:
        return {s.id: n for s, n in Balanced().share(missing(*counts), budget, behind=behind)}

    def test_prompts_get_the_same(self):
        assert self.shares([100, 100, 1], 21) == {"0": 10, "1": 10, "2": 1}

    def test_what_one_does_not_need_goes_to_the_others(self):
        assert self.shares([100, 3, 100], 23) == {"1": 3, "0": 10, "2": 10}

    def test_whoever_is_behind_counts_as_one_more(self):
        assert self.shares([100], 16, behind=True) == {"0": 8}


class TestAdaptive:
    @staticmethod
    def split(target_s: float = 1.0) -> Adaptive:
        return Adaptive(Chunked(floor=1), itl_target_s=target_s, floor=8, budget=512)

    @staticmethod
    def past(prompt: int, elapsed_s: float, *, streams: int = 1) -> Past:
        rows = [Work("p", 0, array("i", range(prompt)), array("i"))] if prompt else []
        rows += [Work(f"s{n}", 9, array("i", [1]), array("i")) for n in range(streams)]
        return Past(Plan(0, tuple(rows)), elapsed_s, ())

    def test_prompts_get_everything_while_no_stream_waits(self):
        assert [n for _, n in self.split().share(missing(600), 512, behind=False)] == [512]

    def test_beside_streams_prompts_get_their_allowance(self):
        assert {s.id: n for s, n in self.split().share(missing(600, 1), 512, behind=False)} == {"0": 8, "1": 1}

    def test_newcomers_share_the_allowance(self):
        split = self.split()
        split.share(missing(6, 1), 512, behind=False)
        assert split.chunk(100, 505, behind=False) == 2
        assert not split.starts(100, 503)

    def test_short_steps_let_it_grow(self):
        split = self.split()
        split.observe(self.past(8, 0.1))
        assert split.allowance == 10

    def test_a_step_that_was_not_full_does_not(self):
        split = self.split()
        split.observe(self.past(3, 0.1))
        assert split.allowance == 8

    def test_a_step_that_took_too_long_shrinks_it_in_proportion(self):
        split = self.split()
        for _ in range(20):
            split.observe(self.past(split.allowance, 0.1))
        before = split.allowance
        split.observe(self.past(before, 1.3))
        assert split.allowance == before // 2

    def test_it_never_falls_below_its_floor(self):
        split = self.split()
        split.observe(self.past(8, 100.0))
        assert split.allowance == 8

    def test_it_never_grows_beyond_the_step(self):
        split = self.split()
        for _ in range(100):
            split.observe(self.past(split.allowance, 0.1))
        assert split.allowance == 512

    def test_steps_without_streams_or_without_prompts_tell_nothing(self):
        split = self.split()
        split.observe(self.past(8, 0.1, streams=0))
        split.observe(self.past(0, 0.1))
        assert split.allowance == 8

    def test_beside_a_stream_a_prompt_longer_than_the_allowance_is_cut_even_where_prompts_are_computed_whole(self):
        engine = ride(
            split="whole", itl_target_s=1.5, max_num_batched_tokens=64, max_model_len=400, num_blocks=400, max_num_seqs=4
        )
        engine.submit(request("stream", range(3), 200))
        for _ in range(5):
            engine.step()
        engine.submit(request("prompt", range(20), 2, arrival=5.0), request("small", [1, 2], 2, arrival=5.0))
        engine.run()
        assert engine.work_of("prompt")[0][0] == 5
        assert engine.work_of("small")[0][0] <= 5 + 20 // 4
        assert engine.endings["stream"] == ["length"]
