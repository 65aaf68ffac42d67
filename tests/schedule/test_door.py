"""Which requests are refused at the door, and what the message names."""

from dataclasses import replace

import pytest
from engines import config
from virtual import GREEDY, request

from chairlift.core.errors import NeverFits, Refused
from chairlift.schedule import door


def test_a_request_that_fills_the_context_is_let_in():
    door.check(request("a", range(60), 4), config())


def test_one_token_too_many_names_limit_prompt_and_max_tokens():
    with pytest.raises(
        NeverFits, match="maximum context length is 64 tokens, but the prompt has 60 tokens and max_tokens is 5"
    ):
        door.check(request("a", range(60), 5), config())


def test_a_prompt_that_fills_the_context_leaves_no_room():
    with pytest.raises(NeverFits, match="no room for an answer"):
        door.check(request("a", range(64), 1), config())


def test_a_prompt_longer_than_the_context_is_refused_without_talk_of_max_tokens():
    with pytest.raises(NeverFits, match=r"maximum context length is 64 tokens, but the prompt has 70 tokens$"):
        door.check(request("a", range(70), 1), config())


def test_more_than_the_whole_pool_names_the_pool():
    with pytest.raises(NeverFits, match="the whole pool holds 40"):
        door.check(request("a", range(40), 2), config(num_blocks=10))


def test_an_empty_prompt_is_refused():
    with pytest.raises(Refused, match="the prompt is empty"):
        door.check(request("a", []), config())


def test_the_last_token_needs_no_place_in_the_cache():
    door.check(request("a", range(40), 1), config(num_blocks=10))


@pytest.mark.parametrize(
    "name", ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"]
)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_setting_that_is_no_finite_number_is_refused(name: str, value: float):
    with pytest.raises(Refused, match=name):
        door.check(request("a", [1], sampling=replace(GREEDY, **{name: value})), config())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("repetition_penalty", 0.0),
        ("repetition_penalty", -2.0),
        ("logit_bias", ((3, float("nan")),)),
        ("logprobs", -1),
        ("logprobs", 21),
    ],
)
def test_a_setting_without_a_meaning_is_refused(name: str, value: object):
    with pytest.raises(Refused, match=name):
        door.check(request("a", [1], sampling=replace(GREEDY, **{name: value})), config())
