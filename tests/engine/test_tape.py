"""What a record says, and what cannot be read from it."""

import json
from dataclasses import replace
from typing import Any

import pytest
from engines import config, ride
from hypothesis import given
from hypothesis import strategies as st
from taped import Tape
from virtual import request

from chairlift.core.errors import RecordError
from chairlift.core.events import End, Step, Submit
from chairlift.core.types import Limits, Output, Plan, Request, Snapshot, Stopping
from chairlift.engine.tape import EOS, STOP, Turn, digest, read

QUIET = Step(now=0.0, plan=Plan(0, ()), outputs=(), admitted=(), snapshot=Snapshot(0, 0, 1, 1))


def turns(lines: list[str]) -> list[Turn]:
    return list(read(lines)[1])


def written(*steps: Step, **changes: Any) -> list[str]:
    tape = Tape(config(**changes))
    for step in steps:
        tape.on_step(step)
    return tape.lines


def submitted(*requests: Request, **changes: Any) -> list[Request]:
    """The requests as they are read again."""
    (turn,) = turns(written(replace(QUIET, taken=tuple(map(Submit, requests))), **changes))
    return [command.request for command in turn.taken if isinstance(command, Submit)]


def common_blocks(one: tuple[int, ...], other: tuple[int, ...], size: int) -> int:
    """How many full blocks two prompts begin alike."""
    most = min(len(one), len(other)) // size
    return next((n for n in range(most) if one[: (n + 1) * size] != other[: (n + 1) * size]), most)


PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=20).map(tuple)


@given(first=PROMPTS, second=PROMPTS, size=st.integers(1, 5))
def test_prompts_begin_alike_as_they_did(first: tuple[int, ...], second: tuple[int, ...], size: int):
    one, other = submitted(request("a", first), request("b", second), block_size=size)
    assert (len(one.prompt), len(other.prompt)) == (len(first), len(second))
    assert common_blocks(one.prompt, other.prompt, size) == common_blocks(first, second, size)


@given(prompt=PROMPTS, answer=PROMPTS, cut=st.integers(0, 20), size=st.integers(1, 5))
def test_an_answer_continues_its_prompt(prompt: tuple[int, ...], answer: tuple[int, ...], cut: int, size: int):
    """A prompt that repeats an answer finds its blocks: as if all of it had been the prompt."""
    whole = (*prompt, *answer)
    tape = Tape(config(block_size=size))
    tape.on_step(replace(QUIET, taken=(Submit(request("a", prompt)), Submit(request("b", whole)))))
    for token in answer:
        tape.on_step(replace(QUIET, outputs=(Output("a", (token,)),)))
    first, *later = turns(tape.lines)
    one, other = (command.request.prompt for command in first.taken if isinstance(command, Submit))
    again = (*one, *(turn.drawn.get("a", 0) for turn in later))
    full = len(whole) // size * size
    assert again[:full] == other[:full]


def test_every_choice_continues_the_prompt_on_its_own():
    tape = Tape(config(block_size=2))
    tape.on_step(replace(QUIET, taken=(Submit(request("a", [1], samples=2)),)))
    for outputs in ((Output("a", (5,)), Output("a#1", (6,))), (Output("a", (7,)), Output("a#1", (7,)))):
        tape.on_step(replace(QUIET, outputs=outputs))
    _, first, second = turns(tape.lines)
    assert first.drawn.keys() == second.drawn.keys() == {"a", "a#1"}
    assert len({*first.drawn.values(), *second.drawn.values()}) == 4


def test_a_request_comes_back_with_all_that_decisions_depend_on():
    stopping = Stopping(9, 2, frozenset({7}), frozenset({8}))
    limits = Limits(queue_until=3.5, stall_s=0.1)
    given = request(
        "a", range(5), arrival=0.1 + 0.2, priority=-2, ttft_target_s=1 / 3, stopping=stopping, limits=limits, samples=3
    )
    (found,) = submitted(given)
    assert replace(found, prompt=given.prompt, stopping=stopping, sampling=given.sampling) == given
    assert found.stopping == Stopping(9, 2, frozenset({EOS}), frozenset({STOP}))


def test_tenants_and_salts_stay_apart_and_none_stays_none():
    rights: list[dict[str, Any]] = [{"tenant": "x", "cache_salt": "x"}, {"tenant": "x"}, {"tenant": "y"}]
    one, two, three = submitted(*(request(str(number), [1], **right) for number, right in enumerate(rights)))
    assert one.tenant == two.tenant != three.tenant
    assert (one.cache_salt != "", two.cache_salt) == (True, "")


def test_weights_go_with_their_tenants():
    tape = Tape(replace(config(), tenant_weights=(("heavy", 3.0),)))
    tape.on_step(replace(QUIET, taken=(Submit(request("a", [1], tenant="heavy")),)))
    header, found = read(tape.lines)
    (command,) = next(found).taken
    assert isinstance(command, Submit)
    assert header.config.tenant_weights == ((command.request.tenant, 3.0),)


