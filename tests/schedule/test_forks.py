"""Requests of several choices in virtual time: one prompt, one computation of it, and blocks that part only where texts do."""

import pytest
from engines import NEXT, config, ride
from executors import ShadowExecutor
from virtual import Ride, request

from chairlift.core.errors import NeverFits
from chairlift.core.types import TIMEOUT, Limits, Output, Request, Result, Stopping, choice_id, choice_ids
from chairlift.engine.core import End, EngineCore
from chairlift.schedule import door
from chairlift.schedule.orders import Ranked
from chairlift.schedule.shares import ANSWER_TOKEN, PROMPT_TOKEN, Ledger

SIZE = 4


def text(one: Request, choice: int) -> list[int]:
    """What a choice must say: the shadow executor adds the number of the choice to every token."""
    tokens = list(one.prompt)
    for _ in range(one.stopping.max_tokens):
        tokens.append(NEXT(tuple(tokens)) + choice)
    return tokens[len(one.prompt) :]


def texts(one: Request) -> dict[str, list[int]]:
    return {choice_id(one.id, choice): text(one, choice) for choice in range(one.samples)}


def said(engine: Ride, one: Request) -> dict[str, list[int]]:
    return {name: engine.tokens[name] for name in choice_ids(one)}


def outputs(engine: Ride) -> list[Output]:
    return [output for step in engine.steps for output in step.outputs]


def copies(engine: Ride) -> int:
    return sum(len(step.plan.moves) for step in engine.steps)


def rows(engine: Ride, one: Request) -> list[tuple[str, int]]:
    """Who computed how much of the prompt."""
    return [
        (work.seq_id, len(work.tokens))
        for step in engine.steps
        for work in step.plan.work
        if work.start < len(one.prompt) and work.seq_id in choice_ids(one)
    ]


def ledger(engine: Ride) -> Ledger:
    order = engine.core.scheduler._policy.order
    assert isinstance(order, Ranked)
    assert order._ledger is not None
    return order._ledger


# ── one computation of the prompt ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("preset", ["continuous", "static", "dynamic", "prefill-first"])
def test_choices_say_what_each_would_say_alone(preset: str):
    engine, one = ride(num_blocks=40, preset=preset), request("a", range(10), 12, samples=3)
    engine.submit(one)
    engine.run()
    assert said(engine, one) == texts(one)
    assert [engine.endings[name] for name in choice_ids(one)] == [["length"]] * 3
    assert engine.free_again


def test_the_first_choice_says_what_the_request_says_that_wants_but_one():
    engine = ride()
    one = request("a", range(10), 12)
    engine.submit(one, request("b", range(10), 12, arrival=1.0, samples=3))
    engine.run()
    assert engine.tokens["a"] == engine.tokens["b"] == text(one, 0)


def test_a_prompt_is_computed_once():
    engine, one = ride(num_blocks=60, max_model_len=128, enable_prefix_caching=False), request("a", range(40), 5, samples=4)
    engine.submit(one)
    engine.run()
    assert rows(engine, one) == [("a", 16), ("a", 16), ("a", 8)]


def test_all_choices_get_their_first_token_in_the_same_step():
    engine, one = ride(num_blocks=40), request("a", range(20), 5, samples=3)
    engine.submit(one)
    engine.step()
    assert engine.step().outputs == tuple(Output(name, tuple(tokens[:1])) for name, tokens in texts(one).items())


def test_a_prompt_is_looked_up_and_charged_once():
    engine = ride(num_blocks=40)
    engine.submit(request("warm", range(10), 2))
    engine.run()
    engine.submit(request("a", range(10), 12, arrival=engine.now, tenant="t", samples=3))
    engine.run()
    assert [(told.request.id, told.queried, told.cached) for step in engine.steps for told in step.admitted] == [
        ("warm", 10, 0),
        ("a", 10, 8),
    ]
    assert {output.cached for output in outputs(engine) if output.seq_id.startswith("a")} == {8}
    assert ledger(engine).counter("t") == 2 * PROMPT_TOKEN + 36 * ANSWER_TOKEN


