"""Which requests can never run. Asked before anything is queued, so that nothing hopeless ever blocks the others."""

import math

from chairlift.core.config import EngineConfig
from chairlift.core.errors import NeverFits, Refused
from chairlift.core.types import MAX_LOGPROBS, Request, Sampling


def longest(config: EngineConfig) -> int:
    """The most tokens that one request may have, prompt and answer together.

    The last token of an answer needs no place in the cache, as nothing is computed from it.
    """
    return min(config.max_model_len, config.num_blocks * config.block_size + 1)


def check(request: Request, config: EngineConfig) -> None:
    """Raises NeverFits with the limit that the request exceeds, or Refused for no tokens or settings that mean nothing."""
    if not request.prompt:
        raise Refused("the prompt is empty: it has no tokens")
    _check_sampling(request.sampling)
    if request.samples > config.max_num_seqs:
        raise NeverFits(
            f"{request.samples} answers are wanted at the same time, but at most {config.max_num_seqs} can run (max_num_seqs)"
        )
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


def _check_sampling(sampling: Sampling) -> None:
    """Only what would spoil a whole step. Ranges that clients must keep to are the business of those who talk to them."""
    for name in ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"):
        if not math.isfinite(getattr(sampling, name)):
            raise Refused(f"{name} must be a finite number")
    if sampling.repetition_penalty <= 0:
        raise Refused("repetition_penalty must be above 0")
    if not all(math.isfinite(bias) for _, bias in sampling.logit_bias):
        raise Refused("logit_bias must have finite numbers")
    if sampling.logprobs is not None and not 0 <= sampling.logprobs <= MAX_LOGPROBS:
        raise Refused(f"logprobs must be from 0 to {MAX_LOGPROBS}")
