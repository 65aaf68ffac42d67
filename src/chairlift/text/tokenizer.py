"""Builds a model's tokenizer from what its files say, and answers for single tokens: their ids, names and exact bytes.

Knows the spelling of vocabularies. Does not know files, prompts or chats, nor what a model does with the ids.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, cast

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers

from chairlift.core.errors import ModelError
from chairlift.core.types import TokenizerSource
from chairlift.text.alphabet import SPACE_MARK, byte_level_alphabet, byte_level_bytes, byte_of, piece_bytes
from chairlift.text.merges import merges_of
from chairlift.text.spelling import Kind, Spelling, spelling_of
from chairlift.text.splitting import ADDS_BOS, splitting
from chairlift.text.surrogates import well_formed


class TokenType(IntEnum):
    """The types of tokens in GGUF metadata (`tokenizer.ggml.token_type`)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_SPECIAL_TYPES = frozenset({TokenType.UNKNOWN, TokenType.CONTROL})

MAX_TOKENS = 1 << 24
"""No vocabulary is larger; the largest have some 260,000 tokens."""


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """What single tokens are: names and bytes by id (the bytes of a token of unknown spelling are those it has alone)."""

    tokens: tuple[str, ...]
    bytes: tuple[bytes, ...]
    special_ids: frozenset[int]
    spelling: Spelling


class Tokenizer:
    """Text to ids and back. Safe to use from several threads at once: nothing changes after `build`.

    A special token that stands in a text becomes its id. An added BOS is never doubled: a text that begins with it already
    gets no second one.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        vocabulary: _Vocabulary,
        *,
        bos_id: int | None,
        eos_ids: tuple[int, ...],
        before: tuple[int, ...],
        after: tuple[int, ...],
    ) -> None:
        self._backend = backend
        self._vocabulary = vocabulary
        self._before = before
        self._after = after
        self.bos_id = bos_id
        self.eos_ids = eos_ids
        """All tokens that end an answer; the first is the one that templates call `eos_token`."""
        self.special_ids = vocabulary.special_ids
        """Control tokens: they steer the model and are left out of a decoded text."""

    @property
    def vocab_size(self) -> int:
        """All ids that a text gives are below this. The model's head may be larger, with padding that no text gives."""
        return len(self._vocabulary.tokens)

    @property
    def adds_bos(self) -> bool:
        """Whether `encode` begins with BOS if special tokens are wanted."""
        return bool(self._before) and self._before[0] == self.bos_id

    @property
    def exact(self) -> bool:
        """Whether the text of ids is the concatenation of their `token_bytes`."""
        return self._vocabulary.spelling.kind != "unknown"

    @property
    def strips_space(self) -> bool:
        """Whether `decode` drops the space that the first token of a text begins with (SentencePiece with a dummy prefix)."""
        return self._vocabulary.spelling.strips_space

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of `text`. Unpaired surrogates, which no encoding of text has, count as U+FFFD."""
        # As a batch of one: the library lets other threads run only while it works on a batch.
        ids = self._backend.encode_batch([well_formed(text)], add_special_tokens=False)[0].ids
        if not add_special_tokens:
            return ids
        before = self._before
        if before and before[0] == self.bos_id and ids[:1] == [self.bos_id]:
            before = before[1:]
        return [*before, *ids, *self._after]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of `ids`; bytes that are no UTF-8 become U+FFFD. Raises IndexError for an id outside the vocabulary."""
        kept = [index for index in ids if not (skip_special_tokens and index in self.special_ids)]
        if not self.exact:
            return self._backend.decode(kept, skip_special_tokens=False)
        text = b"".join(map(self.token_bytes, kept)).decode("utf-8", "replace")
        return text.removeprefix(" ") if self.strips_space else text

    def token(self, index: int) -> str:
        """The token as its vocabulary spells it. Raises IndexError for an id outside the vocabulary."""
        return self._vocabulary.tokens[self._checked(index)]

    def token_bytes(self, index: int) -> bytes:
        """The bytes that a token adds to a text; a special token gives its literal name. Raises IndexError as `token`."""
        return self._vocabulary.bytes[self._checked(index)]

    def _checked(self, index: int) -> int:
        if index < 0:
            raise IndexError(f"token id {index} is negative")
        return index


def build(source: TokenizerSource) -> Tokenizer:
    """The tokenizer that a model's files describe.

    If the files do not say whether a text begins with BOS, it does for SentencePiece vocabularies and for the byte-level
    families whose original tokenizers add it (Llama 3, Tekken), and for no other. Raises ModelError for anything that cannot
    be rebuilt faithfully, an unknown pre-tokenizer among it.
    """
    match source.kind:
        case "json":
            return _from_json(source)
        case "bpe":
            return _from_bpe(_typed(source))
        case "sentencepiece":
            return _from_sentencepiece(_typed(source))