def test_the_ledger_forgets_a_tenant_whose_choices_have_all_ended():
    engine = ride(num_blocks=40)
    engine.submit(request("a", range(10), 3, samples=3, tenant="t"), request("b", range(9), 9, samples=2, tenant="u"))
    engine.step()
    engine.end("b")
    engine.run()
    engine.step()
    assert not ledger(engine)._in_flight


# ── copy on write ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("length", "expected"), [(9, 2), (10, 2), (11, 2), (12, 0)])
def test_all_but_one_copy_the_block_in_which_they_part(length: int, expected: int):
    engine = ride(num_blocks=40)
    engine.submit(request("a", range(length), 12, samples=3))
    engine.run()
    assert copies(engine) == expected


def test_full_blocks_are_shared():
    engine = ride(num_blocks=40)
    engine.submit(request("a", range(14), 4, samples=3))
    for _ in range(2):
        engine.step()
    # Three full blocks of prompt in common, and for each choice the one that the prompt ends in.
    assert engine.core.scheduler.pool.total - engine.core.scheduler.pool.free == 3 + 3


def test_nobody_enters_again_what_was_there_at_the_fork():
    engine = ride(num_blocks=40)
    engine.submit(request("a", range(14), 4, samples=3))
    engine.step()
    assert [(one.indexed, one.place) for one in engine.core.scheduler.running] == [(3, 3)] * 3


def test_a_fork_takes_no_memory_until_somebody_goes_on():
    engine = ride(num_blocks=40)
    engine.submit(request("a", range(14), 4, samples=4))
    engine.step()
    assert engine.core.scheduler.snapshot().running == 4
    assert engine.core.scheduler.pool.total - engine.core.scheduler.pool.free == 4


def test_copies_are_made_before_anybody_writes_where_they_came_from():
    engine = ride(num_blocks=40)
    engine.submit(request("a", range(6), 4, samples=3))
    engine.step()
    plan = engine.step().plan
    [source] = {move.source for move in plan.moves}
    assert [work.blocks[1] == source for work in plan.work] == [False, False, True]
    assert sorted(move.target for move in plan.moves) == sorted(work.blocks[1] for work in plan.work[:2])


def test_nobody_copies_for_those_who_end_with_their_first_token():
    engine = ride(num_blocks=40)
    first = NEXT(tuple(range(10)))
    ends = Stopping(12, eos_ids=frozenset({first, first + 2}))
    engine.submit(request("a", range(10), stopping=ends, samples=3))
    engine.step()
    assert [engine.endings[name] for name in ("a", "a#1", "a#2")] == [["stop"], [], ["stop"]]
    engine.run()
    assert copies(engine) == 0


def test_who_is_left_alone_with_a_shared_block_writes_into_it():
    engine = ride(num_blocks=40)
    engine.submit(request("a", range(10), 8, samples=3))
    engine.step()
    engine.end("a")
    engine.end("a#2")
    engine.run()
    assert (copies(engine), len(engine.tokens["a#1"])) == (0, 8)


def test_a_block_is_found_by_others_only_as_the_choice_left_it_that_filled_it():
    engine, one = ride(num_blocks=40), request("a", range(10), 12, samples=3)
    engine.submit(one)
    engine.run()
    for choice in range(3):
        longer = request(f"next{choice}", (*one.prompt, *text(one, choice)), 2, arrival=engine.now)
        engine.submit(longer)
        engine.run()
        assert engine.tokens[longer.id] == text(longer, 0)
    assert [told.cached for step in engine.steps for told in step.admitted][1:] == [20, 20, 20]


# ── memory and places ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("headroom", ["optimistic", "reserve", "expected"])
@pytest.mark.parametrize("cached", [True, False])
def test_when_memory_is_short_choices_wait_and_say_the_same(headroom: str, cached: bool):
    engine = ride(num_blocks=9, max_model_len=36, headroom=headroom, enable_prefix_caching=cached)
    asked = [request(name, range(10), 20, arrival=float(place), samples=4) for place, name in enumerate("ab")]
    engine.submit(*asked)
    engine.run()
    for one in asked:
        assert said(engine, one) == texts(one)
    assert engine.free_again


