"""chairlift: an LLM inference server built around continuous batching."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("chairlift")
except PackageNotFoundError:  # run from its sources, as scripts/gpu-check does
    __version__ = "0+uninstalled"
