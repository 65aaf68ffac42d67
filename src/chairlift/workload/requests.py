"""Makes requests of a trace's figures. Knows how long prompts and answers were; their texts are nobody's.

Hash ids say what prompts have in common: an id becomes as many equal tokens as it stands for. Without them all prompts are
alike, so whoever runs them must not share prefixes.
"""

from collections.abc import Iterator

from chairlift.core.types import Request, Sampling, Stopping
from chairlift.workload.traces import HASHED_TOKENS, Arrival

FIRST_ID = 2
"""The token of hash id 0. Lower ones are left to answers, so that no answer is a piece of a prompt."""

GREEDY = Sampling(temperature=0.0)


def request(arrival: Arrival, number: int, *, max_tokens: int, eos_ids: frozenset[int] = frozenset()) -> Request:
    """Whoever knows the true length of an answer ends it; `max_tokens` is the most that its client asked for."""
    return Request(
        id=str(number),
        prompt=prompt(arrival),
        stopping=Stopping(max_tokens, eos_ids=eos_ids),
        sampling=GREEDY,
        arrival=arrival.arrival_s,
    )


def prompt(arrival: Arrival) -> tuple[int, ...]:
    if not arrival.hash_ids:
        return (0,) * arrival.prompt_tokens
    return tuple(_tokens(arrival))


def _tokens(arrival: Arrival) -> Iterator[int]:
    left = arrival.prompt_tokens
    for hash_id in arrival.hash_ids:
        yield from (FIRST_ID + hash_id,) * min(HASHED_TOKENS, left)
        left -= HASHED_TOKENS
