"""What a model's loader must know of a `tokenizer.json`: the ids of its tokens, and that each has an embedding.

Does not know how texts are cut: the file goes on to whoever builds a tokenizer of it.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from chairlift.core.errors import ModelError
from chairlift.models.fields import Fields

_NAME = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """A `tokenizer.json` whose tokens all have embeddings, and their ids by text."""

    text: str
    ids: Mapping[str, int]

    def named(self, about: Fields, key: str) -> int | None:
        """The id of the token that `tokenizer_config.json` names under `key`, as a text or as an object with `content`."""
        value = about.values.get(key)
        content = value.get("content") if isinstance(value, dict) else value
        return self.ids.get(content) if isinstance(content, str) else None


def with_embeddings(text: str, parsed: Mapping[str, object], *, vocab: int) -> TokenizerFile:
    """The file for a model with `vocab` embeddings.

    Added tokens beyond them are left out, so that their names are plain text: the text-only models of Gemma 3 bring a token
    for images, others one for padding. ModelError if a token of the vocabulary proper has no embedding.
    """
    fields = Fields(parsed, _NAME)
    model = fields.group("model")
    pieces, added = dict(_pieces(model)), dict(_added(fields))
    left_out = {content for content, index in added.items() if index >= vocab}
    for token, index in pieces.items():
        if index >= vocab and token not in left_out:
            raise ModelError(f"{_NAME}: token {token!r:.60} has the id {index:,}, but there are embeddings for {vocab:,}")
    if left_out:
        text = json.dumps(_without(parsed, model, left_out))
    return TokenizerFile(text, {token: index for token, index in (pieces | added).items() if token not in left_out})


def _pieces(model: Fields) -> Iterator[tuple[str, int]]:
    """The vocabulary proper: a table of ids, or for Unigram models a list of pieces with their scores."""
    vocab = model.values.get("vocab")
    if isinstance(vocab, dict):
        table = Fields(vocab, f"{model.where}: vocab")
        for token in vocab:
            yield token, table.integer(token)
    elif isinstance(vocab, list):
        for index, piece in enumerate(vocab):
            if isinstance(piece, list) and piece and isinstance(piece[0], str):
                yield piece[0], index


def _added(fields: Fields) -> Iterator[tuple[str, int]]:
    added = fields.values.get("added_tokens")
    for token in added if isinstance(added, list) else ():
        if not isinstance(token, dict):
            raise ModelError(f"{_NAME}: added_tokens must be a list of groups of settings")
        entry = Fields(token, f"{_NAME}: added_tokens")
        yield entry.text("content"), entry.integer("id")


def _without(parsed: Mapping[str, object], model: Fields, left_out: set[str]) -> Mapping[str, object]:
    """The file without some of its added tokens, which may stand in the table of its vocabulary as well."""
    added, vocab = parsed["added_tokens"], model.values.get("vocab")
    assert isinstance(added, list), "something was left out of it"
    changed = {**parsed, "added_tokens": [token for token in added if token["content"] not in left_out]}
    if isinstance(vocab, dict):
        changed["model"] = {**model.values, "vocab": {token: vocab[token] for token in vocab if token not in left_out}}
    return changed
