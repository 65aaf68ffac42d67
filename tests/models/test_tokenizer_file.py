"""The tokens of a `tokenizer.json`, and what becomes of those that the model has no embedding for."""

import json

import pytest

from chairlift.core.errors import ModelError
from chairlift.models.fields import Fields
from chairlift.models.tokenizer_file import TokenizerFile, with_embeddings

TABLE = {"a": 0, "b": 1, "<s>": 2}


def added(**ids: int) -> list[dict[str, object]]:
    return [{"content": f"<{name}>", "id": index, "special": True} for name, index in ids.items()]


def read(vocab: object = TABLE, tokens: object = (), *, embeddings: int = 4) -> TokenizerFile:
    parsed = {"added_tokens": tokens, "model": {"vocab": vocab, "merges": []}, "decoder": None}
    return with_embeddings(json.dumps(parsed), parsed, vocab=embeddings)


def test_a_file_whose_tokens_all_have_embeddings_is_not_changed():
    text = '{"model":  {"vocab": {"a": 0}}}'
    assert with_embeddings(text, json.loads(text), vocab=1).text == text


def test_ids_of_plain_and_added_tokens_are_known():
    assert read(tokens=added(s=2, x=3)).ids == {"a": 0, "b": 1, "<s>": 2, "<x>": 3}


def test_ids_of_a_list_of_pieces_are_their_places():
    assert read([["a", 0.0], ["b", -1.0]]).ids == {"a": 0, "b": 1}


def test_added_tokens_without_embedding_are_left_out():
    file = read(tokens=added(s=2, x=3, image=4))
    assert [token["content"] for token in json.loads(file.text)["added_tokens"]] == ["<s>", "<x>"]


def test_added_tokens_without_embedding_are_left_out_of_the_table_as_well():
    file = read({**TABLE, "<image>": 4}, added(image=4))
    assert json.loads(file.text)["model"]["vocab"] == TABLE


def test_the_rest_of_the_file_stays():
    kept = json.loads(read(tokens=added(image=4)).text)
    assert (kept["model"]["merges"], kept["decoder"]) == ([], None)


def test_a_token_that_was_left_out_has_no_id():
    about = Fields({"pad_token": "<pad>", "eos_token": {"content": "<s>"}}, "tokenizer_config.json")
    file = read(tokens=added(pad=4))
    assert (file.named(about, "pad_token"), file.named(about, "eos_token")) == (None, 2)


@pytest.mark.parametrize("vocab", [{"a": 0, "b": 4}, [["a", 0.0]] * 4 + [["b", 0.0]]])
def test_a_plain_token_without_embedding_is_refused(vocab: object):
    with pytest.raises(ModelError, match="token 'b' has the id 4, but there are embeddings for 4"):
        read(vocab)


@pytest.mark.parametrize(("vocab", "tokens"), [
    ({"a": -1}, ()),
    ({"a": 0.5}, ()),
    ({}, ["<x>"]),
    ({}, [{"id": 1}]),
    ({}, [{"content": "<x>"}]),
    ({}, [{"content": "<x>", "id": "1"}]),
])  # fmt: skip
def test_tokens_that_make_no_sense_are_refused(vocab: object, tokens: list[object]):
    with pytest.raises(ModelError, match=r"^tokenizer\.json: [^\n]+$"):
        read(vocab, tokens)
