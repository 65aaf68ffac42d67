"""Virtual token counters: what is charged, who is lifted, what is forgotten."""

import pytest
from virtual import request

from chairlift.core.types import Sequence
from chairlift.schedule import shares
from chairlift.schedule.policy import Past
from chairlift.schedule.shares import ANSWER_TOKEN, PROMPT_TOKEN, Ledger


def sequence(tenant: str, number: int = 0) -> Sequence:
    return Sequence(request(f"{tenant}{number}", [1], tenant=tenant), number)


def finished(*sequences: Sequence) -> Past:
    return Past(None, 0.0, sequences)


def test_tokens_are_charged_by_what_they_cost():
    ledger = Ledger()
    ledger.charge("a", prompt=10, answer=3)
    assert ledger.counter("a") == 10 * PROMPT_TOKEN + 3 * ANSWER_TOKEN


def test_a_weight_divides_the_charge():
    ledger = Ledger({"a": 4.0})
    ledger.charge("a", prompt=10)
    assert ledger.counter("a") == 10 * PROMPT_TOKEN / 4


def test_a_newcomer_begins_with_the_least_of_those_who_wait():
    ledger = Ledger()
    ledger.wait(sequence("a"))
    ledger.wait(sequence("b"))
    ledger.charge("a", prompt=50)
    ledger.charge("b", prompt=30)
    ledger.wait(sequence("c"))
    assert ledger.counter("c") == ledger.counter("b") == 30


def test_into_an_empty_queue_one_comes_with_the_counter_of_the_last_who_left_it():
    ledger = Ledger()
    ledger.wait(sequence("a"))
    ledger.charge("a", prompt=50)
    ledger.leave(sequence("a"))
    ledger.wait(sequence("b"))
    assert ledger.counter("b") == ledger.counter("a")


def test_nobody_is_lifted_below_what_he_had():
    ledger = Ledger()
    ledger.charge("a", prompt=100)
    ledger.wait(sequence("b"))
    ledger.wait(sequence("a"))
    assert ledger.counter("a") == 100 * PROMPT_TOKEN


def test_the_second_request_of_a_tenant_lifts_nobody():
    ledger = Ledger()
    ledger.wait(sequence("a", 1))
    ledger.wait(sequence("b"))
    ledger.charge("b", prompt=50)
    ledger.wait(sequence("a", 2))
    assert ledger.counter("a") == 0


def test_a_preempted_request_lifts_nobody():
    ledger = Ledger()
    ledger.wait(sequence("b"))
    ledger.charge("b", prompt=50)
    back = sequence("a")
    back.started = True
    ledger.wait(back)
    assert ledger.counter("a") == 0


def test_whoever_has_requests_in_flight_keeps_what_he_has_had_less_up_to_the_credit():
    for credit, counter in ((20.0, 80.0), (1000.0, 0.0)):
        ledger = Ledger(credit=credit)
        ledger.wait(sequence("light", 0))
        ledger.leave(sequence("light", 0))
        ledger.wait(sequence("heavy"))
        ledger.charge("heavy", prompt=100)
        ledger.wait(sequence("light", 1))
        assert ledger.counter("light") == counter


def test_an_idle_tenant_has_no_credit():
    ledger = Ledger(credit=1000.0)
    one = sequence("light", 0)
    ledger.wait(one)
    ledger.leave(one)
    ledger.observe(finished(one))
    ledger.wait(sequence("heavy"))
    ledger.charge("heavy", prompt=100)
    ledger.wait(sequence("light", 1))
    assert ledger.counter("light") == 100


@pytest.mark.parametrize(
    ("credit", "meanwhile", "behind"), [(1000, 0, 100), (1000, 30, 70), (1000, 100, 0), (1000, 500, 0), (20, 30, 20)]
)
def test_in_a_pause_a_tenant_loses_of_what_it_was_behind_what_others_are_served(credit: int, meanwhile: int, behind: int):
    """It was 100 behind when its last request ended."""
    ledger = Ledger(credit=credit)
    one = sequence("light", 0)
    ledger.wait(one)
    ledger.leave(one)
    ledger.wait(sequence("heavy"))
    ledger.charge("heavy", prompt=100)
    ledger.observe(finished(one))
    ledger.charge("heavy", prompt=meanwhile)
    ledger.wait(sequence("light", 1))
    assert ledger.counter("heavy") - ledger.counter("light") == behind


