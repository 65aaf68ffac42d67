"""Schemas: strict types, named fields, neutral values."""

import tracemalloc
from typing import Any

import pytest

from chairlift.server.errors import ApiError
from chairlift.server.openai.schema import UNSUPPORTED, ChatBody, CompletionBody, validate

MESSAGES = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> ChatBody:
    return validate(ChatBody, {"messages": MESSAGES} | fields)


def completion(**fields: Any) -> CompletionBody:
    return validate(CompletionBody, {"prompt": "hi"} | fields)


def refused(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        chat(**fields)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_null_is_neutral_for_every_field_that_is_not_served(name: str) -> None:
    assert chat(**{name: None}) == chat()


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in UNSUPPORTED.items() for value in values])
def test_neutral_values_change_nothing(name: str, value: object) -> None:
    assert chat(**{name: value}) == chat()


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_any_other_value_is_an_error_that_names_the_field(name: str) -> None:
    error = refused(**{name: {"surely": "not neutral"}})
    assert error.param == name
    assert name in error.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", True),
        ("n", 1.0),
        ("n", 0),
        ("n", 100_000),
        ("best_of", 100_000),
        ("length_penalty", 2),
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "xml"}),
        ("tools", [{}]),
        ("tool_choice", "required"),
        ("tool_choice", {}),
    ],
)
def test_close_to_neutral_is_not_neutral(name: str, value: object) -> None:
    assert refused(**{name: value}).param == name


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
def test_logprobs_of_a_chat(fields: dict[str, Any], wanted: int | None) -> None:
    assert chat(**fields).best_logprobs == wanted


@pytest.mark.parametrize("wanted", [None, 0, 5, 20])
def test_logprobs_of_a_completion(wanted: int | None) -> None:
    assert completion(logprobs=wanted).best_logprobs == wanted


