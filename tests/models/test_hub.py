"""Repositories of Hugging Face, with a hub made of folders: what is downloaded, what is refused before it is."""

import json
import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from model_files import CONFIG, gguf_metadata, gguf_tensors, hf_folder, tiny_gguf, write_gguf

from chairlift.core.errors import ModelError
from chairlift.models.hub import FIRST_LOOK, choose_gguf, fetch_repository
from chairlift.text.tokenizer import build


class FolderHub:
    """One repository that lies in a folder. Notes what was downloaded, and how much was only looked at."""

    def __init__(self, folder: Path, *, local: bool = False) -> None:
        self.folder = folder
        self.local = local
        self.downloaded: list[str] = []
        self.looked_at: list[int] = []

    def files(self, repo: str) -> Collection[str]:
        return [path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file()]

    def is_local(self, repo: str, file: str) -> bool:
        return self.local

    def beginning(self, repo: str, file: str, count: int) -> bytes:
        self.looked_at.append(count)
        return (self.folder / file).read_bytes()[:count]

    def download(self, repo: str, file: str) -> Path:
        self.downloaded.append(file)
        return self.folder / file


def fetch(repo: str, quant: str | None, hub: FolderHub) -> Path:
    return fetch_repository(repo, quant, hub, check=build)


def test_a_checkpoint_is_a_folder(tmp_path: Path) -> None:
    hub = FolderHub(hf_folder(tmp_path, files={"tokenizer_config.json": {}, "README.md": "hello", "chat_template.jinja": "x"}))
    assert fetch("org/name", None, hub) == tmp_path
    assert set(hub.downloaded) == {
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "model.safetensors",
    }


def test_shards_are_downloaded_once_each(tmp_path: Path) -> None:
    hf_folder(tmp_path, files={"model.safetensors.index.json": {"weight_map": {"a": "x.safetensors", "b": "x.safetensors"}}})
    (tmp_path / "model.safetensors").rename(tmp_path / "x.safetensors")
    hub = FolderHub(tmp_path)
    fetch("org/name", None, hub)
    assert hub.downloaded.count("x.safetensors") == 1
    assert "model.safetensors" not in hub.downloaded


