import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_vocabulary import ScriptedVocabulary

from chairlift.text.detokenize import Detokenizer

FOX = [bytes([byte]) for byte in "🦊".encode()]
KANJI = [bytes([byte]) for byte in "漢".encode()]


def deltas(vocabulary: ScriptedVocabulary, *, skip_special_tokens: bool = True) -> list[str]:
    detokenizer = Detokenizer(vocabulary, skip_special_tokens=skip_special_tokens)
    return [detokenizer.feed(index) for index in vocabulary.ids] + [detokenizer.finish()]


@pytest.mark.parametrize("exact", [True, False])
def test_characters_made_of_byte_tokens_come_out_whole_and_ascii_at_once(exact: bool):
    vocabulary = ScriptedVocabulary("a ", *FOX, " and ", *KANJI, " end", exact=exact)
    assert deltas(vocabulary) == ["a ", "", "", "", "🦊", " and ", "", "", "漢", " end", ""]


@pytest.mark.parametrize("exact", [True, False])
def test_a_character_that_is_never_completed_is_a_replacement_character_at_the_end(exact: bool):
    assert deltas(ScriptedVocabulary("a", *FOX[:3], exact=exact))[-1] == "\ufffd"


def test_a_broken_character_is_replaced_as_soon_as_it_is_known_to_be_broken():
    assert deltas(ScriptedVocabulary(FOX[0], "x")) == ["", "\ufffdx", ""]


def test_special_tokens_are_left_out():
    assert "".join(deltas(ScriptedVocabulary("a", "<eos>", special=frozenset({1})))) == "a"


def test_special_tokens_give_their_literal_name_if_wanted():
    vocabulary = ScriptedVocabulary("a", "<eos>", special=frozenset({1}))
    assert "".join(deltas(vocabulary, skip_special_tokens=False)) == "a<eos>"


def test_an_id_outside_the_vocabulary_adds_nothing():
    assert Detokenizer(ScriptedVocabulary("a")).feed(7) == ""


def test_broken_bytes_of_a_window_are_let_go_in_the_end():
    vocabulary = ScriptedVocabulary(*[b"\xf0"] * 40, exact=False)
    assert any(deltas(vocabulary)[:-1])


@given(st.lists(st.binary(max_size=4)), st.sets(st.integers(0, 8)), st.booleans())
def test_the_pieces_join_to_what_decode_gives(pieces: list[bytes], special: set[int], skip: bool):
    vocabulary = ScriptedVocabulary(*pieces, special=frozenset(special))
    whole = vocabulary.decode(vocabulary.ids, skip_special_tokens=skip)
    assert "".join(deltas(vocabulary, skip_special_tokens=skip)) == whole


@given(st.text())
def test_valid_text_by_single_bytes_comes_out_as_it_was_through_a_window(text: str):
    vocabulary = ScriptedVocabulary(*[bytes([byte]) for byte in text.encode()], exact=False)
    assert "".join(deltas(vocabulary)) == text
