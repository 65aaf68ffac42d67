"""Bodies: strict JSON, within limits, and errors that never quote them."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.server.body import MAX_JSON_DEPTH, parse_object
from chairlift.server.errors import ApiError

NUMBERS = st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | NUMBERS | st.text(max_size=20)
NAMES = st.text(max_size=5)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_what_python_writes_comes_back(value: dict[str, object]) -> None:
    assert parse_object(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "not valid JSON"),
        (b'{"a": ', "not valid JSON"),
        (b'{"a": oops}', "not valid JSON"),
        (b'{"a": 1} x', "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b"true", "must be a JSON object"),
        (b"123", "must be a JSON object"),
        (b'"text"', "must be a JSON object"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": -Infinity}', "-Infinity is not a JSON number"),
        (b'{"a": 1e999}', "out of range"),
        (b'{"a": ' + b"9" * 5000 + b"}", "too long"),
        (b'{"a": "\xff"}', "invalid byte at 7"),
        ('{"a": "ж"}'.encode("cp1251"), "not UTF-8"),
        (b"\xff\xfe{\x00}\x00", "not UTF-8"),
        (b'{"a": "line\nbreak"}', "not valid JSON"),
    ],
)
def test_what_is_no_json_object_is_refused(raw: bytes, said: str) -> None:
    with pytest.raises(ApiError, match=said) as caught:
        parse_object(raw)
    assert caught.value.status == 400


@pytest.mark.parametrize("shape", [b'{"a":%b}', b'{"a":[1,%b]}'])
def test_nesting_has_a_limit(shape: bytes) -> None:
    deepest = MAX_JSON_DEPTH - shape.count(b"[") - 1
    parse_object(shape % (b"[" * deepest + b"]" * deepest))
    with pytest.raises(ApiError, match="nested"):
        parse_object(shape % (b"[" * (deepest + 1) + b"]" * (deepest + 1)))


def test_nesting_far_beyond_the_limit_is_an_answer_and_no_crash() -> None:
    with pytest.raises(ApiError, match="nested"):
        parse_object(b'{"a":' * 100_000 + b"1" + b"}" * 100_000)


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        (rb'{"prompt": "hi \ud83d"}', "prompt"),
        (rb'{"stop": ["a", "\uDE00"]}', "stop.1"),
        (rb'{"messages": [{"content": "\ud83d"}]}', "messages.0.content"),
    ],
)
def test_half_a_surrogate_pair_is_refused_by_field(raw: bytes, field: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_object(raw)
    assert caught.value.param == field


def test_half_a_surrogate_pair_in_a_name_is_refused() -> None:
    with pytest.raises(ApiError, match="field name"):
        parse_object(rb'{"\ud83d": 1}')


def test_a_whole_surrogate_pair_is_a_character() -> None:
    assert parse_object(rb'{"a": "\ud83e\udd8a"}') == {"a": "🦊"}


def test_nul_is_a_character() -> None:
    assert parse_object(rb'{"a": "x\u0000y"}') == {"a": "x\0y"}
