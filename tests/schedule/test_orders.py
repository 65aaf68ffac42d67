"""Orders in virtual time: who gets on first, who yields, and that nobody waits for ever."""

from itertools import pairwise
from typing import Any

import pytest
from engines import NEXT, config, ride
from executors import solo
from virtual import Ride, request

from chairlift.cache.prefix import PrefixIndex
from chairlift.core.types import Displaced, Held, Limits, Sequence
from chairlift.schedule.cached import S_PER_CACHED_TOKEN
from chairlift.schedule.deadlines import LATE_TURN, UNTARGETED_S
from chairlift.schedule.lengths import LENGTH_WEIGHT
from chairlift.schedule.orders import AGING_S, Seniority
from chairlift.schedule.presets import ORDERS

LOW = 1000
"""So low a class that no age makes up for it within a test."""


def first_step(engine: Ride, request_id: str) -> int:
    return engine.work_of(request_id)[0][0]


def starts(engine: Ride) -> list[str]:
    return [admitted.request.id for step in engine.steps for admitted in step.admitted]


def one_by_one(policy: str, **changes: Any) -> Ride:
    return ride(scheduling_policy=policy, max_num_seqs=1, **changes)


@pytest.mark.parametrize("policy", ORDERS)
def test_with_one_class_one_tenant_and_no_wishes_all_are_served_as_they_come(policy: str):
    engine = one_by_one(policy)
    engine.submit(*(request(name, range(5), 3, arrival=float(number)) for number, name in enumerate("cab")))
    engine.run()
    assert starts(engine) == ["c", "a", "b"]


@pytest.mark.parametrize("policy", [name for name in ORDERS if name != "fcfs"])
def test_the_higher_class_gets_on_first(policy: str):
    engine = one_by_one(policy)
    engine.submit(request("low", range(5), priority=1), request("high", range(5), arrival=1.0))
    engine.run()
    assert starts(engine) == ["high", "low"]


def test_without_classes_nobody_cares():
    engine = one_by_one("fcfs")
    engine.submit(request("low", range(5), priority=1), request("high", range(5), arrival=1.0))
    engine.run()
    assert starts(engine) == ["low", "high"]


# ── making way ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def full_of_low_ones(policy: str = "priority") -> Ride:
    engine = ride(scheduling_policy=policy, max_num_seqs=2, num_blocks=60)
    engine.submit(*(request(f"low{number}", range(number, number + 4), 40, priority=LOW) for number in range(2)))
    for _ in range(3):
        engine.step()
    return engine


@pytest.mark.parametrize("policy", [name for name in ORDERS if name != "fcfs"])
def test_an_urgent_request_takes_a_place_in_a_full_batch(policy: str):
    engine = full_of_low_ones(policy)
    engine.submit(request("urgent", range(9, 13), 4, arrival=3.0))
    engine.run()
    assert first_step(engine, "urgent") == 3  # in the one in which another made way
    assert engine.preemptions == 1


def test_all_who_run_may_make_way():
    engine = one_by_one("priority")
    engine.submit(request("low", range(4), 20, priority=LOW))
    engine.step()
    engine.submit(request("urgent", range(9, 13), 4, arrival=1.0))
    step = engine.step()
    assert (step.plan.displaced, step.plan.held) == (Displaced("urgent", ("low",)), Held("no_place", "low"))
    assert [work.seq_id for work in step.plan.work] == ["urgent"]
    engine.run()
    assert starts(engine) == ["low", "urgent"]
    assert engine.free_again


def test_whoever_made_way_comes_back_with_its_own_text():
    engine = full_of_low_ones()
    engine.submit(*(request(f"urgent{number}", range(9, 13), 4, arrival=3.0) for number in range(4)))
    engine.run()
    assert {f"low{n}": tuple(engine.tokens[f"low{n}"]) for n in range(2)} == {
        f"low{n}": solo(tuple(range(n, n + 4)), NEXT, 40) for n in range(2)
    }
    assert engine.free_again


