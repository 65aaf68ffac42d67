import pytest

from chairlift.text.surrogates import has_lone_surrogates, well_formed


@pytest.mark.parametrize(("text", "alone"), [("hi \ud83d", True), ("hi \ud83d\ude00", True), ("hi 😀", False)])
def test_surrogates_are_found(text: str, alone: bool):
    assert has_lone_surrogates(text) is alone


def test_an_unpaired_surrogate_is_replaced():
    assert well_formed("a\ud83db") == "a\ufffdb"


def test_a_pair_that_was_cut_into_two_escapes_is_one_character():
    assert well_formed("\ud83d\ude00") == "😀"