def test_a_choice_for_which_there_is_no_memory_waits_with_its_first_token():
    engine = ride(num_blocks=5, max_model_len=20)
    engine.submit(request("a", range(14), 5, samples=4))
    engine.step()
    standings = engine.core.scheduler.standings()
    assert [(one.id, one.state, one.tokens) for one in standings] == [
        ("a", "decode", 1),
        ("a#3", "decode", 1),
        ("a#1", "preempted", 1),
        ("a#2", "preempted", 1),
    ]


@pytest.mark.parametrize(("blocks", "running"), [(12, ["a", "b", "b#1"]), (11, ["a"])])
def test_whoever_reserves_memory_reserves_it_for_all_choices(blocks: int, running: list[str]):
    """Three blocks for one; three full ones in common and three for each choice for the other."""
    engine = ride(num_blocks=blocks, max_model_len=40, headroom="reserve", max_num_batched_tokens=32)
    engine.submit(request("a", range(4), 9), request("b", range(14), 11, arrival=1.0, samples=2))
    engine.step()
    assert [one.id for one in engine.core.scheduler.running] == running


def test_a_request_gets_on_when_there_is_a_place_for_every_choice():
    engine = ride(num_blocks=60, max_num_seqs=4)
    engine.submit(request("0", range(3), 6), request("1", range(3), 9), request("a", range(9), 4, arrival=1.0, samples=3))
    while not engine.work_of("a"):
        assert engine.core.scheduler.snapshot().running <= 2
        engine.step()
    assert engine.endings["0"]
    assert not engine.endings["1"]
    engine.run()


def test_places_of_choices_to_come_are_not_given_to_others():
    engine = ride(num_blocks=60, max_model_len=100, max_num_seqs=4)
    engine.submit(request("a", range(60), 4, samples=4), request("b", range(3), 4, arrival=1.0))
    engine.step()
    assert (engine.core.scheduler.snapshot().running, engine.core.scheduler.snapshot().waiting) == (4, 1)
    engine.run()
    assert engine.work_of("b")[0][0] > engine.work_of("a#3")[-1][0] - 1


def test_more_choices_than_places_are_refused_at_the_door():
    with pytest.raises(NeverFits, match=r"5 answers are wanted at the same time, but at most 4 can run \(max_num_seqs\)"):
        door.check(request("a", range(3), samples=5), config(max_num_seqs=4))


def test_a_group_has_as_many_choices_as_places():
    engine = ride(num_blocks=60, max_num_seqs=4, preset="static")
    asked = [request(str(number), range(number + 3), 5, samples=samples) for number, samples in enumerate((2, 3, 1))]
    engine.submit(*asked)
    engine.step()
    assert engine.core.scheduler.snapshot().running == 2
    engine.run()
    assert all(said(engine, one) == texts(one) for one in asked)


def test_a_group_is_full_when_its_choices_fill_the_places():
    engine = ride(num_blocks=60, max_num_seqs=4, preset="dynamic", batch_wait_s=50.0)
    engine.submit(request("a", range(5), 3, samples=2), request("b", range(6), 3, samples=2))
    engine.step()
    assert engine.core.scheduler.snapshot().running == 4


def test_a_prompt_that_is_computed_for_several_is_padded_once():
    engine = ride(num_blocks=60, max_num_seqs=3, preset="static", max_num_batched_tokens=64)
    engine.submit(request("long", range(12), 3), request("a", range(4), 3, samples=2))
    engine.run()
    padding = [(work.seq_id, len(work.tokens)) for step in engine.steps for work in step.plan.work if work.pad]
    assert padding == [("a", 8)]


def test_a_choice_that_ended_before_it_had_a_row_is_not_padded():
    engine = ride(num_blocks=60, max_num_seqs=3, preset="static")
    engine.submit(request("a", range(20), 5, samples=3))
    engine.step()
    engine.end("a#1")
    engine.run()
    assert not [work for step in engine.steps for work in step.plan.work if work.pad]


def test_padding_stands_for_every_choice_that_has_ended():
    engine = ride(num_blocks=60, max_num_seqs=3, preset="static")
    prompt = tuple(range(10))
    ends = Stopping(6, eos_ids=frozenset({NEXT(prompt), NEXT(prompt) + 2}))
    engine.submit(request("a", prompt, stopping=ends, samples=3))
    engine.run()
    padded = [sorted(work.seq_id for work in step.plan.work if work.pad) for step in engine.steps if step.plan.work]
    assert padded == [[], *[["a", "a#2"]] * (len(engine.tokens["a#1"]) - 1)]