@pytest.mark.parametrize("depth", [1, 2])
def test_without_the_prefix_cache_whoever_made_way_finds_what_nobody_took_and_no_other_does(depth: int):
    engine = ride(scheduling_policy="priority", max_num_seqs=1, num_blocks=60, enable_prefix_caching=False, depth=depth)
    engine.submit(request("low", range(12), 20, priority=LOW))
    for _ in range(4):
        engine.step()
    engine.submit(request("alike", range(12), 4, arrival=engine.now))
    engine.run()
    assert engine.preemptions == 1
    assert [told.cached for step in engine.steps for told in step.admitted] == [0, 0]
    again = sum(tokens for _, tokens in engine.work_of("low")) - (12 + 20 - 1)
    assert 0 <= again < 4  # those in a block that was not full
    assert tuple(engine.tokens["low"]) == solo(tuple(range(12)), NEXT, 20)


def test_an_equal_class_never_displaces_anybody():
    engine = full_of_low_ones()
    engine.submit(request("equal", range(9, 13), 4, arrival=3.0, priority=LOW))
    engine.run()
    assert engine.preemptions == 0


def test_only_as_many_make_way_as_must():
    engine = ride(scheduling_policy="priority", num_blocks=40, max_num_seqs=4)
    engine.submit(*(request(f"low{number}", range(number * 9, number * 9 + 16), 8, priority=LOW) for number in range(4)))
    for _ in range(6):
        engine.step()
    engine.submit(request("urgent", range(40, 48), 4, arrival=6.0))
    step = engine.step()
    assert (len(step.plan.preempted), [admitted.request.id for admitted in step.admitted]) == (1, ["urgent"])


def test_nobody_makes_way_in_vain():
    """The urgent one needs more memory than those below it hold: one of its own class has the rest."""
    engine = ride(scheduling_policy="priority", num_blocks=24, max_num_seqs=3, max_num_batched_tokens=64)
    engine.submit(request("peer", range(40), 20), request("low", range(50, 58), 24, priority=LOW))
    for _ in range(3):
        engine.step()
    engine.submit(request("urgent", range(60, 110), 4, arrival=3.0))
    while not engine.endings["peer"]:
        assert not engine.step().plan.preempted


def test_a_group_runs_to_its_end_whoever_waits():
    engine = ride(scheduling_policy="priority", preset="static", max_num_seqs=2)
    engine.submit(*(request(f"low{number}", range(4), 20, priority=LOW) for number in range(2)))
    engine.step()
    engine.submit(request("urgent", range(4), 4, arrival=1.0))
    engine.run()
    assert engine.preemptions == 0


def test_age_protects_from_being_displaced():
    seniority = Seniority(10.0)
    running = Sequence(request("low", [1], arrival=0.0, priority=1))
    assert seniority.may_evict(Sequence(request("urgent", [1], arrival=9.0)), running)
    assert not seniority.may_evict(Sequence(request("urgent", [1], arrival=11.0)), running)


def test_memory_is_taken_from_the_lower_class():
    engine = ride(scheduling_policy="priority", num_blocks=14, max_model_len=56)
    engine.submit(request("low", range(6), 40, priority=LOW), request("high", range(10, 16), 40, arrival=1.0))
    engine.run()
    preempted = {seq_id for step in engine.steps for seq_id in step.plan.preempted}
    assert preempted == {"low"}


def test_of_like_ones_the_cheaper_of_the_worse_half_yields():
    order = ORDERS["fair"](config(), PrefixIndex(4))
    running = [Sequence(request(str(number), [1], arrival=float(number)), number) for number in range(4)]
    costs = {"0": 1, "1": 1, "2": 10, "3": 20}
    assert order.victim(running, lambda one: costs[one.id]).id == "2"


# ── making way for another tenant's share ─────────────────────────────────────────────────────────────────────────────────


def full_of_one_tenant(places: int = 4, most: int = 40, policy: str = "fair", **changes: Any) -> Ride:
    """All places are taken by `many`, whose requests came in the order of their numbers, and another one of it waits."""
    engine = ride(**{"max_num_seqs": places, "num_blocks": 100, "scheduling_policy": policy} | changes)
    engine.submit(*(request(f"many{n}", [n] * 4, most, arrival=0.01 * n, tenant="many", priority=1) for n in range(places + 1)))
    for _ in range(3):
        engine.step()
    return engine


def displaced(engine: Ride) -> list[str]:
    return [seq_id for step in engine.steps for seq_id in step.plan.preempted]


