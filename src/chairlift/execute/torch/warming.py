"""Plans that need every kernel that any request may need, so that all are compiled before there are requests.

Knows what kernels are compiled anew for; launches nothing.
"""

from array import array
from collections.abc import Iterator

from chairlift.core.types import PENDING, Draw, Plan, Sampling, Work

_COUNTS = (1, 4)
"""Draws of a step. Triton compiles anew for what begins at a multiple of 16 bytes, as do numbers behind those of 4 draws."""


def plans(*, vocab: int, block_size: int, max_tokens: int) -> Iterator[Plan]:
    """A prompt, and a next token that is PENDING: first with one draw, then with several, each of which asks for everything.

    The prompt has two tokens, if a step may have as many, and the next one takes the place of its last: so they fit wherever a
    request fits. Each plan is launched after the one before has been collected.
    """
    size = min(2, max_tokens)
    blocks = array("i", range(-(-size // block_size)))
    prompt, whole = array("i", [0] * size), array("i", [0] * (size - 1) + [PENDING])
    for count in _COUNTS:
        yield Plan(0, (Work("", 0, prompt, blocks, _draws(prompt, count, vocab=vocab, min_p=0.0)),))
        yield Plan(1, (Work("", size - 1, whole[-1:], blocks, _draws(whole, count, vocab=vocab, min_p=0.1)),))


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
