import pytest

from chairlift.text.messages import flatten, has_lone_surrogates, well_formed


def test_text_parts_are_joined_as_they_are():
    parts = [{"type": "text", "text": "My name is Ada."}, {"type": "text", "text": " What is my name?"}]
    assert flatten(parts) == "My name is Ada. What is my name?"


def test_no_parts_are_an_empty_text():
    assert flatten([]) == ""


@pytest.mark.parametrize("content", [None, "text"])
def test_what_has_no_parts_stays_as_it_is(content: str | None):
    assert flatten(content) == content


@pytest.mark.parametrize("part", [{"type": "image_url"}, {"type": "text"}, {"type": "text", "text": 1}, {}])
def test_a_part_that_is_no_text_is_refused_by_its_place(part: dict[str, object]):
    with pytest.raises(ValueError, match="content part 1"):
        flatten([{"type": "text", "text": "a"}, part])


@pytest.mark.parametrize(("text", "alone"), [("hi \ud83d", True), ("hi \ud83d\ude00", True), ("hi 😀", False)])
def test_surrogates_are_found(text: str, alone: bool):
    assert has_lone_surrogates(text) is alone


def test_an_unpaired_surrogate_is_replaced():
    assert well_formed("a\ud83db") == "a\ufffdb"


def test_a_pair_that_was_cut_into_two_escapes_is_one_character():
    assert well_formed("\ud83d\ude00") == "😀"