@pytest.mark.parametrize("policy", ["fair", "deadline", "shortest", "prefix"])
def test_a_tenant_without_a_place_takes_the_latest_of_one_with_several(policy: str):
    engine = full_of_one_tenant(policy=policy)
    engine.submit(request("one", [9] * 4, 4, arrival=3.0, tenant="one", priority=1))
    engine.run()
    # Who was never here before is level with the others for a step; in the next one makes way.
    assert first_step(engine, "one") == 4
    assert displaced(engine) == ["many3"]
    assert tuple(engine.tokens["many3"]) == solo((3,) * 4, NEXT, 40)


def test_a_tenant_that_was_here_before_does_not_wait_at_all():
    engine = full_of_one_tenant()
    for name in ("before", "again"):
        engine.submit(request(name, [9] * 4, 1, arrival=engine.now, tenant="one", priority=1))
        for _ in range(6):
            engine.step()
    assert first_step(engine, "again") == 9


def test_the_only_place_of_a_tenant_is_not_taken():
    engine = full_of_one_tenant(places=1)
    engine.submit(request("one", [9] * 4, 4, arrival=3.0, tenant="one", priority=1))
    engine.run()
    assert not displaced(engine)


def test_places_are_taken_up_to_the_equal_share():
    engine = full_of_one_tenant()
    engine.submit(*(request(f"one{n}", [9 + n] * 4, 40, arrival=3.0, tenant="one", priority=1) for n in range(3)))
    for _ in range(8):
        engine.step()
    assert displaced(engine) == ["many3", "many2"]


def test_where_all_must_be_computed_again_a_second_place_is_taken_only_of_one_with_many_more():
    engine = full_of_one_tenant(kv_layout="contiguous", num_blocks=200)
    engine.submit(*(request(f"one{n}", [9 + n] * 4, 40, arrival=3.0, tenant="one", priority=1) for n in range(3)))
    for _ in range(8):
        engine.step()
    assert displaced(engine) == ["many3"]


def test_weights_say_what_an_equal_share_of_the_places_is():
    engine = full_of_one_tenant(tenant_weights=(("many", 3.0),))
    engine.submit(*(request(f"one{n}", [9 + n] * 4, 40, arrival=3.0, tenant="one", priority=1) for n in range(3)))
    for _ in range(8):
        engine.step()
    assert displaced(engine) == ["many3"]


def test_a_request_of_several_choices_takes_all_its_places_or_none():
    engine = full_of_one_tenant()
    engine.submit(request("three", [9] * 4, 40, arrival=3.0, tenant="one", priority=1, samples=3))
    engine.step()
    engine.submit(request("two", [9] * 4, 4, arrival=4.0, tenant="two", priority=1, samples=2))
    for _ in range(4):
        engine.step()
    assert displaced(engine) == []
    engine.end("three")
    engine.end("three#1")
    engine.end("three#2")
    engine.step()
    assert displaced(engine) == ["many3", "many2"]


def test_whoever_was_displaced_for_a_share_is_spared_until_he_is_twice_as_long():
    engine = full_of_one_tenant(places=2)
    for number in range(8):
        engine.submit(request(f"one{number}", [9] * 4, 1, arrival=engine.now, tenant="one", priority=1))
        for _ in range(4):
            engine.step()
    engine.run()
    lengths = [
        4 + sum(len(output.tokens) for step in engine.steps[:at] for output in step.outputs if output.seq_id == name)
        for name in ("many1",)
        for at, step in enumerate(engine.steps)
        if name in step.plan.preempted
    ]
    assert len(lengths) > 1
    assert all(later >= 2 * earlier for earlier, later in pairwise(lengths))


def test_a_lower_class_does_not_take_a_higher_ones_places_for_its_share():
    engine = full_of_one_tenant()
    engine.submit(request("one", [9] * 4, 4, arrival=3.0, tenant="one", priority=2))
    engine.run()
    assert not displaced(engine)


def test_a_group_runs_to_its_end_whosever_share_it_is():
    engine = full_of_one_tenant(preset="static")
    engine.submit(request("one", [9] * 4, 4, arrival=3.0, tenant="one", priority=1))
    engine.run()
    assert not displaced(engine)


