"""A model out of a Hugging Face folder: configuration, safetensors, `tokenizer.json`, chat templates. Opens no network."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from chairlift.core.errors import ModelError
from chairlift.core.types import TokenizerSource
from chairlift.models.architectures import from_config, hf_names
from chairlift.models.description import Description, Model
from chairlift.models.fields import MAX_INTEGER, Fields
from chairlift.models.layout import check_layout
from chairlift.models.safetensors import TensorFiles, open_safetensors
from chairlift.models.tokenizer_file import with_embeddings

MAX_TEXT = 1 << 28
"""Bytes of a text file that are read at most; the largest `tokenizer.json` are some 40 MB."""
MAX_SHARDS = 1000

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
SAMPLING: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "temperature": (0, math.inf),
        "top_k": (-1, MAX_INTEGER),
        "top_p": (0, 1),
        "min_p": (0, 1),
        "repetition_penalty": (math.ulp(0.0), math.inf),  # anything above 0
    }
)
"""The recommended settings that are passed on, and between which numbers they may be."""
_COMPUTED = "rotary_emb.inv_freq"
"""Old checkpoints carry rotary frequencies, which anyone can compute."""


@dataclass(frozen=True, slots=True)
class FolderWeights:
    """The tensors of a checkpoint by our names. `offset_norms`: norm weights are stored less 1, as Gemma does."""

    files: TensorFiles
    names: Mapping[str, str]
    offset_norms: bool

    def float32(self, name: str) -> NDArray[np.float32]:
        values = self.files.float32(self.names[name])
        return values + np.float32(1) if self.offset_norms and name.endswith("norm") else values

    def kind(self, name: str) -> str:
        return self.files.tensors[self.names[name]].dtype

    def raw(self, name: str, first: int, end: int) -> NDArray[np.uint8]:
        return self.files.raw(self.names[name], first, end)

    def interleaved(self, name: str) -> bool:  # noqa: ARG002  (checkpoints have the halves apart already)
        return False


@dataclass(frozen=True, slots=True)
class Settings:
    """All that a folder says of a model, but for its tensors."""

    description: Description
    tokenizer: TokenizerSource
    defaults: Mapping[str, float]


def load_folder(folder: Path, *, name: str) -> Model:
    """A model out of a folder. Tensors are not read yet; ModelError, in one line, if the folder cannot be used."""
    settings = read_settings(folder)
    files = open_safetensors(_weight_files(folder))
    try:
        check_shapes(settings.description, {name: stored.shape for name, stored in files.tensors.items()})
    except ModelError as error:
        files.close()
        raise ModelError(f"{folder}: {error}") from None
    names = hf_names(settings.description)
    return Model(
        name=name,
        description=settings.description,
        weights=FolderWeights(files, names, offset_norms=settings.description.sandwich),
        tokenizer=settings.tokenizer,
        defaults=settings.defaults,
        quantization=_dtype(files),
        close=files.close,
    )


def read_settings(folder: Path) -> Settings:
    """What the small files say. ModelError if they are missing, make no sense, or describe something unsupported."""
    config = read_json(folder / "config.json")
    description = from_config(config)
    generation = _optional_json(folder / "generation_config.json")
    return Settings(
        description,
        _tokenizer(folder, config, generation, vocab=description.vocab),
        _defaults(Fields(generation, "generation_config.json")),
    )


def check_shapes(description: Description, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """ModelError unless the tensors of a checkpoint, by their names there, are those of the description."""
    check_layout(description, hf_names(description), shapes, ignored=_ignored(shapes, description))


def read_json(path: Path) -> Mapping[str, object]:
    """A JSON object from a file. ModelError if there is none."""
    return parse_json(_read_text(path), str(path))


def parse_json(text: str, where: str) -> Mapping[str, object]:
    """A JSON object out of a text. ModelError, naming `where`, if it is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise ModelError(f"{where}: not valid JSON") from None
    if not isinstance(value, dict):
        raise ModelError(f"{where}: not a JSON object")
    return value


