"""Every pair of choices on two axes, and every preset, under a seeded crowd: all are answered once, with their own text.

The state machine of `test_scheduling` draws what it likes; here no pair is left to chance.
"""

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from engines import NEXT, config, shadow
from virtual import Ride, request

from chairlift.core.config import KV_LAYOUTS
from chairlift.core.types import Limits, Request, choice_ids
from chairlift.engine.core import EngineCore
from chairlift.schedule.presets import HEADROOMS, ORDERS, PRESETS, SPLITS

AXES: Mapping[str, Sequence[Any]] = {
    "preset": PRESETS,
    "scheduling_policy": tuple(ORDERS),
    "split": tuple(SPLITS),
    "headroom": tuple(HEADROOMS),
    "kv_layout": tuple(KV_LAYOUTS),
    "num_host_blocks": (0, 5, 40),
    "itl_target_s": (None, 2.0),
    "enable_prefix_caching": (True, False),
    "depth": (1, 2),
}
CROWD = 14
MOST = 9


def pairs(row: Mapping[str, Any]) -> set[tuple[str, Any, str, Any]]:
    return {(one, row[one], other, row[other]) for one, other in itertools.combinations(AXES, 2)}


def covering() -> list[dict[str, Any]]:
    """Few rows in which all pairs occur: each is the best of some that begin with a pair that is still missing."""
    chance = random.Random(0)
    missing = {
        (one, first, other, second)
        for one, other in itertools.combinations(AXES, 2)
        for first, second in itertools.product(AXES[one], AXES[other])
    }
    rows: list[dict[str, Any]] = []
    while missing:
        one, first, other, second = min(missing, key=repr)
        tries = [
            {name: chance.choice(values) for name, values in AXES.items()} | {one: first, other: second} for _ in range(40)
        ]
        rows.append(max(tries, key=lambda row: len(pairs(row) & missing)))
        missing -= pairs(rows[-1])
    return rows


ROWS = covering()


def alone(one: Request, choice: int) -> tuple[int, ...]:
    """The text of a choice, computed without any engine."""
    out: list[int] = []
    while len(out) < MOST:
        out.append(NEXT((*one.prompt, *out)) + choice)
    return tuple(out)


def test_all_pairs_are_there():
    seen = set[tuple[str, Any, str, Any]]().union(*map(pairs, ROWS))
    assert len(seen) == sum(len(AXES[one]) * len(AXES[other]) for one, other in itertools.combinations(AXES, 2))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join(str(value) for value in row.values()))
def test_whatever_is_combined_answers_everybody_once_with_his_own_text(row: dict[str, Any]):
    """Short of memory and of places, with classes, tenants, targets, limits of time, several choices, and some who leave."""
    chance = random.Random(repr(row))
    settled = config(**row, num_blocks=14, max_model_len=40, max_num_batched_tokens=12, batch_wait_s=2.0)
    ride = Ride(EngineCore(settled, shadow(settled)))
    asked = {}
    left: set[str] = set()
    for number in range(CROWD):
        one = request(
            str(number),
            [0, 1] * chance.randrange(8) + [chance.randrange(9) for _ in range(chance.randrange(1, 12))],
            MOST,
            arrival=ride.now,
            priority=chance.choice([0, 0, 1, 100]),
            tenant=chance.choice("abc"),
            ttft_target_s=chance.choice([None, 3.0, 30.0]),
            samples=chance.choice([1, 1, 1, 2]),
            limits=Limits(finish_until=ride.now + 40 if chance.random() < 0.2 else None),
        )
        asked |= {choice: (one, index) for index, choice in enumerate(choice_ids(one))}
        ride.submit(one)
        for _ in range(chance.randrange(4)):
            ride.step()
        if chance.random() < 0.2:
            leaver = chance.choice(sorted(asked))
            if not ride.endings[leaver]:
                left.add(leaver)
                ride.end(leaver)
    ride.run()
    assert ride.free_again
    for name, (one, index) in asked.items():
        text = alone(one, index)
        [ending] = ride.endings[name]
        assert ending == ("abort" if name in left else "length")
        written = tuple(ride.tokens[name])
        assert written == text[: len(written)]
        assert written == text or name in left or one.limits.finish_until is not None