# ── nobody starves ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_low_class_waits_a_bounded_time_under_permanent_overload():
    """One urgent request a second, each of which takes two: whoever is one class lower is due after `AGING_S` all the same."""
    engine = one_by_one("priority")
    engine.submit(request("low", range(3), 2, priority=1))
    for number in range(4 * int(AGING_S)):
        engine.submit(request(f"u{number}", [number % 9], 2, arrival=float(number)))
        engine.step()
    # It is overtaken by those that came within AGING_S, two steps each, and by nobody else.
    assert first_step(engine, "low") <= 2 * AGING_S + 2


def test_a_long_answer_waits_a_bounded_time_though_short_ones_keep_coming():
    engine = one_by_one("shortest", max_model_len=40)
    engine.submit(request("long", range(3), 36))
    for number in range(100):
        engine.submit(request(f"s{number}", [number % 9], 2, arrival=float(number)))
        engine.step()
    # A token of an answer takes a second here.
    assert first_step(engine, "long") <= 2 * (LENGTH_WEIGHT * 36 + 2)


def test_a_prompt_that_is_not_cached_waits_a_bounded_time_though_cached_ones_keep_coming():
    engine = one_by_one("prefix")
    engine.submit(request("seed", range(40), 2))
    engine.run()
    engine.submit(request("other", range(50, 90), 2, arrival=3.0))
    for number in range(60):
        engine.submit(request(f"c{number}", range(40), 2, arrival=engine.now))
        engine.step()
    # Each of those that came within this time has two steps.
    assert first_step(engine, "other") <= 3 + 2 * (S_PER_CACHED_TOKEN * 40 + 2)


def test_who_is_late_waits_a_bounded_time_though_others_keep_coming():
    engine = one_by_one("deadline")
    engine.submit(request("late", range(3), 2, ttft_target_s=-1.0))
    for number in range(200):
        engine.submit(request(f"d{number}", [number % 9], 2, arrival=float(number), ttft_target_s=5.0))
        engine.step()
    assert first_step(engine, "late") <= 2 * (LATE_TURN + 2)


def test_late_ones_that_end_in_the_queue_take_nobodys_turn():
    engine = one_by_one("deadline")
    engine.submit(request("late", range(3), 2, ttft_target_s=-1.0))
    for number in range(200):
        engine.submit(request(f"d{number}", [number % 9], 2, arrival=float(number), ttft_target_s=5.0))
        if number % 20 == 0:
            limits = Limits(queue_until=number + 15.0)
            engine.submit(request(f"x{number}", [1], 2, arrival=float(number), ttft_target_s=-1.0, limits=limits))
        engine.step()
    assert first_step(engine, "late") <= 2 * (LATE_TURN + 2)


def test_timely_ones_that_end_in_the_queue_do_not_bring_the_turn_of_the_late_nearer():
    engine = one_by_one("deadline")
    engine.submit(request("first", range(3), 4))
    engine.step()
    engine.submit(request("late", range(3), 2, arrival=1.0, ttft_target_s=-1.0))
    engine.submit(*(request(f"gone{n}", range(3), 2, arrival=1.0, ttft_target_s=50.0) for n in range(2 * LATE_TURN)))
    engine.step()
    for number in range(2 * LATE_TURN):
        engine.end(f"gone{number}")
    engine.submit(request("timely", range(3), 2, arrival=2.0, ttft_target_s=50.0))
    engine.run()
    assert starts(engine) == ["first", "timely", "late"]


def test_those_who_are_late_go_on_in_turn():
    """The third one after three times as many others: whoever is late waits for those who were late before him."""
    engine = one_by_one("deadline")
    engine.submit(*(request(f"late{number}", range(3), 2, ttft_target_s=-1.0) for number in range(3)))
    for number in range(400):
        engine.submit(request(f"d{number}", [number % 9], 2, arrival=float(number), ttft_target_s=5.0))
        engine.step()
    assert first_step(engine, "late0") < first_step(engine, "late1") < first_step(engine, "late2")
    assert first_step(engine, "late2") <= 2 * 3 * (LATE_TURN + 2)


