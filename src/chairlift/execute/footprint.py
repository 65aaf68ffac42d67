"""What an executor takes of the machine's memory, told before it reads anything. Knows bytes only."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes: of all weights, of the keys and values of one token, and of whatever else a step works in."""

    weight_bytes: int
    token_bytes: int
    work_bytes: int
