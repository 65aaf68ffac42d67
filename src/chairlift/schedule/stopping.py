"""When a sequence has ended by itself. Looks at its last token and its length, and at nothing else."""

from chairlift.core.types import Finish, Sequence, Stopping


def ending(sequence: Sequence) -> tuple[Finish, int | None] | None:
    """How the last token ends the sequence: the finish and, for a stop token, its id as the reason."""
    stopping, tokens = sequence.request.stopping, sequence.tokens
    last, generated = tokens[-1], len(tokens) - sequence.prompt_len
    if generated >= stopping.min_tokens:
        if last in stopping.eos_ids:
            return "stop", None
        if last in stopping.stop_ids:
            return "stop", last
    return ("length", None) if generated >= stopping.max_tokens else None


def banned(stopping: Stopping, position: int) -> frozenset[int]:
    """Tokens that may not be drawn at this position of the output: those that would end it before `min_tokens`."""
    return stopping.eos_ids | stopping.stop_ids if position < stopping.min_tokens else frozenset()