# ── ends before the prompt is computed ────────────────────────────────────────────────────────────────────────────────────


def family(state: str) -> tuple[Ride, Request]:
    """An engine with a request of three choices in this state, which has been stepped."""
    engine = ride(num_blocks=30, max_model_len=80)
    one = request("a", range(100, 140), 10, arrival=1.0, samples=3)
    busy = {"queued": 3, "preempted": 1}.get(state, 0)
    engine.submit(*(request(f"busy{number}", range(number, 12 + number), 30) for number in range(busy)))
    engine.submit(one)
    for _ in range({"queued": 1, "prefill": 2, "decode": 4, "preempted": 3}[state]):
        engine.step()
    if state == "preempted":
        engine.core.scheduler._preempt(next(one for one in engine.core.scheduler.running if one.followers))
    return engine, one


STATES = ["queued", "prefill", "decode", "preempted"]


@pytest.mark.parametrize("state", STATES)
def test_choices_stand_together_until_the_prompt_is_computed(state: str):
    engine, one = family(state)
    standings = [told for told in engine.core.scheduler.standings() if told.id in choice_ids(one)]
    assert [told.id for told in standings] == choice_ids(one)
    assert {told.state for told in standings} == {state}
    assert len({told.position for told in standings}) == 1
    assert [told.blocks > 0 for told in standings] == {
        "queued": [False] * 3,
        "prefill": [True, False, False],
        "decode": [True] * 3,
        "preempted": [False] * 3,
    }[state]


@pytest.mark.parametrize("state", STATES)
def test_places_are_those_of_all_choices_that_run_or_follow_one_that_does(state: str):
    engine, _ = family(state)
    snapshot, standings = engine.core.scheduler.snapshot(), engine.core.scheduler.standings()
    waiting = sum(told.position is not None for told in standings)
    assert (snapshot.running, snapshot.waiting) == (len(standings) - waiting, waiting)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("ended", [("a",), ("a#1",), ("a", "a#1"), ("a#2", "a"), ("a#1", "a#2")])
def test_the_others_go_on_when_some_choices_are_ended(state: str, ended: tuple[str, ...]):
    engine, one = family(state)
    for name in ended:
        engine.end(name)
    engine.run()
    assert all(engine.endings[name] == ["abort"] for name in ended)
    for name, wanted in texts(one).items():
        assert engine.tokens[name] == (wanted if name not in ended else wanted[: len(engine.tokens[name])])
    assert all(len(engine.endings[name]) == 1 for name in choice_ids(one))
    assert engine.free_again


def test_who_has_nobody_left_to_lead_leads_no_more():
    engine, _ = family("prefill")
    scheduler = engine.core.scheduler
    scheduler.end("a#1", "abort")
    assert list(scheduler._leading) == ["a"]
    scheduler.end("a#2", "abort")
    assert not scheduler._leading
    engine.run()
    assert engine.free_again


@pytest.mark.parametrize("state", STATES)
def test_whoever_ends_all_choices_has_freed_everything_in_the_next_step(state: str):
    engine, _ = family(state)
    for told in engine.core.scheduler.standings():
        engine.end(told.id)
    engine.step()
    assert engine.free_again


class Interrupted(ShadowExecutor):
    """Ends choices while a step is being computed."""

    core: EngineCore
    count = 0
    at = -1
    names: tuple[str, ...] = ()

    def collect(self) -> Result:
        self.count += 1
        if self.count == self.at + 1:
            self.core.inbox.extend(End(name, "abort") for name in self.names)
        return super().collect()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("step", [0, 1, 2, 3])
