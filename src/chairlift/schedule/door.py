"""Which requests can never run. Asked before anything is queued, so that nothing hopeless ever blocks the others."""

from chairlift.core.config import EngineConfig
from chairlift.core.errors import NeverFits, Refused
from chairlift.core.types import Request


def longest(config: EngineConfig) -> int:
    """The most tokens that one request may have, prompt and answer together.

    The last token of an answer needs no place in the cache, as nothing is computed from it.
    """
    return min(config.max_model_len, config.num_blocks * config.block_size + 1)


def check(request: Request, config: EngineConfig) -> None:
    """Raises NeverFits with the limit that the request exceeds, or Refused for a prompt without tokens."""
    if not request.prompt:
        raise Refused("the prompt is empty: it has no tokens")
    prompt, answer = len(request.prompt), request.stopping.max_tokens
    if prompt + answer > config.max_model_len:
        asked = f"the prompt has {prompt} tokens" + (f" and max_tokens is {answer}" if prompt < config.max_model_len else "")
        hint = "" if prompt != config.max_model_len else ", which leaves no room for an answer"
        raise NeverFits(f"this model's maximum context length is {config.max_model_len} tokens, but {asked}{hint}")
    if prompt + answer > longest(config):
        raise NeverFits(
            f"the request needs {prompt + answer - 1} tokens of KV cache (prompt {prompt}, max_tokens {answer}),"
            f" but the whole pool holds {config.num_blocks * config.block_size}"
        )
