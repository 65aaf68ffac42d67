"""The real `openai` client against a server on the loopback: it must not know the difference."""

from collections.abc import AsyncIterator

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam
from tiny import GatedExecutor, Server, script, serving

from chairlift.server.settings import Settings

KEY = "a-key"
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving(next_token=script("It is Lisbon."), real=True, settings=Settings(api_keys=(KEY,))) as server:
        yield server


@pytest.fixture
async def client(server: Server) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=str(server.http.base_url.join("v1")), api_key=KEY, max_retries=0) as client:
        yield client


async def test_it_lists_the_models(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["tiny", "alias"]


async def test_it_chats(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="tiny", messages=MESSAGES)
    assert answer.choices[0].message.content == "It is Lisbon."
    assert answer.choices[0].finish_reason == "stop"


async def test_it_streams_a_chat_with_usage(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == "It is Lisbon."
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 14


async def test_it_completes_several_prompts(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="tiny", prompt=["a\n", "b\n"], max_tokens=5)
    assert [choice.text for choice in answer.choices] == ["It is", "It is"]


async def test_it_reads_logprobs_of_a_chat(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=2, logprobs=True, top_logprobs=2, logit_bias={"7": 1}, presence_penalty=1
    )
    told = answer.choices[0].logprobs
    assert told is not None
    assert told.content is not None
    assert [entry.token for entry in told.content] == ["I", "t"]
    assert [best.token for best in told.content[0].top_logprobs] == ["J", "I"]


async def test_it_reads_logprobs_of_a_completion(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="tiny", prompt="a\n", max_tokens=2, logprobs=2)
    told = answer.choices[0].logprobs
    assert told is not None
    assert (told.tokens, told.text_offset) == (["I", "t"], [0, 1])


async def test_it_sends_our_extra_fields(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="tiny", prompt="a\n", extra_body={"stop_token_ids": [ord("L")], "top_k": 3})
    assert answer.choices[0].text == "It is "


async def test_it_raises_for_a_bad_request(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature") as caught:
        await client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=-1)
    assert caught.value.param == "temperature"


async def test_it_raises_for_an_unknown_model(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        await client.chat.completions.create(model="other", messages=MESSAGES)


async def test_it_raises_for_a_wrong_key(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="another").models.list()


async def test_it_raises_for_a_failure_in_midstream() -> None:
    async with serving(executor=GatedExecutor, real=True) as server:
        assert isinstance(server.executor, GatedExecutor)
        server.executor.allow(3)
        async with openai.AsyncOpenAI(base_url=str(server.http.base_url.join("v1")), api_key="x", max_retries=0) as client:
            stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
            await anext(stream)
            server.executor.fail, server.executor.sound = "out of luck", True
            server.executor.open()
            with pytest.raises(openai.APIError, match="out of luck"):
                [chunk async for chunk in stream]
