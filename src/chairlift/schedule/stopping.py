"""When a sequence has ended by itself. Looks at a new token and its place, and at nothing else."""

from chairlift.core.types import Finish, Sequence, Stopping


def ending(sequence: Sequence, token: int, place: int) -> tuple[Finish, int | None] | None:
    """How the token at this place ends the sequence: the finish and, for a stop token, its id as the reason."""
    stopping, generated = sequence.request.stopping, place + 1 - sequence.prompt_len
    if generated >= stopping.min_tokens:
        if token in stopping.eos_ids:
            return "stop", None
        if token in stopping.stop_ids:
            return "stop", token
    return ("length", None) if generated >= stopping.max_tokens else None


def banned(stopping: Stopping, position: int) -> frozenset[int]:
    """Tokens that may not be drawn at this position of the output: those that would end it before `min_tokens`."""
    return stopping.eos_ids | stopping.stop_ids if position < stopping.min_tokens else frozenset()
