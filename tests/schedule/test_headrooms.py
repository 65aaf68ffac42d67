"""How much memory each headroom leaves free."""

from typing import Any

import pytest
from engines import ride
from virtual import Ride, request

from chairlift.cache.pool import BlockPool
from chairlift.core.types import Finish, Plan, Sequence
from chairlift.schedule.headrooms import MOST_ANSWERS, RAISE, RELAX, Expected, Optimistic, Reserve
from chairlift.schedule.policy import Past
from chairlift.schedule.presets import HEADROOMS

SIZE = 4


def sequence(prompt: int, most: int, *, blocks: int = 0) -> Sequence:
    made = Sequence(request("r", range(prompt), most))
    made.blocks.extend(range(blocks))
    return made


def ended(used: int, most: int = 100, finish: Finish = "stop") -> Sequence:
    made = sequence(4, most)
    made.tokens.extend(range(used))
    made.finish = finish
    return made


def after(*answers: Sequence, starved: int = 0) -> Past:
    return Past(Plan(0, ()), 1.0, answers, starved)


def taught(*answers: Sequence, quantile: float = 0.9) -> Expected:
    headroom = Expected(block_size=SIZE, quantile=quantile)
    headroom.observe(after(*answers))
    return headroom


def test_optimism_leaves_a_block_for_every_choice():
    newcomer, other = sequence(6, 9), sequence(6, 9, blocks=2)
    newcomer.followers = [sequence(6, 9), sequence(6, 9)]
    assert [Optimistic().admits(newcomer, 2, BlockPool(total), [other]) for total in (4, 5)] == [False, True]


def test_reserve_counts_what_the_newcomer_may_grow_to():
    # 8 tokens and 9 more, the last of which is not stored: 4 blocks.
    reserve = Reserve(block_size=SIZE)
    assert [reserve.admits(sequence(8, 9), 2, BlockPool(total), []) for total in (3, 4)] == [False, True]


def test_reserve_counts_what_those_who_run_may_grow_to():
    running = [sequence(8, 9, blocks=2)]
    reserve = Reserve(block_size=SIZE)
    assert [reserve.admits(sequence(4, 1), 1, BlockPool(total), running) for total in (2, 3)] == [False, True]


def test_reserve_counts_the_block_that_a_running_one_has_not_taken_yet():
    running = sequence(8, 9, blocks=2)
    running.tokens.append(1)  # the ninth token needs a third block, and was not served yet
    reserve = Reserve(block_size=SIZE)
    assert [reserve.admits(sequence(4, 1), 1, BlockPool(total), [running]) for total in (2, 3)] == [False, True]


def test_before_any_answer_everything_is_expected():
    assert Expected(block_size=SIZE).part == 1.0


def test_the_expected_part_is_the_quantile_of_what_answers_used():
    assert taught(*(ended(used) for used in range(100)), quantile=0.9).part == 0.9


def test_answers_that_were_broken_off_teach_nothing():
    assert taught(ended(10, finish="abort"), ended(10, finish="error")).part == 1.0


def test_old_answers_are_forgotten():
    assert taught(*[ended(90)] * 50, *[ended(10)] * MOST_ANSWERS).part == pytest.approx(0.1)


def test_a_preemption_raises_what_is_expected():
    headroom = taught(ended(10))
    headroom.observe(after(starved=2))
    assert headroom.part == pytest.approx(0.1 + 2 * RAISE)


def raised(engine: Ride) -> float:
    headroom = engine.core.scheduler._policy.headroom
    assert isinstance(headroom, Expected)
    return headroom._raised


def test_making_way_for_the_urgent_raises_nothing():
    engine = ride(scheduling_policy="priority", headroom="expected", max_num_seqs=1)
    engine.submit(request("low", range(4), 20, priority=1000))
    engine.step()
    engine.submit(request("urgent", range(4), 2, arrival=1.0))
    engine.run()
    assert (engine.preemptions, raised(engine)) == (1, 0.0)


def test_a_choice_for_which_there_is_no_memory_raises_what_is_expected():
    engine = ride(headroom="expected", num_blocks=5, max_model_len=20)
    engine.submit(request("a", range(14), 5, samples=4))
    put_back = engine.step().put_back
    engine.step()
    assert raised(engine) == pytest.approx(min(1.0, RAISE * len(put_back)))
    assert put_back


def test_answers_that_end_take_it_back_little_by_little():
    headroom = taught(ended(10))
    headroom.observe(after(starved=1))
    headroom.observe(after(*[ended(10)] * 3))
    assert headroom.part == pytest.approx(0.1 + RAISE - 3 * RELAX)


def test_whoever_is_alone_is_admitted_whatever_is_expected():
    headroom = Expected(block_size=SIZE)
    assert headroom.admits(sequence(8, 100), 2, BlockPool(2), [])


def test_a_block_is_left_for_each_who_runs():
    headroom = taught(ended(1, 100))
    running = [sequence(8, 100, blocks=2), sequence(8, 100, blocks=2)]
    assert [headroom.admits(sequence(4, 4), 1, BlockPool(total), running) for total in (2, 3)] == [False, True]


def crowded(headroom: str, **changes: Any) -> Ride:
    """A pool for four answers of full length, and places for eight."""
    return ride(next_token=lambda _: 7, headroom=headroom, num_blocks=30, max_num_seqs=8, max_model_len=40, **changes)


def test_reserve_runs_fewer_at_once_and_never_preempts():
    most: dict[str, int] = {}
    preempted: dict[str, int] = {}
    for headroom in HEADROOMS:
        engine = crowded(headroom)
        engine.submit(*(request(str(number), [number, 1, 2, 3], 30, arrival=float(number)) for number in range(12)))
        engine.run()
        most[headroom] = max(step.snapshot.running for step in engine.steps)
        preempted[headroom] = engine.preemptions
    assert most["reserve"] < most["optimistic"]
    assert preempted["reserve"] == 0 < preempted["optimistic"]
    assert preempted["expected"] <= preempted["optimistic"]
