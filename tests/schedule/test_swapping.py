"""Whoever yields is put away in host memory, and gets back what he had: counted in blocks moved and in tokens computed."""

from collections import Counter
from typing import Any

import pytest
from engines import NEXT, ride
from executors import solo
from virtual import Ride, request

from chairlift.cache.pool import BlockPool
from chairlift.cache.prefix import Match, prefix_index
from chairlift.core.types import Move, Sequence
from chairlift.schedule.memory import Paged
from chairlift.schedule.swapping import TOKENS_A_BLOCK, Stored, Swapping

LOW = 1000
"""So low a class that no age makes up for it within a test."""


def crowded(**changes: Any) -> Ride:
    """Three of whom only two fit when they have got longer, and nothing is found in the prefix index."""
    settings = {"num_blocks": 14, "max_model_len": 56, "enable_prefix_caching": False, "num_host_blocks": 40}
    engine = ride(**(settings | changes))
    engine.submit(*(request(str(number), range(number, number + 6), 40, arrival=float(number)) for number in range(3)))
    return engine


def displaced(*, urgent: int = 1, prompt: int = 4, **changes: Any) -> Ride:
    """One who has just been preempted for others that are urgent, as there is a place for one only."""
    engine = ride(**({"scheduling_policy": "priority", "max_num_seqs": 1, "num_host_blocks": 40} | changes))
    engine.submit(request("low", range(9), 20, priority=LOW))
    for _ in range(5):
        engine.step()
    engine.submit(*(request(f"urgent{number}", range(20, 20 + prompt), 4, arrival=engine.now) for number in range(urgent)))
    assert engine.step().plan.preempted == ("low",)
    return engine


def moves(engine: Ride, kind: str) -> list[Move]:
    return [move for step in engine.steps for move in step.plan.moves if move.kind == kind]


def computed(engine: Ride) -> Counter[str]:
    """Tokens by sequence."""
    counted: Counter[str] = Counter()
    for step in engine.steps:
        for work in step.plan.work:
            counted[work.seq_id] += len(work.tokens)
    return counted


# ── what is computed and moved ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("layout", ["paged", "contiguous"])
def test_nothing_is_computed_twice(layout: str):
    engine = displaced(kv_layout=layout, enable_prefix_caching=False)
    engine.run()
    assert computed(engine) == {"low": 9 + 20 - 1, "urgent0": 4 + 4 - 1}


def test_nothing_is_computed_twice_in_a_crowd_either():
    engine = crowded()
    engine.run()
    assert engine.preemptions > 1
    assert computed(engine) == dict.fromkeys("012", 6 + 40 - 1)
    assert len(moves(engine, "store")) >= len(moves(engine, "load")) > 0


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize(("host", "tokens", "stored", "loaded"), [(0, 2688, 0, 0), (64, 1964, 225, 181), (128, 1672, 331, 254)])
def test_a_store_saves_tokens(host: int, tokens: int, stored: int, loaded: int, prefix: bool):
    """The figures of decision 0017."""
    sizes: dict[str, Any] = {"num_blocks": 64, "block_size": 4, "max_num_seqs": 8, "max_model_len": 256}
    engine = ride(**sizes, max_num_batched_tokens=512, num_host_blocks=host, enable_prefix_caching=prefix)
    engine.submit(*(request(str(number), range(20 * number, 20 * number + 10), 200) for number in range(8)))
    engine.run()
    assert engine.preemptions == 18
    assert sum(computed(engine).values()) == tokens
    assert (len(moves(engine, "store")), len(moves(engine, "load"))) == (stored, loaded)


@pytest.mark.parametrize("layout", ["paged", "contiguous"])
def test_texts_are_those_of_undisturbed_requests(layout: str):
    engine = displaced(urgent=3, kv_layout=layout)
    engine.run()
    assert engine.swapped == 1
    assert tuple(engine.tokens["low"]) == solo(tuple(range(9)), NEXT, 20)


def test_what_the_index_still_finds_is_shared_and_not_loaded():
    """13 tokens in blocks of 4: three of them are found again, and only the rest of the fourth is loaded."""
    engine = displaced()
    engine.run()
    assert (len(moves(engine, "store")), len(moves(engine, "load"))) == (4, 1)
    assert computed(engine)["low"] == 9 + 20 - 1


