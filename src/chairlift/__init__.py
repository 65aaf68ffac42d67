"""chairlift: an LLM inference server built around continuous batching."""

from importlib.metadata import version

__version__ = version("chairlift")
