"""When a sequence ends by itself."""

import pytest
from virtual import request

from chairlift.core.types import Sequence, Stopping
from chairlift.schedule.stopping import banned, ending

EOS, STOP = 2, 7


def after(tokens: list[int], **stopping: int) -> tuple[str, int | None] | None:
    limits = Stopping(**({"max_tokens": 9} | stopping), eos_ids=frozenset({EOS}), stop_ids=frozenset({STOP}))
    sequence = Sequence(request("a", [5, EOS, STOP], stopping=limits))
    sequence.tokens.extend(tokens)
    return ending(sequence, sequence.tokens[-1], len(sequence.tokens) - 1)


@pytest.mark.parametrize(
    ("tokens", "stopping", "expected"),
    [
        ([4], {}, None),
        ([4, EOS], {}, ("stop", None)),
        ([STOP], {}, ("stop", STOP)),
        ([4, 4], {"max_tokens": 2}, ("length", None)),
        ([4, EOS], {"max_tokens": 2}, ("stop", None)),
        ([EOS], {"min_tokens": 2}, None),
        ([4, STOP], {"min_tokens": 2}, ("stop", STOP)),
    ],
)
def test_ending(tokens: list[int], stopping: dict[str, int], expected: tuple[str, int | None] | None):
    assert after(tokens, **stopping) == expected


def test_ends_are_banned_until_the_least_number_of_tokens():
    limits = Stopping(9, min_tokens=2, eos_ids=frozenset({EOS}), stop_ids=frozenset({STOP}))
    assert [banned(limits, position) for position in range(3)] == [{EOS, STOP}, {EOS, STOP}, frozenset()]