def test_what_was_loaded_is_found_by_others():
    """Memory was taken by another one meanwhile."""
    engine = displaced(num_blocks=8, max_model_len=32, prompt=28)
    engine.run()
    assert len(moves(engine, "load")) == 4
    engine.submit(request("alike", [*range(9), *engine.tokens["low"][:4]], 2, arrival=engine.now))
    assert engine.step().admitted[0].cached == 12


def test_a_host_without_room_changes_no_decision():
    """Three blocks are too few for anybody who yields."""
    without, small = crowded(num_host_blocks=0), crowded(num_host_blocks=1)
    without.run()
    small.run()
    assert [step.plan for step in small.steps] == [step.plan for step in without.steps]


def test_one_for_whom_the_host_has_no_room_is_computed_again_beside_others_who_are_swapped():
    engine = crowded(num_host_blocks=7)
    engine.submit(request("3", range(3, 9), 40, arrival=3.0), request("4", range(4, 10), 40, arrival=4.0))
    engine.run()
    assert engine.swapped > 0
    assert sum(computed(engine).values()) > 5 * (6 + 40 - 1)
    assert {n: tuple(engine.tokens[n]) for n in "01234"} == {
        n: solo(tuple(range(int(n), int(n) + 6)), NEXT, 40) for n in "01234"
    }


def test_whoever_comes_back_needs_only_what_it_misses_of_the_budget():
    """13 of its tokens are stored; with four tokens a step it would take four steps to compute them again."""
    engine = displaced(max_num_batched_tokens=4, enable_prefix_caching=False)
    engine.run()
    since = max(step for step, _ in engine.work_of("urgent0"))
    assert [tokens for step, tokens in engine.work_of("low") if step > since][:2] == [1, 1]


def test_a_prompt_that_was_computed_in_part_goes_on_where_it_was():
    """Its blocks were taken by another one meanwhile."""
    memory = {"num_blocks": 12, "max_model_len": 48, "num_host_blocks": 40, "enable_prefix_caching": False}
    engine = ride(scheduling_policy="priority", max_num_seqs=1, **memory)
    engine.submit(request("low", range(40), 3, priority=LOW))
    engine.step()
    engine.submit(request("urgent", range(50, 94), 2, arrival=engine.now))
    engine.run()
    assert (engine.preemptions, engine.swapped) == (1, 1)
    assert [tokens for _, tokens in engine.work_of("low")] == [16, 16, 8, 1, 1]


def test_one_with_followers_is_swapped_before_they_part():
    engine = ride(
        scheduling_policy="priority", num_host_blocks=40, num_blocks=14, max_model_len=56, enable_prefix_caching=False
    )
    engine.submit(request("low", range(40), 3, priority=LOW, samples=3))
    engine.step()
    engine.submit(request("urgent", range(50, 103), 2, arrival=engine.now))
    engine.run()
    assert engine.swapped == 1
    assert computed(engine)["low"] == 40 + 3 - 1


def test_an_heir_computes_the_prompt_for_itself():
    """What its leader has in the host goes with the leader, and so does what that one has left behind on the device."""
    engine = ride(scheduling_policy="priority", num_host_blocks=40, num_blocks=30, enable_prefix_caching=False)
    engine.submit(request("low", range(40), 3, priority=LOW, samples=3))
    engine.step()
    engine.submit(*(request(f"urgent{number}", range(50, 54), 2, arrival=engine.now) for number in range(2)))
    while not engine.preemptions:
        engine.step()
    assert engine.core.scheduler.snapshot().swapped == 1
    engine.end("low")
    engine.run()
    assert (engine.swapped, computed(engine)["low#1"]) == (0, 40 + 3 - 1)
    assert engine.free_again


# ── when nothing can be moved, or nobody comes back ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("finish", ["abort", "stop"])
def test_whoever_ends_while_he_is_away_has_freed_his_blocks_of_the_host(finish: Any):
    engine = displaced()
    assert engine.core.scheduler.snapshot().swapped == 1
    engine.end("low", finish)
    engine.step()
    snapshot = engine.steps[-1].snapshot
    assert (snapshot.swapped, snapshot.free_host_blocks) == (0, snapshot.total_host_blocks)


# ── the memory itself ─────────────────────────────────────────────────────────────────────────────────────────────────────


def memory(*, host: int = 8, shared: bool = False) -> Swapping:
    """16 blocks of two tokens."""
    return Swapping(Paged(BlockPool(16), prefix_index(2, enabled=shared)), BlockPool(host), block_size=2)


