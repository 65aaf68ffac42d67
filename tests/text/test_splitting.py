import pytest

from chairlift.core.errors import ModelError
from chairlift.text.splitting import splitting

TEXT = "It's we'LL 1234567  naïve—ok\n\n  x"

# By the published regular expressions, worked out by hand.
EXPECTED = {
    "gpt-2": "It|'s| we|'|LL| 1234567| | naïve|—|ok|\n\n | x",
    "smollm": "It|'s| we|'|LL| |1|2|3|4|5|6|7| | naïve|—|ok|\n\n | x",
    "llama-bpe": "It|'s| we|'LL| |123|456|7| | naïve|—ok|\n\n| | x",
    "qwen2": "It|'s| we|'LL| |1|2|3|4|5|6|7| | naïve|—ok|\n\n| | x",
    "tekken": "It|'s| we|'LL| |1|2|3|4|5|6|7| | naïve|—ok|\n\n| | x",
    "gpt-4o": "It's| we'LL| |123|456|7| | naïve|—ok|\n\n| | x",
}


def pieces(name: str, text: str) -> list[str]:
    return [text[start:stop] for _, (start, stop) in splitting(name).pre_tokenizer().pre_tokenize_str(text)]


@pytest.mark.parametrize("name", EXPECTED)
def test_a_family_splits_text_as_published(name: str):
    assert "|".join(pieces(name, TEXT)) == EXPECTED[name]


def test_spaces_before_a_digit_stay_together_where_digits_are_cut_out_first():
    assert pieces("smollm", "a   4") == ["a", "   ", "4"]


def test_capitals_within_a_word_split_it_where_the_family_wants_it():
    assert pieces("tekken", "helloWORLD") == ["hello", "WORLD"]


def test_marks_belong_to_words_where_the_family_wants_it():
    assert pieces("qwen35", "कि") == ["कि"]


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ModelError, match=r"known are .*llama-bpe"):
        splitting("klingon")
