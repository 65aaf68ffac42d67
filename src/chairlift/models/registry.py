"""From what the user typed to a model: a file, a folder, a known name, a repository, or made-up weights."""

from pathlib import Path

from chairlift.core.errors import ModelError
from chairlift.models.description import Model
from chairlift.models.gguf_model import load_gguf


def load(spec: str) -> Model:
    """Opens the model that `spec` names. ModelError says in one line why that is not possible."""
    path = Path(spec)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelError(f"{spec}: there is no such file")
        return load_gguf(path, name=path.stem)
    raise ModelError(f"{spec}: no such model")
