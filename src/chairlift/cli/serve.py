"""`chairlift serve`."""

from chairlift.cli import options


def serve(model: options.Model = "smollm2") -> None:
    """Serve a model through an OpenAI-compatible API."""
    raise NotImplementedError(model)
