"""The tokenizers of the two real models, rebuilt from their GGUF files: ids that were checked by hand against the vocabulary.

SmolLM2's original cuts out digits one by one before anything else; Gemma's knows runs of spaces, tabs and line ends.
"""

import pytest
from real_models import real_model

from chairlift.text.detokenize import Detokenizer
from chairlift.text.template import ChatTemplate, encode_chat
from chairlift.text.tokenizer import Tokenizer, build

pytestmark = pytest.mark.model

TEXTS = (
    "Hello world",
    "naïve — café, 漢字かな交じり文 안녕 Привет 🦊👨‍👩‍👧",
    "def f(x):\n\treturn x  # twice\n\n\n        pass\r\n",
    "<|im_start|>user\n<start_of_turn>hi<eos><|im_end|>",
    "  1234567   42\n 3.14 ½²",
    " " * 40 + "x" + "\n" * 40 + "\t" * 3,
    "e\u0301 \u200b\u00a0\u3000",
    "",
)

SMOLLM2 = {
    "Hello world": [19556, 905],
    "1234567": [33, 34, 35, 36, 37, 38, 39],
    "a   42": ["a", "ĠĠĠ", "4", "2"],
    "\n 42": ["ĊĠ", "4", "2"],
    "½ ²": ["Â½", "Ġ", "Â²"],
    "a   b\n\n\nc": ["a", "ĠĠ", "Ġb", "ĊĊ", "Ċ", "c"],
    "naïve — café": ["na", "Ã¯ve", "ĠâĢĶ", "ĠcafÃ©"],
    "<|im_start|>user\n<|im_end|>": [1, 4093, 198, 2],
}

GEMMA3 = {
    "Hello world": [2, 9259, 1902],
    "The capital of France is": [2, 818, 5279, 529, 7001, 563],
    "a   b\n\n\nc\t\td": ["<bos>", "a", "   ", "b", "\n\n\n", "c", "\t\t", "d"],
    "1234567": ["<bos>", *"1234567"],
    "<table><td>x": ["<bos>", "<table>", "<td>", "x"],
    "<start_of_turn>user\nhi<end_of_turn>": ["<bos>", "<start_of_turn>", "user", "\n", "hi", "<end_of_turn>"],
    "\U000f0000": ["<bos>", "<0xF3>", "<0xB0>", "<0x80>", "<0x80>"],
    " " * 40 + "x": ["<bos>", " " * 31, " " * 9, "x"],
    "<bos>hi": ["<bos>", "hi"],
}


def tokenizer_of(name: str) -> Tokenizer:
    model = real_model(name)
    model.close()
    return build(model.tokenizer)


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    return tokenizer_of("smollm2")


@pytest.fixture(scope="module")
def gemma3() -> Tokenizer:
    return tokenizer_of("gemma3-270m")


def as_ids(tokenizer: Tokenizer, expected: list[int] | list[str], text: str) -> list[int | str]:
    """What `text` becomes: ids where ids are expected, names where names are."""
    ids = tokenizer.encode(text)
    return [tokenizer.token(index) if isinstance(wanted, str) else index for index, wanted in zip(ids, expected, strict=True)]


@pytest.mark.parametrize("text", SMOLLM2)
def test_smollm2_gives_the_ids_of_its_original(smollm2: Tokenizer, text: str):
    assert as_ids(smollm2, SMOLLM2[text], text) == SMOLLM2[text]


@pytest.mark.parametrize("text", GEMMA3)
def test_gemma3_gives_the_ids_of_its_original(gemma3: Tokenizer, text: str):
    assert as_ids(gemma3, GEMMA3[text], text) == GEMMA3[text]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_a_text_comes_back(model: str, text: str, request: pytest.FixtureRequest):
    tokenizer: Tokenizer = request.getfixturevalue(model)
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False), skip_special_tokens=False) == text


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_a_text_comes_back_token_by_token(model: str, text: str, request: pytest.FixtureRequest):
    tokenizer: Tokenizer = request.getfixturevalue(model)
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=False)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert "".join([detokenizer.feed(index) for index in ids] + [detokenizer.finish()]) == text


def test_smollm2_has_the_template_of_its_model_card(smollm2: Tokenizer):
    template = ChatTemplate(real_model("smollm2").tokenizer, smollm2)
    rendered = template.render([{"role": "user", "content": "Hi"}])
    assert rendered == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_chat_of_smollm2_has_its_turns_as_single_ids(smollm2: Tokenizer):
    ids = encode_chat(smollm2, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert [index for index in ids if index in smollm2.special_ids] == [1, 2, 1]


def test_gemma3_has_no_template():
    assert not real_model("gemma3-270m").tokenizer.templates
