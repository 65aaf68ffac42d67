"""Models out of Hugging Face repositories: which files are needed, and that nothing large is downloaded in vain.

The hub itself is a port; `HuggingFace` is the real one, with its cache, token and offline mode.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from chairlift.core.errors import ModelError
from chairlift.core.types import TokenizerSource
from chairlift.models.architectures import from_config
from chairlift.models.folder import INDEX, SINGLE, check_shapes, read_json, read_settings, shard_names
from chairlift.models.gguf import CutHeader, Header, read_header
from chairlift.models.gguf_model import check_header
from chairlift.models.safetensors import LENGTH_BYTES, header_end, header_shapes

SPEC = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+?)(?::(?P<quant>[\w.-]+))?")
"""`org/name` or `org/name:QUANT`."""

PREFERRED = ("Q4_K_M", "Q8_0", "Q4_0", "Q4_1", "Q5_K_M", "Q6_K", "BF16", "F16", "F32")
"""Which GGUF file is taken if the user names none, best first."""

FIRST_LOOK, LAST_LOOK = 1 << 20, 1 << 27
"""Bytes of a remote GGUF file that are read at first, and at most, to see its header."""

_SPLIT = re.compile(r"-\d{5}-of-\d{5}\.gguf$")
_SMALL = ("generation_config.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json")
_UNKNOWN_SIZE = 1 << 62

T = TypeVar("T")

CheckTokenizer = Callable[[TokenizerSource], object]
"""Raises ModelError for a tokenizer that cannot be built. To be had from `text`, which models do not know."""


class Hub(Protocol):
    """Repositories of files. Every method raises ModelError, in one line, if it cannot do its work."""

    def files(self, repo: str) -> Collection[str]:
        """The names of a repository's files."""
        ...

    def is_local(self, repo: str, file: str) -> bool:
        """Whether a file has been downloaded already."""
        ...

    def beginning(self, repo: str, file: str, count: int) -> bytes:
        """The first bytes of a remote file, at most `count`."""
        ...

    def download(self, repo: str, file: str) -> Path:
        """The file on this machine. The files of one repository lie in one folder."""
        ...


def fetch_repository(repo: str, quant: str | None, hub: Hub, *, check: CheckTokenizer) -> Path:
    """A GGUF file, or a folder with a checkpoint. Unsupported models are refused before their weights are downloaded."""
    files = hub.files(repo)
    ggufs = [file for file in files if file.endswith(".gguf") and "mmproj" not in file.lower()]
    if quant is None and "config.json" in files and any(file.endswith(".safetensors") for file in files):
        return _fetch_checkpoint(repo, files, hub, check)
    if ggufs:
        return _fetch_gguf(repo, choose_gguf(repo, ggufs, quant), hub, check)
    if quant is not None:
        raise ModelError(f"{repo} has no GGUF files, so there is no {quant} to choose")
    raise ModelError(f"{repo} has neither safetensors with a config.json nor GGUF files")


def choose_gguf(repo: str, files: Sequence[str], quant: str | None) -> str:
    """The file of the wanted quantisation; without a wish the only one, or the most preferred one."""
    whole = [file for file in sorted(files) if not _SPLIT.search(file)]
    if quant is None and len(whole) == 1:
        return whole[0]
    for wanted in (quant,) if quant is not None else PREFERRED:
        matching = [file for file in whole if re.search(rf"(^|[-._/]){re.escape(wanted)}\.gguf$", file, re.IGNORECASE)]
        if len(matching) == 1:
            return matching[0]
    if not whole:
        raise ModelError(f"{repo} has only GGUF files that are split into several, which is not supported")
    wish = f"has no single GGUF file of {quant}" if quant is not None else "has several GGUF files"
    raise ModelError(f"{repo} {wish}: choose one with {repo}:QUANT, from {', '.join(whole[:12])}")


def _fetch_gguf(repo: str, file: str, hub: Hub, check: CheckTokenizer) -> Path:
    if not hub.is_local(repo, file):
        with _named(f"{repo}: {file}"):
            check(check_header(_gguf_header(repo, file, hub)))
    return hub.download(repo, file)


def _gguf_header(repo: str, file: str, hub: Hub) -> Header:
    """Reads as much of a remote GGUF file as its header takes."""
    count = FIRST_LOOK
    while True:
        data = hub.beginning(repo, file, count)
        try:
            return read_header(data, size=_UNKNOWN_SIZE)
        except CutHeader:
            if len(data) < count or count >= LAST_LOOK:
                raise ModelError(f"its header is cut, or longer than {LAST_LOOK:,} bytes") from None
            count *= 4


