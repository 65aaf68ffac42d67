import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import byte_level, sentencepiece
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers, processors

from chairlift.core.errors import ModelError
from chairlift.core.types import TokenizerSource
from chairlift.text.detokenize import Detokenizer
from chairlift.text.tokenizer import Tokenizer, build

BPE = build(byte_level())
PIECES = build(sentencepiece())
PREFIXED = build(sentencepiece(add_space_prefix=True, add_bos=False))


def names(tokenizer: Tokenizer, text: str, **options: bool) -> list[str]:
    return [tokenizer.token(index) for index in tokenizer.encode(text, **options)]


def library_json(*, byte_level_decoder: bool = True, bos: bool = False) -> str:
    """A `tokenizer.json` made by the library itself: bytes and one merge."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate(["<s>", "</s>", *alphabet, "he"])}
    made = Library(models.BPE(vocab=vocab, merges=[("h", "e")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel() if byte_level_decoder else decoders.WordPiece()
    made.add_special_tokens(["<s>", "</s>"])
    if bos:
        made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return made.to_str()


def from_json(text: str, *, add_bos: bool | None = None, add_eos: bool | None = None) -> Tokenizer:
    return build(TokenizerSource("json", json=text, bos_id=0, eos_ids=(1,), add_bos=add_bos, add_eos=add_eos))


# Byte-level BPE


def test_byte_level_merges_are_applied_in_order():
    assert names(BPE, "hello world") == ["hello", "Ġwor", "l", "d"]


def test_special_tokens_in_a_text_are_single_ids():
    assert BPE.encode("<|im_start|>he<|im_end|>") == [1, BPE.encode("he")[0], 2]


def test_user_defined_tokens_in_a_text_are_single_ids():
    assert names(BPE, "he<tool>he") == ["he", "<tool>", "he"]


def test_control_tokens_are_special_and_user_defined_ones_are_not():
    assert BPE.special_ids == {0, 1, 2}


def test_the_vocabulary_has_the_size_of_the_file():
    assert BPE.vocab_size == len(byte_level().tokens)


@pytest.mark.parametrize(("add_bos", "pre", "expected"), [
    (True, "gpt-2", True),
    (False, "gpt-2", False),
    (None, "gpt-2", False),
    (None, "llama-bpe", True),
    (False, "llama-bpe", False),
])  # fmt: skip
def test_bos_is_added_as_the_file_says_or_else_as_the_family_does(add_bos: bool | None, pre: str, expected: bool):
    assert build(byte_level(add_bos=add_bos, pre=pre)).encode("he")[:1] == ([0] if expected else BPE.encode("he"))


def test_no_bos_without_special_tokens():
    assert build(byte_level(add_bos=True)).encode("he", add_special_tokens=False) == BPE.encode("he")


def test_a_text_that_begins_with_bos_gets_no_second_one():
    assert build(byte_level(add_bos=True)).encode("<s>he") == [0, *BPE.encode("he")]


def test_eos_is_added_if_the_file_says_so():
    assert build(replace(byte_level(), add_eos=True)).encode("he") == [*BPE.encode("he"), 2]


def test_digits_stand_alone_where_the_family_wants_it():
    assert names(build(byte_level(pre="smollm")), "12") == ["1", "2"]


def test_digits_are_merged_where_the_family_allows_it():
    assert names(BPE, "12") == ["12"]


def test_a_word_of_the_vocabulary_is_one_token_without_merges_where_the_family_wants_it():
    assert names(build(byte_level(pre="llama-bpe", merges=())), "hello", add_special_tokens=False) == ["hello"]


def test_unicode_is_composed_where_the_family_wants_it():
    assert names(build(byte_level(pre="qwen2")), "e\u0301") == ["Ã©"]


def test_an_unknown_pre_tokenizer_is_refused_by_name():
    with pytest.raises(ModelError, match="unknown pre-tokenizer 'klingon'"):
        build(byte_level(pre="klingon"))


def test_a_missing_pre_tokenizer_is_refused():
    with pytest.raises(ModelError, match="names no pre-tokenizer"):
        build(byte_level(pre=""))


def test_the_bytes_of_a_part_of_a_character_are_the_real_ones():
    assert b"".join(BPE.token_bytes(index) for index in BPE.encode("🦊")) == "🦊".encode()


def test_a_special_token_gives_its_name_as_bytes():
    assert BPE.token_bytes(2) == b"<|im_end|>"


def test_decoding_leaves_special_tokens_out():
    assert BPE.decode(BPE.encode("<s>he<|im_end|>")) == "he"


def test_decoding_keeps_special_tokens_if_wanted():
    assert BPE.decode(BPE.encode("<s>he"), skip_special_tokens=False) == "<s>he"


@pytest.mark.parametrize("index", [-1, 10_000])
def test_an_id_outside_the_vocabulary_has_no_name(index: int):
    with pytest.raises(IndexError):
        BPE.token(index)


def test_an_unpaired_surrogate_counts_as_a_replacement_character():
    assert BPE.encode("a\ud83d") == BPE.encode("a\ufffd")


def test_an_empty_text_has_no_tokens():
    assert BPE.encode("") == []


def test_encoding_from_several_threads_gives_the_same():
    texts = [f"hello world {number}" for number in range(50)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(BPE.encode, texts)) == [BPE.encode(text) for text in texts]


@given(st.text())
def test_byte_level_text_comes_back(text: str):
    assert BPE.decode(BPE.encode(text), skip_special_tokens=False) == text


# SentencePiece


def test_the_neighbours_with_the_best_score_are_joined_first():
    assert names(PIECES, "abc", add_special_tokens=False) == ["ab", "c"]


def test_spaces_are_marks():
    assert names(PIECES, "hello a", add_special_tokens=False) == ["hello", "▁a"]


def test_a_prefix_space_makes_the_first_word_like_any_other():
    assert names(PREFIXED, "hello a") == ["▁hello", "▁a"]


def test_a_prefix_space_is_the_default():
    assert names(build(sentencepiece(add_space_prefix=None, add_bos=False)), "a") == ["▁a"]


def test_what_follows_a_special_token_has_its_own_prefix():
    assert names(PREFIXED, "a</s>a") == ["▁a", "</s>", "▁a"]


def test_unknown_characters_fall_back_to_bytes():
    assert names(PIECES, "é", add_special_tokens=False) == ["<0xC3>", "<0xA9>"]


def test_without_byte_tokens_unknown_characters_are_one_unknown_token():
    source = sentencepiece()
    kept = [0, 1, 2, *range(260, len(source.tokens))]
    cut = replace(
        source,
        tokens=tuple(source.tokens[index] for index in kept),
        types=tuple(source.types[index] for index in kept),
        scores=tuple(source.scores[index] for index in kept),
    )
    assert build(cut).encode("éé", add_special_tokens=False) == [0]


def test_user_defined_runs_of_spaces_are_single_ids():
    assert names(PIECES, "a  b", add_special_tokens=False) == ["a", "  ", "b"]


@pytest.mark.parametrize(("add_bos", "expected"), [(True, True), (False, False), (None, True)])
def test_sentencepiece_adds_bos_unless_the_file_says_no(add_bos: bool | None, expected: bool):
    tokenizer = build(sentencepiece(add_bos=add_bos))
    assert (tokenizer.encode("a")[0] == 1, tokenizer.adds_bos) == (expected, expected)


def test_the_bytes_of_pieces_have_spaces_for_marks():
    assert PIECES.token_bytes(PIECES.encode(" a")[1]) == b" a"


def test_the_bytes_of_byte_pieces_are_the_bytes():
    assert b"".join(PIECES.token_bytes(index) for index in PIECES.encode("é")[1:]) == "é".encode()


def test_a_whole_text_is_decoded_without_its_prefix_space():
    assert PREFIXED.decode(PREFIXED.encode("hello a")) == "hello a"


def test_an_answer_keeps_the_space_that_it_begins_with():
    detokenizer = Detokenizer(PREFIXED)
    assert [detokenizer.feed(index) for index in PREFIXED.encode("hello a")] == [" hello", " a"]


@given(st.text())
def test_sentencepiece_text_comes_back(text: str):
    # The mark itself cannot be told from a space: the original has the same limit.
    text = text.replace("▁", "")
    assert PIECES.decode(PIECES.encode(text, add_special_tokens=False), skip_special_tokens=False) == text


# Broken files


@pytest.mark.parametrize(("change", "message"), [
    ({"tokens": ()}, "no vocabulary"),
    ({"types": (1,)}, "1 token types"),
    ({"merges": ("he",)}, "not a pair"),
    ({"merges": ("q zz",)}, "broken"),
    ({"bos_id": 9999}, "outside the vocabulary"),
    ({"eos_ids": (-1,)}, "outside the vocabulary"),
    ({"add_bos": True, "bos_id": None}, "names no BOS"),
])  # fmt: skip
def test_a_broken_description_is_refused(change: dict[str, object], message: str):
    with pytest.raises(ModelError, match=message):
        build(replace(byte_level(), **change))  # pyright: ignore[reportArgumentType]


def test_a_token_that_is_there_twice_is_refused():
    source = byte_level()
    with pytest.raises(ModelError, match="twice"):
        build(replace(source, tokens=(*source.tokens[:-1], "a")))


def test_missing_scores_are_refused():
    with pytest.raises(ModelError, match="0 scores"):
        build(replace(sentencepiece(), scores=()))


def test_without_types_the_named_tokens_are_special():
    assert build(replace(byte_level(), types=())).special_ids == {0, 2}


# tokenizer.json


def test_json_gives_the_ids_of_the_library():
    assert from_json(library_json()).encode("hehe!") == Library.from_str(library_json()).encode("hehe!").ids


def test_json_adds_what_its_own_post_processor_adds():
    assert from_json(library_json(bos=True)).encode("he")[0] == 0


@pytest.mark.parametrize(("in_json", "said"), [(True, False), (False, True)])
def test_what_the_files_say_about_bos_beats_the_post_processor(in_json: bool, said: bool):
    assert from_json(library_json(bos=in_json), add_bos=said).adds_bos is said


def test_json_special_tokens_are_special():
    assert from_json(library_json()).special_ids == {0, 1}


def test_json_bytes_are_exact_for_byte_level_decoders():
    tokenizer = from_json(library_json())
    assert b"".join(tokenizer.token_bytes(index) for index in tokenizer.encode("🦊")) == "🦊".encode()


def test_json_with_another_decoder_is_decoded_by_the_library():
    tokenizer = from_json(library_json(byte_level_decoder=False))
    ids = tokenizer.encode("hehe")
    assert (tokenizer.exact, tokenizer.decode(ids)) == (
        False,
        Library.from_str(library_json(byte_level_decoder=False)).decode(ids),
    )


def pieces_json() -> str:
    """A `tokenizer.json` like Llama 2's: pieces with a prefix space, and bytes for the rest."""
    made = Library.from_str(build(sentencepiece(add_space_prefix=True))._backend.to_str())  # pyright: ignore[reportPrivateUsage]
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(steps)
    return made.to_str()


