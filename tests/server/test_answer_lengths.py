"""How long an answer may be: what the client asks for, what the operator allows, and what stands in when nobody says."""

from typing import Any

import pytest
from tiny import Server, serving

from chairlift.core.errors import ConfigError
from chairlift.server.settings import Settings


async def length(server: Server, **fields: Any) -> int:
    """Tokens of a chat whose model never ends by itself."""
    return (await server.chat(**fields)).json()["usage"]["completion_tokens"]


async def test_the_default_is_for_requests_that_say_nothing() -> None:
    async with serving(settings=Settings(default_max_tokens=5)) as server:
        assert await length(server) == 5
        assert await length(server, max_tokens=9) == 9


async def test_the_default_goes_before_that_of_completions() -> None:
    async with serving(settings=Settings(default_max_tokens=40)) as server:
        assert (await server.complete()).json()["usage"]["completion_tokens"] == 40


async def test_a_default_beyond_the_context_is_cut() -> None:
    async with serving(settings=Settings(default_max_tokens=10_000)) as server:
        usage = (await server.chat()).json()["usage"]
        assert usage["total_tokens"] == 256


async def test_a_request_that_says_nothing_gets_no_more_than_the_most() -> None:
    async with serving(settings=Settings(max_output_tokens=7)) as server:
        assert await length(server) == 7
        assert (await server.complete()).json()["usage"]["completion_tokens"] == 7


async def test_the_most_itself_may_be_asked_for() -> None:
    async with serving(settings=Settings(max_output_tokens=7)) as server:
        assert await length(server, max_tokens=7) == 7


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_whoever_asks_for_more_than_the_most_is_told_so(field: str) -> None:
    async with serving(settings=Settings(max_output_tokens=7)) as server:
        answer = await server.chat("hi", **{field: 8})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, field)
        assert "must not be more than 7" in error["message"]


def test_a_default_above_the_most_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match=r"default_max_tokens \(9\) must not be more than max_output_tokens \(8\)"):
        Settings(default_max_tokens=9, max_output_tokens=8)