def _typed(source: TokenizerSource) -> TokenizerSource:
    """The source with a type for every token. A file without any means plain tokens, but for those that it names as special."""
    if source.types:
        return source
    named = {source.bos_id, source.pad_id, *source.eos_ids}
    return replace(
        source,
        types=tuple(TokenType.CONTROL if index in named else TokenType.NORMAL for index in range(len(source.tokens))),
    )


def _from_bpe(source: TokenizerSource) -> Tokenizer:
    rules = splitting(source.pre)
    vocab = _vocab(source)
    merges = _pairs(source.merges)
    backend = _assemble(lambda: models.BPE(vocab=vocab, merges=merges, ignore_merges=rules.whole_words))
    if normalizer := rules.normalizer():
        backend.normalizer = normalizer
    backend.pre_tokenizer = rules.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    _add_tokens(backend, source)
    alphabet = byte_level_alphabet()
    added = _added(source)
    spelt = tuple(
        token.encode("utf-8", "replace") if index in added else byte_level_bytes(token, alphabet)
        for index, token in enumerate(source.tokens)
    )
    return _finish(source, backend, spelt, Spelling("byte-level"), adds_bos=source.pre in ADDS_BOS)


def _from_sentencepiece(source: TokenizerSource) -> Tokenizer:
    if len(source.scores) != len(source.tokens):
        raise ModelError(f"the vocabulary has {len(source.tokens)} tokens and {len(source.scores)} scores")
    vocab = _vocab(source)
    typed = zip(source.tokens, source.scores, source.types, strict=True)
    pieces = [(token, score) for token, score, kind in typed if kind == TokenType.NORMAL]
    merges = merges_of(pieces, {piece for piece, _ in pieces})
    unknown = source.tokens[source.unk_id] if source.unk_id is not None else None
    backend = _assemble(
        lambda: models.BPE(vocab=vocab, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=_has_bytes(source))
    )
    prefixed = source.add_space_prefix is not False
    marks = normalizers.Replace(" ", SPACE_MARK)
    # As llama.cpp and the original: every stretch of text between special tokens gets its own prefix.
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE_MARK), marks]) if prefixed else marks
    _add_tokens(backend, source)
    spelt = tuple(
        token.encode("utf-8", "replace") if kind == TokenType.CONTROL else piece_bytes(token, is_byte=kind == TokenType.BYTE)
        for token, kind in zip(source.tokens, source.types, strict=True)
    )
    return _finish(source, backend, spelt, Spelling("pieces", strips_space=prefixed), adds_bos=True)


def _from_json(source: TokenizerSource) -> Tokenizer:
    try:
        backend = tokenizers.Tokenizer.from_str(source.json)
        described = cast("dict[str, Any]", json.loads(source.json))
    except Exception as error:  # the library raises bare Exception for any fault of the file
        raise ModelError(f"tokenizer.json cannot be used: {_one_line(error)}") from error
    backend.no_padding()
    backend.no_truncation()
    spelling = spelling_of(described.get("decoder"))
    added = backend.get_added_tokens_decoder()
    special = frozenset(index for index, token in added.items() if token.special)
    tokens = _json_tokens(backend, described)
    spelt = _json_bytes(backend, tokens, set(added), spelling.kind)
    before, after = _written_around(backend)
    if source.add_eos is False:
        after = tuple(index for index in after if index not in source.eos_ids)
    _check_specials(source, len(tokens), written=(*before, *after))
    return Tokenizer(
        backend,
        _Vocabulary(tokens, spelt, special, spelling),
        bos_id=source.bos_id,
        eos_ids=source.eos_ids,
        before=_with_bos(before, source),
        after=after,
    )


def _json_tokens(backend: tokenizers.Tokenizer, described: dict[str, Any]) -> tuple[str, ...]:
    """Names by id. The library numbers added tokens itself: where the file has other ids, the model was made for those."""
    for token in described.get("added_tokens") or ():
        if backend.token_to_id(token["content"]) != token["id"]:
            raise ModelError(
                f"tokenizer.json: the id {token['id']} of the token {token['content']!r:.60} leaves a gap before it"
            )
    names = {index: token for token, index in backend.get_vocab(with_added_tokens=True).items()}
    count = max(names, default=-1) + 1
    if count > MAX_TOKENS:
        raise ModelError(f"tokenizer.json: token id {count - 1:,}: the limit is {MAX_TOKENS:,} tokens")
    return tuple(names.get(index, "") for index in range(count))