def test_json_of_pieces_has_the_bytes_of_the_same_vocabulary_in_gguf():
    read = build(TokenizerSource("json", json=pieces_json(), bos_id=1, eos_ids=(2,), add_bos=False))
    assert [read.token_bytes(index) for index in range(4, read.vocab_size)] == [
        PREFIXED.token_bytes(index) for index in range(4, PREFIXED.vocab_size)
    ]


@pytest.mark.parametrize("text", ["hello a", " a", "é a", "a</s>a", ""])
def test_json_of_pieces_is_decoded_as_the_library_does(text: str):
    read = build(TokenizerSource("json", json=pieces_json(), bos_id=1, eos_ids=(2,), add_bos=False))
    assert read.decode(read.encode(text)) == Library.from_str(pieces_json()).decode(read.encode(text))


def renumbered(**ids: int) -> str:
    """The library's file with other ids for its special tokens, or for those that its post-processor writes."""
    changed = json.loads(library_json(bos=True))
    for token in changed["added_tokens"]:
        token["id"] = ids.get(token["content"].strip("<>"), token["id"])
    changed["post_processor"]["special_tokens"]["<s>"]["ids"] = [ids.get("written", 0)]
    return json.dumps(changed)


def test_json_whose_ids_the_library_would_change_is_refused():
    with pytest.raises(ModelError, match=r"the id 999 of the token '</s>' leaves a gap before it"):
        from_json(renumbered(**{"/s": 999}))


def test_json_that_writes_a_token_outside_its_vocabulary_is_refused():
    with pytest.raises(ModelError, match="special token 999 is outside the vocabulary of 259 tokens"):
        from_json(renumbered(written=999))


@pytest.mark.parametrize("named", [{"bos_id": 259}, {"eos_ids": (1, 259)}, {"unk_id": -1}, {"pad_id": 259}])
def test_json_with_a_special_token_outside_its_vocabulary_is_refused(named: dict[str, Any]):
    with pytest.raises(ModelError, match="outside the vocabulary of 259 tokens"):
        build(TokenizerSource("json", json=library_json(), **named))


def test_json_with_a_huge_id_is_refused_before_a_table_of_that_size_is_made():
    described = json.loads(Library(models.WordLevel({"a": 0, "b": 1}, unk_token="a")).to_str())
    described["model"]["vocab"]["b"] = 4_000_000_000  # the library itself would take minutes to write this
    with pytest.raises(ModelError, match="token id 4,000,000,000: the limit is"):
        build(TokenizerSource("json", json=json.dumps(described)))


@pytest.mark.parametrize("text", ["", "{}", "not json"])
def test_json_that_is_none_is_refused(text: str):
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be used"):
        from_json(text)
