"""When fewer threads compute, and when all of them are tried again."""

from chairlift.execute.cpu.governor import FIRST_HOLD_S, LONGEST_HOLD_S, TAKEN, Governor

STEP_S = 0.01
QUIET, TAKEN_CORE = TAKEN / 3, 0.6


def steps(governor: Governor, count: int, *, waited: float, cores: int = 1) -> list[int]:
    """The threads of so many steps, which wait for as long as `waited` says while there are more of them than `cores`."""
    told: list[int] = []
    for _ in range(count):
        told.append(governor.threads)
        governor.observe(STEP_S, waited if governor.threads > cores else 0.0)
    return told


def test_a_quiet_machine_keeps_all_threads() -> None:
    assert set(steps(Governor(2), 1000, waited=QUIET)) == {2}


def test_one_slow_step_changes_nothing() -> None:
    governor = Governor(2)
    steps(governor, 10, waited=QUIET)
    steps(governor, 1, waited=0.9)
    assert set(steps(governor, 100, waited=QUIET)) == {2}


def test_a_taken_core_costs_a_thread_within_a_few_steps() -> None:
    governor = Governor(2)
    assert steps(governor, 15, waited=TAKEN_CORE)[-1] == 1


def test_two_taken_cores_cost_two() -> None:
    governor = Governor(4)
    steps(governor, 30, waited=TAKEN_CORE, cores=2)
    assert governor.threads == 2


def test_all_are_tried_again_after_a_while() -> None:
    governor = Governor(2)
    steps(governor, 15, waited=TAKEN_CORE)
    assert steps(governor, round(2 * FIRST_HOLD_S / STEP_S) + 5, waited=QUIET)[-1] == 2


def test_tries_in_vain_become_rare() -> None:
    told = steps(Governor(2), 6000, waited=TAKEN_CORE)[-3000:]
    assert told.count(2) / len(told) < 0.03


def test_a_core_that_comes_back_is_used_within_the_longest_hold() -> None:
    governor = Governor(2)
    steps(governor, 6000, waited=TAKEN_CORE)
    told = steps(governor, round(LONGEST_HOLD_S / STEP_S) + 20, waited=QUIET)
    assert told[-1] == 2


def test_one_thread_never_becomes_none() -> None:
    assert set(steps(Governor(1), 100, waited=TAKEN_CORE)) == {1}
