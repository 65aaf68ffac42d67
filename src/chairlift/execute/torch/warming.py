"""Plans that need every kernel that any request may need, so that all are compiled before there are requests.

Knows what kernels are compiled anew for; launches nothing.
"""

from array import array
from collections.abc import Iterator

from chairlift.core.types import PENDING, Draw, Plan, Sampling, Work

_COUNTS = (1, 4)
"""Draws of a step. What lies behind the numbers of one draw begins at an odd place, and kernels are compiled for either."""


def plans(*, vocab: int, longest: int, max_tokens: int, block_size: int) -> Iterator[Plan]:
    """A prompt and its next token, which is PENDING; each with few draws and with several that ask for everything."""
    prompt = max(1, min(2, max_tokens, longest - 1))
    blocks = array("i", range(-(-(prompt + 1) // block_size)))
    tokens = array("i", [0] * prompt)
    for count in _COUNTS:
        yield _plan(tokens, 0, blocks, _draws(tokens, count, vocab=vocab, min_p=0.0))
        if prompt < longest:
            history = array("i", [*tokens, PENDING])
            yield _plan(history[prompt:], prompt, blocks, _draws(history, count, vocab=vocab, min_p=0.1))


def _plan(tokens: "array[int]", start: int, blocks: "array[int]", draws: tuple[Draw, ...]) -> Plan:
    return Plan(0, (Work("", start, tokens, blocks, draws),))


def _draws(history: "array[int]", count: int, *, vocab: int, min_p: float) -> tuple[Draw, ...]:
    every = array("I", [0xFFFFFFFF] * -(-vocab // 32))
    sampling = Sampling(
        top_k=2,
        top_p=0.9,
        min_p=min_p,
        presence_penalty=0.1,
        frequency_penalty=0.1,
        repetition_penalty=1.1,
        logit_bias=((0, 1.0),),
        logprobs=1,
    )
    return tuple(Draw(choice, sampling, frozenset({0}), history, 1, every) for choice in range(count))