def _optional_json(path: Path) -> Mapping[str, object]:
    return read_json(path) if path.is_file() else {}


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_TEXT + 1)
    except FileNotFoundError:
        raise ModelError(f"{path.parent}: {path.name} is missing") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_TEXT:
        raise ModelError(f"{path}: longer than {MAX_TEXT:,} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ModelError(f"{path}: not UTF-8") from None


def _weight_files(folder: Path) -> list[Path]:
    if (folder / INDEX).is_file():
        return [folder / name for name in shard_names(read_json(folder / INDEX))]
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
        raise ModelError(f"{folder}: only safetensors are read, and this folder has pickled weights: convert them first")
    raise ModelError(f"{folder}: {SINGLE} is missing")


def shard_names(index: Mapping[str, object]) -> list[str]:
    """The files that an index of shards names, each once. They must lie beside it."""
    weight_map = Fields(index, INDEX).group("weight_map")
    names = sorted({weight_map.text(key) for key in weight_map.values})
    if not 1 <= len(names) <= MAX_SHARDS:
        raise ModelError(f"{INDEX}: names {len(names):,} files, 1 to {MAX_SHARDS:,} are possible")
    for name in names:
        if Path(name).name != name or "\\" in name or not name.endswith(".safetensors"):
            raise ModelError(f"{INDEX}: {name!r:.80} is no safetensors file beside it")
    return names


def _ignored(names: Iterable[str], description: Description) -> list[str]:
    """Tensors that may be there and are not used: a tied head is the embedding matrix, whatever else a file has."""
    return [name for name in names if name.endswith(_COMPUTED) or (description.tied and name == "lm_head.weight")]


def _dtype(files: TensorFiles) -> str:
    counts = Counter[str]()
    for tensor in files.tensors.values():
        counts[tensor.dtype] += tensor.elements
    return counts.most_common(1)[0][0]


def _defaults(settings: Fields) -> Mapping[str, float]:
    defaults = {key: settings.number(key) for key in SAMPLING if settings.has(key)}
    for key, value in defaults.items():
        least, most = SAMPLING[key]
        if not least <= value <= most or (key == "top_k" and not value.is_integer()) or (key == "top_p" and value == 0):
            raise ModelError(f"{settings.where}: {value:g} is no possible {key}")
    if defaults.get("top_k") == -1:  # as vLLM says that all tokens are in
        defaults["top_k"] = 0
    return defaults


def _tokenizer(folder: Path, config: Mapping[str, object], settings: Mapping[str, object], *, vocab: int) -> TokenizerSource:
    text = _read_text(folder / "tokenizer.json")
    file = with_embeddings(text, parse_json(text, str(folder / "tokenizer.json")), vocab=vocab)
    about = Fields(_optional_json(folder / "tokenizer_config.json"), "tokenizer_config.json")
    ends = [
        *_ids(Fields(settings, "generation_config.json"), "eos_token_id"),
        *_ids(Fields(config, "config.json"), "eos_token_id"),
    ]
    named = file.named(about, "eos_token")
    begin = file.named(about, "bos_token")
    return TokenizerSource(
        kind="json",
        json=file.text,
        bos_id=begin if begin is not None else Fields(config, "config.json").integer_or("bos_token_id", None),
        unk_id=file.named(about, "unk_token"),
        pad_id=file.named(about, "pad_token"),
        eos_ids=tuple(dict.fromkeys(ends if named is None else [named, *ends])),  # templates call the first `eos_token`
        add_bos=about.flag_or("add_bos_token", None),
        add_eos=about.flag_or("add_eos_token", None),
        templates=_templates(folder, about),
    )


def _ids(fields: Fields, key: str) -> tuple[int, ...]:
    return fields.integers(key) if fields.has(key) else ()


def _templates(folder: Path, about: Fields) -> Mapping[str, str]:
    """Chat templates by name. A file of its own beats `tokenizer_config.json`, as it does for transformers."""
    templates: dict[str, str] = {}
    value = about.values.get("chat_template")
    if isinstance(value, str):
        templates["default"] = value
    elif isinstance(value, list):
        for entry in value:
            if not isinstance(entry, dict):
                raise ModelError("tokenizer_config.json: chat_template must be a text or a list of named ones")
            named = Fields(entry, "tokenizer_config.json: chat_template")
            templates[named.text("name")] = named.text("template")
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = _read_text(path)
    if (folder / "chat_template.jinja").is_file():
        templates["default"] = _read_text(folder / "chat_template.jinja")
    elif "default" not in templates and (folder / "chat_template.json").is_file():
        templates["default"] = Fields(read_json(folder / "chat_template.json"), "chat_template.json").text("chat_template")
    return templates