def test_unsupported_checkpoint_is_refused_before_its_weights_are_downloaded(tmp_path: Path) -> None:
    hub = FolderHub(hf_folder(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    with pytest.raises(ModelError, match="org/name: architecture 'mamba' is not supported"):
        fetch("org/name", None, hub)
    assert hub.downloaded == ["config.json"]


def test_a_checkpoint_without_fast_tokenizer_is_refused_early(tmp_path: Path) -> None:
    hub = FolderHub(hf_folder(tmp_path))
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        fetch("org/name", None, hub)
    assert hub.downloaded == ["config.json"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dtype": "F64"}, r"org/name: model\.safetensors: tensor '\S+' is of type F64"),
        ({"files": {"model.safetensors": ""}}, r"org/name: model\.safetensors: not a whole safetensors file"),
        ({"files": {"model.safetensors": "\x02" + "\0" * 7 + "[]"}}, "must be a group of settings"),
        ({"files": {"tokenizer.json": "{}"}}, r"org/name: tokenizer\.json cannot be used"),
        ({"files": {"generation_config.json": {"top_p": 0}}}, "0 is no possible top_p"),
        ({"files": {"config.json": {**CONFIG, "intermediate_size": 96}}}, r"has the shape \(64, 32\)"),
        ({"files": {"config.json": {**CONFIG, "num_hidden_layers": 3}}}, r"missing tensors: model\.layers\.2"),
    ],
)
def test_unusable_checkpoints_are_refused_before_their_weights_are_downloaded(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    hub = FolderHub(hf_folder(tmp_path, **changes))
    with pytest.raises(ModelError, match=said):
        fetch("org/name", None, hub)
    assert "model.safetensors" not in hub.downloaded


def test_a_checkpoint_that_is_there_is_not_looked_at(tmp_path: Path) -> None:
    hub = FolderHub(hf_folder(tmp_path), local=True)
    fetch("org/name", None, hub)
    assert hub.looked_at == []


def test_a_gguf_file_is_looked_at_and_then_downloaded(tmp_path: Path) -> None:
    hub = FolderHub(tmp_path)
    tiny_gguf(tmp_path / "tiny-Q4_0.gguf")
    assert fetch("org/name", "q4_0", hub) == tmp_path / "tiny-Q4_0.gguf"
    assert (hub.looked_at, hub.downloaded) == ([FIRST_LOOK], ["tiny-Q4_0.gguf"])


def test_a_long_header_is_looked_at_again(tmp_path: Path) -> None:
    hub = FolderHub(tmp_path)
    tiny_gguf(tmp_path / "tiny-Q4_0.gguf", changes={"general.description": "x" * (FIRST_LOOK + 1)})
    fetch("org/name", None, hub)
    assert hub.looked_at == [FIRST_LOOK, 4 * FIRST_LOOK]


def test_a_gguf_file_that_is_there_is_not_looked_at(tmp_path: Path) -> None:
    hub = FolderHub(tmp_path, local=True)
    tiny_gguf(tmp_path / "tiny-Q4_0.gguf")
    fetch("org/name", None, hub)
    assert hub.looked_at == []


def test_unsupported_gguf_file_is_refused_before_it_is_downloaded(tmp_path: Path) -> None:
    hub = FolderHub(tmp_path)
    write_gguf(tmp_path / "tiny.gguf", gguf_tensors(), gguf_metadata(), architecture="falcon")
    with pytest.raises(ModelError, match=r"org/name: tiny\.gguf: architecture 'falcon' is not supported"):
        fetch("org/name", None, hub)
    assert hub.downloaded == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokenizer.ggml.pre": "klingon"}, "unknown pre-tokenizer 'klingon'"),
        ({"llama.rope.scaling.type": "yarn"}, "'yarn' is not supported"),
        ({"llama.final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"llama.feed_forward_length": 65}, "has the shape"),
        ({"llama.block_count": 3}, "missing tensors"),
        ({"tokenizer.ggml.merges": ["a zz"]}, "the vocabulary of the tokenizer is broken"),
    ],
)
def test_unusable_gguf_files_are_refused_before_they_are_downloaded(
    changes: dict[str, object], said: str, tmp_path: Path
) -> None:
    hub = FolderHub(tmp_path)
    tiny_gguf(tmp_path / "tiny.gguf", changes=changes)
    with pytest.raises(ModelError, match=rf"^org/name: tiny\.gguf: .*{said}"):
        fetch("org/name", None, hub)
    assert hub.downloaded == []


def test_a_cut_gguf_file_is_refused(tmp_path: Path) -> None:
    hub = FolderHub(tmp_path)
    path = tiny_gguf(tmp_path / "tiny.gguf")
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(ModelError, match="its header is cut"):
        fetch("org/name", None, hub)


@pytest.mark.parametrize(("quant", "said"), [(None, "neither safetensors"), ("Q8_0", "no GGUF files")])
def test_a_repository_without_models_is_refused(quant: str | None, said: str, tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ModelError, match=said):
        fetch("org/name", quant, FolderHub(tmp_path))


@pytest.mark.parametrize(
    ("files", "quant", "chosen"),
    [
        (["m-weird.gguf"], None, "m-weird.gguf"),
        (["m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-f16.gguf"], None, "m-Q4_K_M.gguf"),
        (["m-Q8_0.gguf", "m-Q4_K_M.gguf", "m.f16.gguf"], "F16", "m.f16.gguf"),
        (["m-BF16.gguf", "m-F16.gguf"], "F16", "m-F16.gguf"),
        (["Q4_0/m-Q4_0.gguf", "m-Q8_0.gguf"], "q4_0", "Q4_0/m-Q4_0.gguf"),
    ],
)
def test_which_gguf_file_is_chosen(files: list[str], quant: str | None, chosen: str) -> None:
    assert choose_gguf("org/name", files, quant) == chosen


@pytest.mark.parametrize(
    ("files", "quant", "said"),
    [
        (["m-Q8_0.gguf"], "Q4_0", r"no single GGUF file of Q4_0: choose one with org/name:QUANT, from m-Q8_0\.gguf"),
        (["a.gguf", "b.gguf"], None, "several GGUF files"),
        (["a-00001-of-00002.gguf", "a-00002-of-00002.gguf"], None, "split into several"),
    ],
)
def test_no_choice_is_explained(files: list[str], quant: str | None, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        choose_gguf("org/name", files, quant)


def test_the_real_hub_works_offline_from_its_cache(tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "models--org--name" / "snapshots" / "abc"
    hf_folder(snapshot)
    for folder, name, content in (("refs", "main", "abc"), ("blobs", "none", "")):
        (snapshot.parents[1] / folder).mkdir()
        (snapshot.parents[1] / folder / name).write_text(content)
    script = (
        "from chairlift.core.errors import ModelError\n"
        "from chairlift.models.hub import HuggingFace, fetch_repository\n"
        "print(fetch_repository('org/name', None, HuggingFace(), check=print))\n"
        "try: fetch_repository('org/other', None, HuggingFace(), check=print)\n"
        "except ModelError as error: print(error)\n"
    )
    environ = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [str(snapshot), "org/other is not in the cache, and Hugging Face cannot be reached"]