@pytest.mark.parametrize("names", [("a",), ("a#1",), ("a", "a#1"), ("a#2", "a"), ("a", "a#1", "a#2")])
def test_the_others_go_on_when_some_are_ended_in_the_midst_of_a_step(step: int, names: tuple[str, ...], depth: int):
    """The prompt is computed in steps 0 and 1."""
    settings = config(num_blocks=40, depth=depth)
    executor = Interrupted(settings.num_blocks, settings.block_size, NEXT)
    engine, one = Ride(EngineCore(settings, executor)), request("a", range(20), 10, samples=3)
    executor.core, executor.at, executor.names = engine.core, step, names
    engine.submit(one)
    engine.run()
    for name, wanted in texts(one).items():
        assert engine.tokens[name] == (wanted if name not in names else wanted[: max(0, step - 1)])
        assert engine.endings[name] == (["length"] if name not in names else ["abort"])
    assert engine.free_again


def test_whoever_succeeds_a_leader_is_not_admitted_or_charged_again():
    engine, one = family("prefill")
    engine.end("a")
    engine.run()
    assert [told.request.id for step in engine.steps for told in step.admitted] == ["a"]
    # Two chunks were computed and are found again, but for the last of them, which was under way.
    assert sum(count for _, count in rows(engine, one)) < 2 * len(one.prompt)


def test_a_limit_of_time_ends_every_choice():
    engine = ride(max_num_seqs=3, num_blocks=60, max_model_len=100)
    engine.submit(request("busy", range(4), 40))
    engine.submit(request("a", range(4), 40, samples=3, limits=Limits(queue_until=5.0)))
    engine.submit(request("b", range(4), 80, arrival=1.0, samples=2, limits=Limits(finish_until=60.0)))
    engine.run()
    told = {output.seq_id: (output.finish, output.stop_reason) for output in outputs(engine) if output.finish}
    assert [told[name] for name in ("a", "a#1", "a#2", "b", "b#1")] == [("length", TIMEOUT)] * 5
    assert [len(engine.tokens[name]) for name in ("a", "a#1", "a#2")] == [0] * 3
    assert all(engine.tokens[name] for name in ("b", "b#1"))


def test_choices_of_a_prompt_that_began_in_time_are_not_ended_by_the_limit_of_the_queue():
    engine = ride(num_blocks=30, max_model_len=80)
    engine.submit(request("a", range(60), 3, samples=3, limits=Limits(queue_until=1.0)))
    engine.run()
    assert [len(engine.tokens[name]) for name in ("a", "a#1", "a#2")] == [3] * 3


class Failing(ShadowExecutor):
    """Reports one row as failed."""

    def collect(self) -> Result:
        result = super().collect()
        rows = tuple(row for row in result.rows if row.seq_id != "a")
        return result._replace(rows=rows, failed=(("a", "broken"),) * (len(rows) != len(result.rows)))


def test_a_prompt_that_fails_ends_all_choices_with_an_error():
    settings = config(num_blocks=40)
    engine = Ride(EngineCore(settings, Failing(settings.num_blocks, settings.block_size, NEXT)))
    engine.submit(request("a", range(20), 3, samples=3), request("b", range(3), 3))
    engine.run()
    assert [engine.endings[name] for name in ("a", "a#1", "a#2", "b")] == [["error"]] * 3 + [["length"]]
    assert engine.free_again


def test_an_urgent_request_displaces_all_choices_of_another_if_that_makes_room():
    engine = ride(num_blocks=10, max_model_len=40, max_num_seqs=4, max_num_batched_tokens=40)
    engine.submit(request("low", range(24), 16, arrival=0.0, priority=1000, samples=3))
    for _ in range(3):
        engine.step()
    engine.submit(request("urgent", range(50, 80), 10, arrival=3.0))
    step = engine.step()
    assert set(step.plan.preempted) >= {"low", "low#1"}
    engine.run()
    assert engine.endings["urgent"] == ["length"]
    assert engine.free_again


def test_as_many_make_way_for_an_urgent_request_as_it_has_choices():
    engine = ride(num_blocks=40, max_num_seqs=3)
    engine.submit(*(request(f"low{number}", range(number, number + 5), 40, priority=1000) for number in range(3)))
    engine.step()
    engine.submit(request("urgent", range(9), 3, arrival=1.0, samples=2))
    step = engine.step()
    assert (len(step.plan.preempted), [told.request.id for told in step.admitted]) == (2, ["urgent"])


def test_names_of_choices_are_those_of_the_request_and_a_number():
    assert choice_ids(request("a", [1], samples=3)) == ["a", "a#1", "a#2"]
