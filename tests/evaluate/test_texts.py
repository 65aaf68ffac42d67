from pathlib import Path

import pytest
from real_models import real_model

from chairlift.core.errors import ConfigError
from chairlift.evaluate import texts
from chairlift.evaluate.texts import MAX_TEXT_BYTES
from chairlift.text import tokenizer

TOKENS = 8_500


def test_the_text_that_is_shipped_repeats_no_paragraph() -> None:
    paragraphs = [part for part in texts.shipped().split("\n\n") if len(part) > 80]
    assert len(paragraphs) > 100
    assert len(set(paragraphs)) == len(paragraphs)


def test_the_text_that_is_shipped_is_plain_ascii() -> None:
    assert texts.shipped().isascii()


@pytest.mark.model
def test_the_text_that_is_shipped_is_long_enough_for_the_default_model() -> None:
    model = real_model("smollm2")
    count = len(tokenizer.build(model.tokenizer).encode(texts.shipped()))
    model.close()
    assert count >= TOKENS


def test_a_file_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes("naïve\n".encode())
    assert texts.read(path) == "naïve\n"


def test_a_file_that_cannot_be_a_text_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        texts.read(tmp_path / "missing")
    with pytest.raises(ConfigError, match="directory"):
        texts.read(tmp_path)
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    with pytest.raises(ConfigError, match="must be UTF-8"):
        texts.read(tmp_path / "latin")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(MAX_TEXT_BYTES + 1)
    with pytest.raises(ConfigError, match="at most 64 MiB"):
        texts.read(path)