def test_of_tenants_served_as_much_the_one_is_first_that_was_served_the_longest_ago():
    ledger = Ledger()
    for tenant in ("a", "b"):
        ledger.wait(sequence(tenant))
    ledger.charge("b", prompt=10)
    ledger.charge("a", prompt=10)
    assert ledger.standing("b") < ledger.standing("a")


def test_a_newcomer_is_behind_those_who_were_served_as_much_before():
    ledger = Ledger()
    ledger.wait(sequence("a"))
    ledger.wait(sequence("b"))
    ledger.charge("b", prompt=10)
    ledger.wait(sequence("c"))
    assert ledger.standing("a") < ledger.standing("c")


def test_only_so_many_idle_tenants_are_remembered():
    ledger = Ledger()
    everybody = [sequence(f"t{number}") for number in range(shares.MAX_TENANTS + 10)]
    for cost, one in enumerate(everybody):
        ledger.wait(one)
        ledger.leave(one)
        ledger.charge(one.request.tenant, prompt=1 + cost)
    ledger.observe(finished(*everybody))
    assert ledger.tenants == shares.MAX_TENANTS
    assert ledger.counter("t0") == 0 < ledger.counter("t10")


def test_tenants_with_requests_in_flight_are_never_forgotten():
    ledger = Ledger()
    everybody = [sequence(f"t{number}") for number in range(shares.MAX_TENANTS + 10)]
    for one in everybody:
        ledger.wait(one)
        ledger.charge(one.request.tenant, prompt=1)
    ledger.observe(finished(everybody[-1]))
    assert ledger.tenants == len(everybody) - 1


def arriving(tenant: str, arrival: float) -> Sequence:
    return Sequence(request(tenant, [1], tenant=tenant, arrival=arrival))


def test_idle_tenants_are_forgotten_after_a_time():
    ledger = Ledger()
    early = arriving("early", 0.0)
    ledger.wait(early)
    ledger.leave(early)
    ledger.charge("early", prompt=50)
    ledger.observe(finished(early))
    ledger.wait(arriving("b", shares.IDLE_S))
    assert ledger.counter("early") == 50
    ledger.wait(arriving("c", shares.IDLE_S + 1))
    assert ledger.counter("early") == 0
    assert ledger.tenants == 2


def test_whoever_comes_back_in_time_is_remembered():
    ledger = Ledger()
    for arrival in (0.0, 0.9 * shares.IDLE_S, 1.8 * shares.IDLE_S):
        one = arriving("a", arrival)
        ledger.wait(one)
        ledger.leave(one)
        ledger.charge("a", prompt=50)
        ledger.observe(finished(one))
    assert ledger.counter("a") == 150


def test_whoever_is_served_for_long_is_not_idle():
    ledger = Ledger()
    one = arriving("a", 0.0)
    ledger.wait(one)
    ledger.leave(one)
    ledger.charge("a", prompt=50)
    ledger.wait(arriving("b", 10 * shares.IDLE_S))
    ledger.observe(finished(one))
    ledger.wait(arriving("c", 10.5 * shares.IDLE_S))
    assert ledger.counter("a") == 50


def crowd(tenant: str, count: int) -> list[Sequence]:
    """Requests that run, each with a prompt of one token, computed, and four tokens of answer to come."""
    return [sequence(tenant, number) for number in range(count)]


@pytest.mark.parametrize(("had_more", "spare"), [(1 + 3 * 4 * 2, 6 - 3), (1 + 3 * 4 * 2 + 1, 6 - 1)])
def test_more_than_the_share_of_places_is_for_who_would_still_have_had_less_with_all_of_it(had_more: int, spare: int):
    """`few` has two places and asks for a third: a prompt of one token, and three answers of four that count twice."""
    ledger = Ledger()
    ledger.charge("many", prompt=had_more)
    assert ledger.surplus(sequence("few", 9), crowd("few", 2) + crowd("many", 6)) == {"many": spare}


def test_where_all_is_computed_again_nobody_has_more_than_the_share_and_a_second_place_only_of_one_with_many():
    ledger = Ledger(reluctant=True)
    ledger.charge("many", prompt=1000)
    assert ledger.surplus(sequence("few", 9), crowd("few", 1) + crowd("many", 6)) == {"many": 6 - 2 * 2}
    assert ledger.surplus(sequence("few", 9), crowd("many", 6)) == {"many": 6 - 1}


def test_nobody_has_places_to_spare_for_who_was_served_more():
    ledger = Ledger()
    ledger.charge("few", prompt=1)
    assert ledger.surplus(sequence("few", 9), crowd("many", 6)) == {}