def _json_bytes(backend: tokenizers.Tokenizer, tokens: Sequence[str], added: set[int], kind: Kind) -> tuple[bytes, ...]:
    alphabet = byte_level_alphabet()

    def spell(index: int, token: str) -> bytes:
        if index in added and kind != "pieces":
            return token.encode("utf-8", "replace")
        if kind == "byte-level":
            return byte_level_bytes(token, alphabet)
        if kind == "pieces":
            return piece_bytes(token, is_byte=index not in added)
        return backend.decode([index], skip_special_tokens=False).encode("utf-8", "replace")

    return tuple(spell(index, token) for index, token in enumerate(tokens))


def _written_around(backend: tokenizers.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The special tokens that a `tokenizer.json` puts before and after a text, seen by letting it encode one letter."""
    bare = backend.encode("a", add_special_tokens=False).ids
    full = backend.encode("a", add_special_tokens=True).ids
    room = len(full) - len(bare)
    for lead in range(room + 1):
        if full[lead : lead + len(bare)] == bare:
            return tuple(full[:lead]), tuple(full[lead + len(bare) :])
    raise ModelError("tokenizer.json changes a text when it adds special tokens: this is not supported")


def _with_bos(before: tuple[int, ...], source: TokenizerSource) -> tuple[int, ...]:
    """What stands before a text, corrected by what the files say outright about BOS."""
    if source.bos_id is None or source.add_bos is None:
        return before
    others = tuple(index for index in before if index != source.bos_id)
    return (source.bos_id, *others) if source.add_bos else others


def _finish(
    source: TokenizerSource, backend: tokenizers.Tokenizer, spelt: tuple[bytes, ...], spelling: Spelling, *, adds_bos: bool
) -> Tokenizer:
    special = frozenset(index for index, kind in enumerate(source.types) if kind in _SPECIAL_TYPES)
    wants_bos = adds_bos if source.add_bos is None else source.add_bos
    if source.add_bos and source.bos_id is None:
        raise ModelError("the tokenizer is to add BOS, but the file names no BOS token")
    return Tokenizer(
        backend,
        _Vocabulary(source.tokens, spelt, special, spelling),
        bos_id=source.bos_id,
        eos_ids=source.eos_ids,
        before=(source.bos_id,) if wants_bos and source.bos_id is not None else (),
        after=source.eos_ids[:1] if source.add_eos else (),
    )


def _assemble(model: Callable[[], models.Model]) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer(model())
    except Exception as error:  # the same
        raise ModelError(f"the vocabulary of the tokenizer is broken: {_one_line(error)}") from error


def _vocab(source: TokenizerSource) -> dict[str, int]:
    if not source.tokens:
        raise ModelError("the file has no vocabulary (tokenizer.ggml.tokens)")
    if len(source.types) != len(source.tokens):
        raise ModelError(f"the vocabulary has {len(source.tokens)} tokens and {len(source.types)} token types")
    _check_specials(source, len(source.tokens))
    vocab = {token: index for index, token in enumerate(source.tokens)}
    if len(vocab) != len(source.tokens):
        twice = next(token for index, token in enumerate(source.tokens) if vocab[token] != index)
        raise ModelError(f"the vocabulary has the token {twice!r} twice")
    return vocab


def _check_specials(source: TokenizerSource, count: int, *, written: tuple[int, ...] = ()) -> None:
    """ModelError for a special token, named by the source or `written` around texts, that is none of `count` tokens."""
    named = [source.bos_id, source.unk_id, source.pad_id, *source.eos_ids, *written]
    if wrong := [index for index in named if index is not None and not 0 <= index < count]:
        raise ModelError(f"special token {wrong[0]} is outside the vocabulary of {count} tokens")


def _pairs(merges: Iterable[str]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for merge in merges:
        left, space, right = merge.partition(" ")
        if not (left and space and right):
            raise ModelError(f"a merge of the tokenizer is not a pair: {merge!r}")
        pairs.append((left, right))
    return pairs


def _added(source: TokenizerSource) -> set[int]:
    """Tokens that are found in the text itself, before it is split: control tokens and those that users have defined."""
    kinds = {TokenType.CONTROL, TokenType.USER_DEFINED}
    return {index for index, kind in enumerate(source.types) if kind in kinds and source.tokens[index]}


def _add_tokens(backend: tokenizers.Tokenizer, source: TokenizerSource) -> None:
    control = {index for index, kind in enumerate(source.types) if kind == TokenType.CONTROL}
    wanted = [AddedToken(source.tokens[index], normalized=False, special=index in control) for index in sorted(_added(source))]
    backend.add_tokens(wanted)  # pyright: ignore[reportUnknownMemberType] - the library leaves its argument untyped


def _has_bytes(source: TokenizerSource) -> bool:
    pieces = (token for token, kind in zip(source.tokens, source.types, strict=True) if kind == TokenType.BYTE)
    return len({byte_of(piece) for piece in pieces} - {None}) == 256


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
