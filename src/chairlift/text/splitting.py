"""How byte-level BPE cuts text into words before it merges: one table from the names that GGUF files carry to the rules.

Knows the published pre-tokenizers of model families; does not know vocabularies. A name that is not here is refused, as a
wrong guess gives ids that look right and are not.
"""

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

from chairlift.core.errors import ModelError


@dataclass(frozen=True, slots=True)
class Splitting:
    """Rules of one family. `patterns` are applied one after the other, each to the pieces that the one before has left.

    `digits` sets every digit apart first. `nfc` composes Unicode first. With `whole_words`, a word that is in the vocabulary
    is one token even if no merges lead to it.
    """

    patterns: tuple[str, ...]
    digits: bool = False
    nfc: bool = False
    whole_words: bool = False

    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.nfc else None

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        steps: list[pre_tokenizers.PreTokenizer] = []
        if self.digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        steps += [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        return pre_tokenizers.Sequence(steps)


_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"

_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3_WORDS = rf"{_CONTRACTION}|{_LEAD}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACE}"
_QWEN2_WORDS = rf"{_CONTRACTION}|{_LEAD}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACE}"
_QWEN35_WORDS = rf"{_CONTRACTION}|{_LEAD}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACE}"
_TEKKEN_WORDS = rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACE}"
_GPT4O_WORDS = (
    rf"{_LEAD}{_UPPER}*{_LOWER}+{_CONTRACTION}?|{_LEAD}{_UPPER}+{_LOWER}*{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACE}"
)

_GPT2 = Splitting((_GPT2_WORDS,))
_SMOLLM = Splitting((_GPT2_WORDS,), digits=True)
_LLAMA3 = Splitting((_LLAMA3_WORDS,), whole_words=True)
_QWEN2 = Splitting((_QWEN2_WORDS,), nfc=True)
# What llama.cpp does with files that were written before converters knew the family.
_DEFAULT = Splitting((r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]"))

_FAMILIES: dict[str, Splitting] = {
    "default": _DEFAULT,
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "mpt": _GPT2,
    "olmo": _GPT2,
    "exaone4": _GPT2,
    "smollm": _SMOLLM,
    "starcoder": _SMOLLM,
    "refact": _SMOLLM,
    "codeshell": _SMOLLM,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "lfm2": _LLAMA3,
    "dbrx": Splitting((_LLAMA3_WORDS,)),
    "smaug-bpe": Splitting((_LLAMA3_WORDS,)),
    "qwen2": _QWEN2,
    "megrez": _QWEN2,
    "deepseek-r1-qwen": Splitting((_QWEN2_WORDS,)),
    "stablelm2": Splitting((_QWEN2_WORDS,)),
    "qwen35": Splitting((_QWEN35_WORDS,), nfc=True),
    "tekken": Splitting((_TEKKEN_WORDS,), whole_words=True),
    "gpt-4o": Splitting((_GPT4O_WORDS,)),
    "llama4": Splitting((_GPT4O_WORDS,)),
}

ADDS_BOS = frozenset({"llama-bpe", "llama3", "llama-v3", "falcon3", "lfm2", "tekken"})
"""Families that begin a text with BOS if the file does not say whether to (as llama.cpp has it)."""


def splitting(name: str) -> Splitting:
    """The rules that `tokenizer.ggml.pre` names. Raises ModelError for a name that is unknown or missing."""
    if found := _FAMILIES.get(name):
        return found
    if not name:
        raise ModelError("the file names no pre-tokenizer (tokenizer.ggml.pre): its text cannot be split as the model expects")
    raise ModelError(f"unknown pre-tokenizer {name!r}; known are {', '.join(sorted(_FAMILIES))}")