def seated(swapping: Swapping, tokens: int, name: str = "a", computed: int | None = None) -> Sequence:
    sequence = Sequence(request(name, range(tokens)))
    swapping.seat(sequence, swapping.match(sequence))
    sequence.computed = tokens - 1 if computed is None else computed
    swapping.enter(sequence, sequence.computed)
    return sequence


def put_away(swapping: Swapping, sequence: Sequence) -> None:
    swapping.store(sequence)
    swapping.release(sequence)


def test_blocks_of_what_is_computed_are_stored_and_no_others():
    swapping = memory()
    sequence = seated(swapping, 9, computed=5)
    blocks = list(sequence.blocks[:3])
    put_away(swapping, sequence)
    assert [move.source for move in swapping.moves()] == blocks
    assert swapping.stored(sequence) == Stored([0, 1, 2], 5)


def test_one_of_whom_nothing_is_computed_is_not_stored():
    swapping = memory()
    sequence = seated(swapping, 9, computed=0)
    put_away(swapping, sequence)
    assert (swapping.stored(sequence), swapping.moves(), swapping.host.free) == (None, (), 8)


def test_blocks_that_others_hold_are_stored_too():
    swapping = memory(shared=True)
    first, second = seated(swapping, 5), seated(swapping, 5, "b")
    assert first.blocks[:2] == second.blocks[:2]
    put_away(swapping, second)
    assert [move.source for move in swapping.moves()] == list(first.blocks[:2])


def test_a_block_of_the_host_that_is_wanted_again_before_anything_is_moved_gets_the_later_contents():
    swapping = memory(host=1)
    first, second = seated(swapping, 3), seated(swapping, 3, "b")
    block = second.blocks[0]
    put_away(swapping, first)
    swapping.drop(first)
    put_away(swapping, second)
    assert swapping.moves() == (Move("store", block, 0),)


def test_a_block_is_stored_before_it_is_copied_into():
    swapping = memory()
    leader, victim = seated(swapping, 3, computed=3), seated(swapping, 28, "b", computed=3)
    swapping.fork(leader, Sequence(request("a", range(3)), choice=1))
    victims = list(victim.blocks)
    assert swapping.pool.free == 0
    put_away(swapping, victim)
    swapping.grow(leader, 4)
    *stores, copy = swapping.moves()
    assert [(move.kind, move.source) for move in stores] == [("store", block) for block in victims[:2]]
    assert copy.kind == "copy"
    assert copy.target in victims


def test_what_comes_back_before_anything_was_moved_is_stored_first():
    swapping = memory()
    sequence = seated(swapping, 6)
    put_away(swapping, sequence)
    swapping.seat(sequence, Match([], ""))
    assert [move.kind for move in swapping.moves()] == ["store"] * 3 + ["load"] * 3


@pytest.mark.parametrize("found", [0, 1, 2])
def test_the_rest_is_loaded_into_the_blocks_behind_those_that_were_found(found: int):
    swapping = memory(shared=True)
    sequence = seated(swapping, 6)
    put_away(swapping, sequence)
    swapping.moves()
    match = Match(swapping.match(sequence).blocks[:found], "")
    assert swapping.missing(sequence, match) == 1
    swapping.seat(sequence, match)
    assert sequence.computed == 5
    assert swapping.moves() == tuple(Move("load", place, sequence.blocks[place]) for place in range(found, 3))


def test_nothing_is_loaded_if_more_is_found_than_was_stored():
    """Somebody else has computed the same text further."""
    swapping = memory(shared=True)
    sequence = seated(swapping, 9, computed=3)
    put_away(swapping, sequence)
    swapping.release(seated(swapping, 9, "b"))
    swapping.moves()
    match = swapping.match(sequence)
    assert swapping.missing(sequence, match) == 9 - 8
    swapping.seat(sequence, match)
    assert (sequence.computed, swapping.moves(), swapping.host.free) == (8, (), 8)


def test_a_preemption_costs_its_blocks_if_there_is_room_for_them_and_its_tokens_otherwise():
    swapping = memory(host=3)
    short, long = seated(swapping, 6), seated(swapping, 8, "b")
    assert (swapping.recomputation(short), swapping.recomputation(long)) == (3 * TOKENS_A_BLOCK, 7)


def test_after_a_failure_nothing_is_stored_and_nothing_moved():
    swapping = memory()
    sequence = seated(swapping, 6)
    put_away(swapping, sequence)
    swapping.lose()
    assert (swapping.moves(), swapping.away, swapping.host.free) == ((), 0, 8)
    assert swapping.missing(sequence, Match([], "")) == 6
