"""A match that was just asked for is not looked up again, and never outlives what it rests on."""

from virtual import request

from chairlift.cache.pool import BlockPool
from chairlift.cache.prefix import PrefixIndex
from chairlift.core.types import Sequence
from chairlift.schedule.memory import Paged


def memory() -> Paged:
    return Paged(BlockPool(8), PrefixIndex(2))


def served(known: Paged, tokens: list[int]) -> list[int]:
    """Blocks of a sequence that was computed and has left."""
    sequence = Sequence(request("served", tokens))
    known.seat(sequence, known.match(sequence))
    known.enter(sequence, len(tokens))
    blocks = list(sequence.blocks)
    known.release(sequence)
    return blocks


def test_it_is_found_as_soon_as_it_is_entered() -> None:
    known, waiting = memory(), Sequence(request("waiting", [1, 2, 3]))
    assert known.match(waiting).blocks == []
    blocks = served(known, [1, 2])
    assert known.match(waiting).blocks == blocks


def test_it_is_found_no_more_when_its_blocks_are_taken() -> None:
    known, waiting = memory(), Sequence(request("waiting", [1, 2, 3]))
    served(known, [1, 2])
    assert known.match(waiting).blocks
    served(known, list(range(10, 26)))  # all blocks there are
    assert known.match(waiting).blocks == []


def test_it_is_found_no_more_when_the_index_is_emptied() -> None:
    known, waiting = memory(), Sequence(request("waiting", [1, 2, 3]))
    served(known, [1, 2])
    assert known.match(waiting).blocks
    known.index.clear()
    assert known.match(waiting).blocks == []


def test_one_that_has_grown_is_looked_up_again() -> None:
    known, waiting = memory(), Sequence(request("waiting", [1, 2]))
    blocks = served(known, [1, 2])
    assert known.match(waiting).blocks == []  # the last token is never found
    waiting.tokens.append(3)
    assert known.match(waiting).blocks == blocks
