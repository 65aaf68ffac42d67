from hypothesis import given
from hypothesis import strategies as st
from scripted_vocabulary import ScriptedVocabulary

from chairlift.text.answer import Answer, Part

WORDS = ScriptedVocabulary("one ", "two ", "three ", "four ", "five ", "six")


def test_an_answer_without_stops_is_the_text_of_its_tokens():
    answer = Answer(WORDS)
    assert answer.feed(WORDS.ids) + answer.finish() == "one two three four five six"


def test_a_stop_ends_the_text_before_it():
    answer = Answer(WORDS, stops=["four"])
    assert answer.feed(WORDS.ids) + answer.finish() == "one two three "


def test_tokens_count_up_to_the_one_that_completed_the_stop():
    answer = Answer(WORDS, stops=["four"])
    answer.feed(WORDS.ids)
    assert answer.tokens == 4


def test_a_stop_names_itself():
    answer = Answer(WORDS, stops=["two", "four"])
    answer.feed(WORDS.ids)
    assert answer.stopped == "two"


def test_tokens_after_a_stop_are_ignored_when_they_come_later():
    answer = Answer(WORDS, stops=["four"])
    answer.feed([0, 1, 2, 3])
    assert answer.feed([4, 5]) + answer.finish() == ""


def test_an_included_stop_is_the_end_of_the_text():
    answer = Answer(WORDS, stops=["four"], include_stop=True)
    assert answer.feed(WORDS.ids) + answer.finish() == "one two three four"


def test_a_stop_within_the_minimum_is_text():
    answer = Answer(WORDS, stops=["two"], min_tokens=2)
    assert answer.feed(WORDS.ids) + answer.finish() == "one two three four five six"


def test_a_stop_completed_after_the_minimum_counts_even_if_it_began_before():
    answer = Answer(WORDS, stops=["two three"], min_tokens=2)
    assert answer.feed(WORDS.ids) == "one "


def test_a_held_beginning_is_sent_at_the_end():
    answer = Answer(ScriptedVocabulary("to be conti"), stops=["continued"])
    assert [answer.feed([0]), answer.finish()] == ["to be ", "conti"]


def test_an_incomplete_character_at_the_end_passes_the_stops_too():
    answer = Answer(ScriptedVocabulary("a", b"\xf0"), stops=["\ufffd"])
    assert (answer.feed([0, 1]) + answer.finish(), answer.stopped) == ("a", "\ufffd")


def test_a_stop_made_of_byte_tokens_is_found():
    answer = Answer(ScriptedVocabulary("a", *[bytes([byte]) for byte in "🦊".encode()], "b"), stops=["🦊"])
    assert (answer.feed(range(6)), answer.tokens) == ("a", 5)


def test_parts_have_no_ending_before_the_end():
    assert Answer(WORDS).take([0, 1]) == Part("one two ")


def test_an_end_token_counts_and_is_no_text():
    answer = Answer(WORDS)
    assert (answer.take([0, 5], "stop"), answer.tokens) == (Part("one ", "stop"), 2)


def test_a_stop_token_is_named_as_the_reason():
    assert Answer(WORDS).take([0, 5], "stop", 5) == Part("one ", "stop", 5)


def test_a_stop_token_that_is_wanted_is_text():
    answer = Answer(WORDS, include_stop=True)
    assert (answer.take([0, 5], "stop", 5), answer.tokens) == (Part("one six", "stop", 5), 2)


def test_the_last_token_of_the_length_is_text():
    answer = Answer(WORDS)
    assert (answer.take([0, 5], "length"), answer.tokens) == (Part("one six", "length"), 2)


def test_a_stop_string_goes_before_the_ending_that_came_with_it():
    answer = Answer(WORDS, stops=["two"])
    assert (answer.take(WORDS.ids, "length"), answer.tokens) == (Part("one ", "stop", "two"), 2)


def test_what_was_held_back_comes_with_the_ending():
    answer = Answer(ScriptedVocabulary("to be conti", "."), stops=["continued"])
    assert [answer.take([0]), answer.take([1], "stop")] == [Part("to be "), Part("conti", "stop")]


def test_a_stop_in_what_was_held_back_is_the_reason():
    answer = Answer(ScriptedVocabulary(b"\xf0"), stops=["\ufffd"])
    assert answer.take([0], "length") == Part("", "stop", "\ufffd")


@given(st.lists(st.sampled_from("ab"), max_size=12), st.lists(st.integers(0, 3), max_size=12), st.integers(0, 4))
def test_it_does_not_matter_how_many_tokens_arrive_at_once(letters: list[str], sizes: list[int], min_tokens: int):
    vocabulary = ScriptedVocabulary(*letters)
    single = Answer(vocabulary, stops=["aab", "bb"], min_tokens=min_tokens)
    grouped = Answer(vocabulary, stops=["aab", "bb"], min_tokens=min_tokens)
    text, ids = "", vocabulary.ids
    for size in [*sizes, len(ids)]:
        text += grouped.feed(ids[:size])
        ids = ids[size:]
    alone = "".join(single.feed([index]) for index in vocabulary.ids)
    assert (text, grouped.tokens, grouped.finish()) == (alone, single.tokens, single.finish())
