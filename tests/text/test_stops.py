import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.text.stops import StopMatcher


def run(stops: list[str], *pieces: str, include: bool = False) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops, include=include)
    return [matcher.feed(piece) for piece in pieces] + [matcher.finish()], matcher.matched


def test_the_beginning_of_a_stop_is_not_sent():
    sent, matched = run(["3456"], "1", "2", "3", "4", "5", "67")
    assert ("".join(sent), matched) == ("12", "3456")


def test_a_stop_within_a_piece_ends_the_text_exactly_before_it():
    sent, matched = run(["Lisb"], "It is", " Lisbon now")
    assert ("".join(sent), matched) == ("It is ", "Lisb")


def test_a_stop_may_span_three_pieces():
    sent, _ = run(["is Lis"], "It i", "s L", "isbon now")
    assert "".join(sent) == "It "


def test_plain_words_are_sent_at_once_beside_a_long_stop():
    sent, _ = run(["#" * 200], "plain ", "words ", "here")
    assert sent == ["plain ", "words ", "here", ""]


def test_nothing_is_sent_after_a_match():
    matcher = StopMatcher(["four"])
    sent = [matcher.feed(piece) for piece in ["one two three ", "four five", " six"]]
    assert [*sent, matcher.finish()] == ["one two three ", "", "", ""]


def test_a_false_start_is_sent_as_soon_as_it_is_one():
    assert run(["abc"], "ab", "x")[0] == ["", "abx", ""]


def test_a_false_start_at_the_end_is_sent_at_the_end():
    assert run(["abc"], "xab")[0] == ["x", "ab"]


def test_a_start_within_a_false_start_is_found():
    sent, matched = run(["aab"], "aaa", "b")
    assert ("".join(sent), matched) == ("a", "aab")


def test_the_stop_that_is_complete_first_wins():
    sent, matched = run(["abcd", "bc"], "xabcd")
    assert ("".join(sent), matched) == ("xa", "bc")


def test_of_stops_that_end_together_the_longest_wins():
    sent, matched = run(["b", "ab"], "xab")
    assert ("".join(sent), matched) == ("x", "ab")


def test_an_included_stop_is_sent_and_nothing_after_it():
    assert run(["lo"], "hel", "lo world", include=True)[0] == ["he", "llo", ""]


def test_an_unarmed_matcher_passes_a_stop_over():
    matcher = StopMatcher(["ab"])
    assert matcher.feed("xab", armed=False) == "xab"


def test_a_stop_that_began_unarmed_counts_when_it_is_completed():
    matcher = StopMatcher(["ab"])
    assert [matcher.feed("xa", armed=False), matcher.feed("b"), matcher.matched] == ["x", "", "ab"]


def test_an_unarmed_match_still_holds_back_what_may_become_a_longer_stop():
    matcher = StopMatcher(["ab", "abc"])
    assert [matcher.feed("ab", armed=False), matcher.feed("c"), matcher.matched] == ["", "", "abc"]


def test_an_empty_stop_is_refused():
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""])


def slow(stops: list[str], text: str) -> tuple[str, str | None]:
    """What may be sent of a whole text: tries every end and every stop."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    starts = (text[cut:] for cut in range(len(text) + 1))
    held = next(rest for rest in starts if any(stop.startswith(rest) for stop in stops) or not rest)
    return text[: len(text) - len(held)], None


SHORT = st.text("ab", min_size=1, max_size=5)


@given(st.lists(SHORT, min_size=1, max_size=4), st.lists(st.text("ab", max_size=4), max_size=6))
def test_it_sends_after_each_piece_what_the_slow_twin_sends(stops: list[str], pieces: list[str]):
    matcher = StopMatcher(stops)
    sent = ""
    for count, piece in enumerate(pieces, start=1):
        sent += matcher.feed(piece)
        assert (sent, matcher.matched) == slow(stops, "".join(pieces[:count]))


@given(st.lists(SHORT, min_size=1, max_size=4), st.text("abc"))
def test_without_a_match_all_of_the_text_has_been_sent_at_the_end(stops: list[str], text: str):
    matcher = StopMatcher(stops)
    sent = matcher.feed(text) + matcher.finish()
    assert matcher.matched is not None or sent == text