def test_who_has_no_target_waits_a_bounded_time_though_hasty_ones_keep_coming():
    engine = one_by_one("deadline")
    engine.submit(request("patient", range(3), 2))
    for number in range(400):
        engine.submit(request(f"d{number}", [number % 9], 2, arrival=float(number), ttft_target_s=4.0))
        engine.step()
    # Either it gets on before its time is over, or it is the first of those who are late.
    assert first_step(engine, "patient") <= UNTARGETED_S + 2 * (LATE_TURN + 2)


def test_a_tenant_that_was_served_much_waits_a_bounded_time_though_others_keep_coming():
    """The others get as much as it had meanwhile, and no more: a request each, as it was alone until they came."""
    engine = one_by_one("fair")
    engine.submit(*(request(f"much{number}", range(3), 2, tenant="much") for number in range(30)))
    for _ in range(20):
        engine.step()
    for number in range(300):
        engine.submit(request(f"o{number}", [number % 9] * 3, 2, arrival=engine.now, tenant=f"tenant{number % 3}"))
        engine.step()
    begun = sorted(step for step in (first_step(engine, f"much{number}") for number in range(30)) if step >= 20)
    assert max(later - earlier for earlier, later in pairwise(begun)) <= 2 * 4


@pytest.mark.parametrize("policy", [name for name in ORDERS if name != "fcfs"])
def test_a_low_class_waits_a_bounded_time_in_every_order(policy: str):
    """Whatever else an order heeds, those that came within `AGING_S` go first, and nobody else."""
    engine = one_by_one(policy)
    engine.submit(request("low", range(3), 2, priority=1))
    for number in range(4 * int(AGING_S)):
        engine.submit(request(f"u{number}", [number % 9] * 3, 2, arrival=float(number), ttft_target_s=5.0))
        engine.step()
    slack = LATE_TURN + 2 if policy == "deadline" else 2
    assert first_step(engine, "low") <= 2 * (AGING_S + slack)


def test_who_runs_is_due_by_his_target_but_never_much_later():
    due = Seniority(AGING_S, UNTARGETED_S)
    targets = (0.5, 2.0, 1e9, None)
    ones = [Sequence(request(str(target), [1], arrival=100.0, ttft_target_s=target)) for target in targets]
    assert [due(one) for one in ones] == [100.5, 102.0, 100 + UNTARGETED_S, 100 + UNTARGETED_S]


# ── the orders within ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_earliest_deadline_goes_first():
    engine = one_by_one("deadline")
    wishes = {"none": None, "patient": 60.0, "hasty": 3.0}
    engine.submit(*(request(name, range(3), 2, ttft_target_s=target) for name, target in wishes.items()))
    engine.run()
    assert starts(engine) == ["hasty", "none", "patient"]


def test_who_cannot_be_in_time_any_more_steps_back():
    engine = one_by_one("deadline")
    engine.submit(request("first", range(3), 8))
    engine.step()
    engine.submit(request("hopeless", range(3), 2, arrival=0.5, ttft_target_s=2.0))
    engine.submit(request("possible", range(3), 2, arrival=0.5, ttft_target_s=20.0))
    engine.run()
    assert starts(engine) == ["first", "possible", "hopeless"]


def test_the_shortest_expected_answer_goes_first():
    engine = one_by_one("shortest")
    engine.submit(request("first", range(3), 2))
    engine.step()
    engine.step()
    engine.submit(request("long", range(3), 30, arrival=1.0), request("short", range(3), 5, arrival=2.0))
    engine.run()
    assert starts(engine) == ["first", "short", "long"]


def test_a_cached_prompt_goes_first():
    engine = one_by_one("prefix", max_model_len=60)
    engine.submit(request("seed", range(40), 2))
    engine.run()
    engine.submit(request("other", range(50, 90), 2, arrival=3.0), request("like", range(44), 2, arrival=3.5))
    engine.run()
    assert starts(engine) == ["seed", "like", "other"]


def test_a_prompt_whose_beginning_is_computed_meanwhile_moves_up():
    engine = one_by_one("prefix", max_model_len=60)
    engine.submit(request("seed", range(40), 8))
    engine.submit(request("other", range(50, 90), 2, arrival=1.0), request("like", range(44), 2, arrival=1.5))
    engine.run()
    assert starts(engine) == ["seed", "like", "other"]
