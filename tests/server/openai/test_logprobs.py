"""Shapes of log probabilities where a served model would hardly get."""

import tiny
from tiny import source

from chairlift.core.types import Logprobs
from chairlift.server.openai.logprobs import LEAST, ChatLogprobs, CompletionLogprobs
from chairlift.text.tokenizer import build

TOKENIZER = build(source())
HOPELESS = Logprobs(-1e30, 300, ((ord("a"), -0.1), (ord("b"), -1e30)))


def test_what_has_no_chance_has_the_least_logprob_of_a_chat() -> None:
    told = ChatLogprobs(TOKENIZER, skip_special_tokens=True).take(((ord("x"), HOPELESS),))
    assert told is not None
    assert told["content"][0]["logprob"] == LEAST
    assert [best["logprob"] for best in told["content"][0]["top_logprobs"]] == [-0.1, LEAST]


def test_what_has_no_chance_has_the_least_logprob_of_a_completion() -> None:
    told = CompletionLogprobs(TOKENIZER, skip_special_tokens=True).take(((ord("x"), HOPELESS),))
    assert told is not None
    assert told["token_logprobs"] == [LEAST]
    assert told["top_logprobs"] == [{"a": -0.1, "b": LEAST, "x": LEAST}]


def test_ids_that_only_the_head_has_are_spelt_as_nothing() -> None:
    beyond = ((tiny.WORD + 5, Logprobs(-0.5, 1, ((tiny.WORD + 9, -0.5),))),)
    chat = ChatLogprobs(TOKENIZER, skip_special_tokens=False).take(beyond)
    completion = CompletionLogprobs(TOKENIZER, skip_special_tokens=False).take(beyond)
    assert chat is not None
    assert (chat["content"][0]["token"], chat["content"][0]["bytes"]) == ("", [])
    assert completion is not None
    assert completion["tokens"] == [""]