def _fetch_checkpoint(repo: str, files: Collection[str], hub: Hub, check: CheckTokenizer) -> Path:
    config = hub.download(repo, "config.json")
    with _named(repo):
        from_config(read_json(config))
    if "tokenizer.json" not in files:
        raise ModelError(f"{repo} has no tokenizer.json")
    small = [file for file in files if file in _SMALL or file.startswith("additional_chat_templates/")]
    for file in [*small, "tokenizer.json"]:
        hub.download(repo, file)
    weights = _weights(repo, files, hub)
    if not all(hub.is_local(repo, file) for file in weights):
        with _named(repo):
            settings = read_settings(config.parent)
            check(settings.tokenizer)
            check_shapes(settings.description, _shapes(repo, weights, hub))
    for file in weights:
        hub.download(repo, file)
    return config.parent


def _shapes(repo: str, files: Sequence[str], hub: Hub) -> Mapping[str, tuple[int, ...]]:
    """The shapes of all tensors in remote safetensors files."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        with _named(file):
            end = header_end(_beginning(repo, file, hub, LENGTH_BYTES))
            shapes |= header_shapes(_beginning(repo, file, hub, end))
    return shapes


def _beginning(repo: str, file: str, hub: Hub, count: int) -> bytes:
    if not hub.is_local(repo, file):
        return hub.beginning(repo, file, count)
    with hub.download(repo, file).open("rb") as local:
        return local.read(count)


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Whatever is wrong is wrong with `what`."""
    try:
        yield
    except ModelError as error:
        raise ModelError(f"{what}: {error}") from None


def _weights(repo: str, files: Collection[str], hub: Hub) -> list[str]:
    if INDEX in files:
        return shard_names(read_json(hub.download(repo, INDEX)))
    if SINGLE in files:
        return [SINGLE]
    raise ModelError(f"{repo} has neither {SINGLE} nor {INDEX}")


@dataclass(frozen=True, slots=True)
class HuggingFace:
    """The real hub, through `huggingface_hub`. That library is imported only when it is used: it takes half a second."""

    def files(self, repo: str) -> Collection[str]:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import (
            HfHubHTTPError,
            HTTPError,  # pyright: ignore[reportPrivateImportUsage]  # whichever HTTP library the hub's version uses
            OfflineModeIsEnabled,
        )

        def listed() -> Collection[str]:
            try:
                return HfApi().list_repo_files(repo)
            except HfHubHTTPError:
                raise
            except (OfflineModeIsEnabled, HTTPError):  # no answer at all, so what was downloaded before has to do
                return _cached_files(repo)

        return _told(repo, listed)

    def is_local(self, repo: str, file: str) -> bool:
        from huggingface_hub import try_to_load_from_cache

        return isinstance(_told(repo, lambda: try_to_load_from_cache(repo, file)), str)

    def beginning(self, repo: str, file: str, count: int) -> bytes:
        from huggingface_hub import HfFileSystem

        def read() -> bytes:
            data = HfFileSystem().cat_file(f"{repo}/{file}", start=0, end=count)
            return data if isinstance(data, bytes) else data.encode()

        return _told(repo, read)

    def download(self, repo: str, file: str) -> Path:
        from huggingface_hub import hf_hub_download

        return Path(_told(repo, lambda: hf_hub_download(repo, file)))


def _cached_files(repo: str) -> Collection[str]:
    """The files of a repository's main revision that are in the hub's cache."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound, LocalEntryNotFoundError

    try:
        revisions = [found for cached in scan_cache_dir().repos if cached.repo_id == repo for found in cached.revisions]
    except CacheNotFound:
        revisions = []
    for revision in revisions:
        if "main" in revision.refs:
            return [file.file_path.relative_to(revision.snapshot_path).as_posix() for file in revision.files]
    raise LocalEntryNotFoundError(repo)


def _told(repo: str, action: Callable[[], T]) -> T:
    """Does something with the hub, and turns its errors into ours."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        HTTPError,  # pyright: ignore[reportPrivateImportUsage]  # whichever HTTP library the hub's version uses
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        return action()
    except GatedRepoError:
        raise ModelError(f"{repo} is gated: accept its conditions on its page, and set HF_TOKEN") from None
    except RepositoryNotFoundError:
        raise ModelError(f"{repo}: there is no such repository on Hugging Face, or it is private") from None
    except LocalEntryNotFoundError:
        raise ModelError(f"{repo} is not in the cache, and Hugging Face cannot be reached") from None
    except (HTTPError, HFValidationError, OSError) as error:
        raise ModelError(f"{repo}: Hugging Face: {(str(error).splitlines() or [type(error).__name__])[0][:300]}") from error