def test_commands_come_back_in_order_and_in_their_places():
    step = replace(QUIET, taken=(End("x", "stop"), Submit(request("a", [1]))), within=(End("a", "abort"),))
    (turn,) = turns(written(step))
    assert [type(command) for command in turn.taken] == [End, Submit]
    assert turn.within == (End("a", "abort"),)


@given(now=st.floats(0, 1e9), elapsed_s=st.floats(0, 1e3))
def test_times_come_back_to_the_last_bit(now: float, elapsed_s: float):
    (turn,) = turns(written(replace(QUIET, now=now, elapsed_s=elapsed_s)))
    assert (turn.now, turn.elapsed_s) == (now, elapsed_s)


def test_neither_tokens_nor_names_can_be_read():
    secret = request("a", [31337] * 16, tenant="a name", cache_salt="a salt")
    step = replace(QUIET, taken=(Submit(secret),), outputs=(Output("a", (31337,)),))
    text = "".join(written(step))
    assert "31337" not in text
    assert "a name" not in text
    assert "a salt" not in text


def test_another_key_gives_other_marks():
    lines: list[str] = []
    for key in (b"one", b"two"):
        tape = Tape(config(), key=key)
        tape.on_step(replace(QUIET, taken=(Submit(request("a", range(8))),)))
        lines.append(tape.lines[1])
    assert json.loads(lines[0])["marks"] != json.loads(lines[1])["marks"]


def test_equal_tokens_in_other_places_have_other_marks():
    marks = json.loads(written(replace(QUIET, taken=(Submit(request("a", [5] * 16)),)))[1])["marks"]
    assert len({marks[start : start + 8] for start in range(0, len(marks), 8)}) == 8


def test_the_digest_of_a_plan_does_not_look_at_tokens():
    one, other = ride(), ride()
    one.submit(request("a", range(4)))
    other.submit(request("a", range(40, 44)))
    assert digest(one.step().plan) == digest(other.step().plan)


@pytest.mark.parametrize("field", ["start", "blocks", "seq_id", "pad", "tokens", "draws"])
def test_the_digest_of_a_plan_looks_at_everything_else(field: str):
    engine = ride()
    engine.submit(request("a", range(4)))
    plan = engine.step().plan
    (work,) = plan.work
    others: dict[str, Any] = {"start": 1, "blocks": work.blocks[:0], "seq_id": "b", "pad": True, "draws": ()}
    others["tokens"] = work.tokens[:3]
    assert digest(plan._replace(work=(work._replace(**{field: others[field]}),))) != digest(plan)


@pytest.mark.parametrize("field", ["step", "preempted", "closed", "moves", "held"])
def test_the_digest_of_a_plan_looks_at_what_goes_with_its_rows(field: str):
    changed: dict[str, Any] = {"step": 9, "preempted": ("x",), "closed": ("x",), "moves": (1,), "held": ("gate", "x")}
    assert digest(Plan(0, ())._replace(**{field: changed[field]})) != digest(Plan(0, ()))


HEADER = written()[0]
STEP = written(QUIET)[1]
SUBMIT = written(replace(QUIET, taken=(Submit(request("a", range(8))),)))[1]


def changed(line: str, **fields: Any) -> str:
    return json.dumps(json.loads(line) | fields) + "\n"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "the record is empty"),
        (["{}\n"], "this is no record"),
        (["[]\n"], "line 1 is no line of a record"),
        (["what\n"], "line 1 is not JSON"),
        (["[" * 100_000 + "\n"], "line 1 is not JSON"),
        ([changed(HEADER, record=2)], "only format 1 is known"),
        ([changed(HEADER, engine={})], "cannot be built by this version"),
        ([changed(HEADER, engine={"num_blocks": 0, "max_model_len": 9, "tenant_weights": []})], "cannot be built"),
        ([HEADER, "{}\n"], "line 2 is no line of a record"),
        ([HEADER, STEP, changed(STEP, now="soon")], "line 3 is no line of a record"),
        ([HEADER, changed(SUBMIT, marks="00"), STEP], "line 2 is no line of a record"),
        ([HEADER, changed(SUBMIT, marks="f" * 32), STEP], "line 2 is no line of a record"),
        ([HEADER, changed(SUBMIT, tokens=10**12), STEP], "the prompt is too long"),
        ([HEADER, changed(SUBMIT, limits={"stall_s": 0}), STEP], "a stall limit is above 0"),
        ([HEADER, changed(SUBMIT, samples=0), STEP], "0 is no whole number"),
        ([HEADER, changed(SUBMIT, samples=10**9), STEP], "1000000000 is no whole number"),
        ([HEADER, changed(STEP, drawn={"a": 2**40})], "is no mark"),
        ([HEADER, '{"end":"a","finish":"soon"}\n'], "is no finish"),
    ],
)
def test_what_is_no_record_is_refused_in_one_line(lines: list[str], message: str):
    with pytest.raises(RecordError, match=message) as caught:
        turns(lines)
    assert "\n" not in str(caught.value)


def test_a_line_that_was_cut_off_is_passed_over():
    assert len(turns([HEADER, STEP, STEP[:20]])) == 1