@pytest.mark.parametrize("fields", [{}, {"logprobs": False}, {"logprobs": None}])
def test_top_logprobs_need_logprobs(fields: dict[str, Any]) -> None:
    error = refused(top_logprobs=3, **fields)
    assert error.param == "top_logprobs"
    assert "`logprobs`: true" in error.message


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        *(("logprobs", {"logprobs": value}) for value in (-1, 21, 49_152, True, 1.5, "5")),
        ("logprobs", {"logprobs": 0, "echo": True}),
        ("top_logprobs", {"logprobs": 3, "top_logprobs": 3}),
    ],
)
def test_other_logprobs_of_a_completion_are_refused(name: str, fields: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        completion(**fields)
    assert (caught.value.status, caught.value.param) == (400, name)


def test_biases_are_pairs_of_ids_and_numbers() -> None:
    assert chat(logit_bias={"7": 5, "0": -100, "12": 0.5}).logit_bias == ((7, 5.0), (0, -100.0), (12, 0.5))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", value) for value in (-1, "0.5", True, [], float("nan"), float("inf"))),
        *(("top_p", value) for value in (-1, 0, 1.5, True, "1")),
        *(("min_p", value) for value in (-0.1, 1.1, "x")),
        *(("top_k", value) for value in (-2, 1.5, True, "5")),
        *(
            (name, value)
            for name in ("presence_penalty", "frequency_penalty")
            for value in (99, -2.1, True, "1", float("nan"), float("-inf"))
        ),
        *(("repetition_penalty", value) for value in (0, -2, True, "1", float("nan"), float("inf"))),
        *(("logit_bias", value) for value in ([], "x", 1, {"cat": -50}, {"": 1}, {"-1": 1}, {"1.0": 1}, {"07": 1}, {" 7": 1})),
        *(("logit_bias", {"7": value}) for value in ("high", 1000, -100.5, True, None, [1], float("nan"), 10**400)),
        ("logit_bias", {"9" * 3000: 1}),
        ("logit_bias", {str(token): 1 for token in range(2000)}),
        *(("logprobs", value) for value in (1, 0, "true", [])),
        *(("top_logprobs", value) for value in (-1, 21, 49_152, True, 1.5, "5")),
        *(("max_tokens", value) for value in (0, -1, 1.5, True, "5")),
        *(("max_completion_tokens", value) for value in (0, -1, 1.5)),
        *(("min_tokens", value) for value in (-1, 0.5)),
        *(("seed", value) for value in (1.5, True, "1", 2**64, -(2**63) - 1)),
        *(("stop", value) for value in ([None], [1], {"a": 1}, 1, "", [""], ["x"] * 10_000, "x" * 5000)),
        *(("stop_token_ids", value) for value in ([None], ["1"], [1.5], 1, [1] * 1000)),
        *(("stream", value) for value in (1, "true")),
        *(("ignore_eos", value) for value in (1, "yes")),
        *(("cache_salt", value) for value in ("", "a@b", "a/b", "a\\b", "a\0b", "x" * 129, 1)),
        *(("request_id", value) for value in ("", "a b", "a\r\nSet-Cookie: x", "x" * 129, 1)),
        *(("messages", value) for value in ([], None, {}, "hi", [1], [[]], [{}])),
        ("messages", [{"content": "no role"}]),
        ("messages", [{"role": "robot", "content": "x"}]),
        ("messages", [{"role": "user"}]),
        ("messages", [{"role": "user", "content": None}]),
        ("messages", [{"role": "user", "content": 1}]),
        ("messages", [{"role": "user", "content": {"type": "text"}}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url"}]}]),
        ("messages", [{"role": "user", "content": [{"type": "text"}]}]),
        ("messages", [{"role": "user", "content": ["x"]}]),
        ("messages", [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]),
        ("chat_template_kwargs", []),
        ("documents", "x"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_the_field(name: str, value: object) -> None:
    error = refused(**{name: value})
    assert error.param is not None
    assert error.param.split(".")[0] == name


def test_stream_options_need_a_stream() -> None:
    assert "stream_options" in refused(stream_options={"include_usage": True}).message


def test_missing_messages_are_named() -> None:
    with pytest.raises(ApiError, match="`messages` is missing"):
        validate(ChatBody, {})


def test_explicit_nulls_are_absent_fields() -> None:
    names = set(ChatBody.model_fields) - {"messages"}
    assert chat(**dict.fromkeys(names)) == chat()


def test_unknown_fields_are_accepted() -> None:
    assert chat(store=True, metadata={}, service_tier="auto", made_up=1) == chat()


def test_an_integer_is_a_number() -> None:
    assert chat(temperature=1).temperature == 1.0


def test_a_single_stop_string_is_a_list_of_one() -> None:
    assert chat(stop="x").stop == ["x"]


def test_parts_of_text_are_joined_as_they_are() -> None:
    parts = [{"type": "text", "text": "My name is Ada."}, {"type": "text", "text": " What is my name?"}]
    body = chat(messages=[{"role": "user", "content": parts}])
    assert body.messages[0].content == "My name is Ada. What is my name?"


def test_no_parts_are_an_empty_text() -> None:
    assert chat(messages=[{"role": "user", "content": []}]).messages[0].content == ""


def test_arguments_of_a_tool_call_become_an_object() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
    body = chat(messages=[*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [call]}])
    assert body.messages[1].tool_calls is not None
    assert body.messages[1].tool_calls[0].function.arguments == {"a": [1]}


def test_max_completion_tokens_goes_before_max_tokens() -> None:
    assert chat(max_tokens=5, max_completion_tokens=9).longest_answer == 9


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ("", [""]),
        ([[]], [[]]),
    ],
)
def test_prompts_come_in_four_forms(prompt: object, prompts: object) -> None:
    assert completion(prompt=prompt).prompt == prompts


@pytest.mark.parametrize("prompt", [[], None, 1, {}, [1.5], [True], ["a", 1], [[1], "a"], [["a"]], [None]])
def test_other_prompts_are_refused(prompt: object) -> None:
    with pytest.raises(ApiError) as caught:
        completion(prompt=prompt)
    assert caught.value.param == "prompt"


def test_many_problems_make_a_short_answer() -> None:
    error = refused(messages=[{"role": "x" * 100}] * 2000)
    assert len(error.message) < 1000
    assert error.param == "messages.0.role"


@pytest.mark.parametrize(
    "fields",
    [
        {"stop": [0] * 100_000},
        {"stop": ["a"] * 100_000},
        {"stop_token_ids": ["a"] * 100_000},
        {"documents": [1] * 100_000},
        {"documents": [{}] * 100_000},
        {"messages": [{"role": "assistant", "tool_calls": [1] * 100_000}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[" * 1_000_000}}]}]},
    ],
)
def test_a_flood_of_wrong_items_costs_no_more_than_the_first(fields: dict[str, Any]) -> None:
    tracemalloc.start()
    error = refused(**fields)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (peak < 1_000_000, len(error.message) < 1000) == (True, True)
    assert "xxx" not in error.message
