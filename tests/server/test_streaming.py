"""Answers, streamed and not: the same text, the right events, the right ending."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import tiny
from sse import endings, events, joined
from tiny import GatedExecutor, Server, script, serving

from chairlift.core.config import EngineConfig
from chairlift.server.settings import Settings

FOX = "🦊"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


async def both(server: Server, path: str, **fields: Any) -> tuple[dict[str, Any], list[Any]]:
    """The same request, not streamed and streamed."""
    start: dict[str, Any] = (
        {"messages": [{"role": "user", "content": "q"}]} if path == CHAT else {"prompt": "q\n", "max_tokens": 50}
    )
    whole = await server.post(path, start | fields)
    streamed = await server.post(path, start | fields | {"stream": True})
    assert (whole.status_code, streamed.status_code) == (200, 200)
    return whole.json(), events(streamed.text)


def text_of(answer: dict[str, Any]) -> str:
    choice = answer["choices"][0]
    return choice["text"] if "text" in choice else choice["message"]["content"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("answer", "fields", "text", "ending", "reason"),
    [
        pytest.param(["It is Lisbon."], {}, "It is Lisbon.", "stop", None, id="ends by itself"),
        pytest.param(["one ", *FOX.encode(), " 鹿 two"], {}, f"one {FOX} 鹿 two", "stop", None, id="characters of many bytes"),
        pytest.param([b"ab\xf0\x9f"], {}, "ab\ufffd", "stop", None, id="a character that stays incomplete"),
        pytest.param(["abcdef"], {"max_tokens": 3}, "abc", "length", None, id="cut by length"),
        pytest.param(["12345", tiny.WORD], {"stop": ["3456"]}, "12", "stop", "3456", id="a stop over tokens"),
        pytest.param([tiny.WORD + 1, tiny.WORD + 2], {"stop": ["Lisb"]}, "It is ", "stop", "Lisb", id="a stop inside a token"),
        pytest.param(
            ["one two three four five six"], {"stop": "four"}, "one two three ", "stop", "four", id="nothing after a stop"
        ),
        pytest.param(["abcd"], {"stop": ["cde"]}, "abcd", "stop", None, id="a stop that does not come"),
        pytest.param(["abXcd"], {"stop_token_ids": [ord("X")]}, "ab", "stop", ord("X"), id="a stop token"),
        pytest.param(
            ["abXcd"],
            {"stop_token_ids": [ord("X")], "include_stop_str_in_output": True},
            "abX",
            "stop",
            ord("X"),
            id="a stop token that is wanted",
        ),
        pytest.param(["ab"], {"ignore_eos": True, "max_tokens": 4}, "ab", "length", None, id="goes on after its end"),
        pytest.param(
            ["ab"],
            {"skip_special_tokens": False, "ignore_eos": True, "max_tokens": 3},
            "ab<|im_end|>",
            "length",
            None,
            id="special",
        ),
        pytest.param(["ab"], {"skip_special_tokens": False}, "ab", "stop", None, id="the end is no text"),
        pytest.param([], {}, "", "stop", None, id="says nothing"),
    ],
)
async def test_both_ways_give_the_same_text_and_ending(
    path: str, answer: list[Any], fields: dict[str, Any], text: str, ending: str, reason: Any
) -> None:
    source = tiny.source(words=("67", "It is", " Lisbon now"))
    async with serving(next_token=script(*answer), source=source) as server:
        whole, chunks = await both(server, path, **fields)
        assert text_of(whole) == text
        assert (whole["choices"][0]["finish_reason"], whole["choices"][0]["stop_reason"]) == (ending, reason)
        assert joined(chunks).get(0, "") == text
        assert endings(chunks) == [(0, ending)]
        assert chunks[-1]["choices"][0]["stop_reason"] == reason
        await server.settled()


async def test_the_stop_string_is_sent_if_it_is_wanted() -> None:
    async with serving(next_token=script("one two")) as server:
        whole, chunks = await both(server, COMPLETIONS, stop="ne t", include_stop_str_in_output=True)
        assert (text_of(whole), joined(chunks)[0]) == ("one t", "one t")


async def test_a_stop_counts_only_after_min_tokens() -> None:
    async with serving(next_token=script("a.b.c")) as server:
        whole, chunks = await both(server, COMPLETIONS, stop=".", min_tokens=2)
        assert (text_of(whole), joined(chunks)[0]) == ("a.b", "a.b")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("fields", "tokens"),
    [({}, 6), ({"max_tokens": 3}, 3), ({"stop": ["cd"]}, 4), ({"stop_token_ids": [ord("c")]}, 3)],
)
async def test_usage_is_the_same_both_ways(path: str, fields: dict[str, Any], tokens: int) -> None:
    # Without the cache, so that the second run does not find the prompt of the first.
    config = EngineConfig(max_model_len=256, num_blocks=64, max_num_seqs=8, enable_prefix_caching=False)
    async with serving(next_token=script("abcde"), config=config) as server:
        whole = await server.post(path, _body(path) | fields)
        options = {"stream": True, "stream_options": {"include_usage": True}}
        chunks = events((await server.post(path, _body(path) | fields | options)).text)
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"] == whole.json()["usage"]
        assert whole.json()["usage"]["completion_tokens"] == tokens
        assert not any("usage" in chunk for chunk in chunks[:-1])


def _body(path: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "q"}]} if path == CHAT else {"prompt": "q\n"}


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_usage_comes_only_if_it_is_asked_for(path: str, options: dict[str, Any] | None) -> None:
    async with serving(next_token=script("abc")) as server:
        chunks = events((await server.post(path, _body(path) | {"stream": True, "stream_options": options})).text)
        assert not any("usage" in chunk for chunk in chunks)
        assert all(chunk["choices"] for chunk in chunks)


async def test_continuous_usage_is_on_every_chunk() -> None:
    async with serving(next_token=script("abc")) as server:
        options = {"include_usage": True, "continuous_usage_stats": True}
        chunks = events((await server.chat(stream=True, stream_options=options)).text)
        assert all("usage" in chunk for chunk in chunks)


async def test_cached_tokens_are_told() -> None:
    async with serving(next_token=script("abc")) as server:
        first = (await server.complete("x" * 39 + "\n")).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        second = (await server.complete("x" * 39 + "\n")).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert (first, second) == (0, 32)


async def test_a_salt_parts_the_cache() -> None:
    async with serving(next_token=script("abc")) as server:
        await server.complete("x" * 39 + "\n", cache_salt="a")
        other = await server.complete("x" * 39 + "\n", cache_salt="b")
        assert other.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_only_the_first_delta_of_a_chat_has_a_role() -> None:
    async with serving(next_token=script("abc")) as server:
        chunks = events((await server.chat(stream=True)).text)
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert not any("role" in choice["delta"] for chunk in chunks[1:] for choice in chunk["choices"])


async def test_all_chunks_of_a_stream_have_one_id_time_and_model() -> None:
    async with serving(next_token=script("abc")) as server:
        chunks = events((await server.chat(stream=True)).text)
        assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1


async def test_headers_of_a_stream() -> None:
    async with serving() as server:
        answer = await server.chat(stream=True, max_tokens=1)
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["x-accel-buffering"] == "no"


@pytest.mark.parametrize("prompt", ["hi\n", [104, 105, 10]])
async def test_a_prompt_is_echoed_once(prompt: Any) -> None:
    async with serving(next_token=script("abc")) as server:
        whole = await server.complete(prompt, echo=True)
        chunks = events((await server.complete(prompt, echo=True, stream=True)).text)
        assert (text_of(whole.json()), joined(chunks)[0]) == ("hi\nabc", "hi\nabc")


async def test_an_echoed_prompt_is_not_searched_for_stops() -> None:
    async with serving(next_token=script("abc")) as server:
        assert text_of((await server.complete("hi\n", echo=True, stop="hi")).json()) == "hi\nabc"


async def test_answers_come_in_the_order_of_their_prompts() -> None:
    prompts = ["x" * 90 + "\n", "y\n", "z" * 30 + "\n"]
    async with serving() as server:
        alone = [text_of((await server.complete(prompt, max_tokens=9)).json()) for prompt in prompts]
        together = (await server.complete(prompts, max_tokens=9)).json()
        chunks = events((await server.complete(prompts, max_tokens=9, stream=True)).text)
        assert [choice["index"] for choice in together["choices"]] == [0, 1, 2]
        assert [choice["text"] for choice in together["choices"]] == alone
        assert joined(chunks) == dict(enumerate(alone))
        assert sorted(endings(chunks)) == [(0, "length"), (1, "length"), (2, "length")]
        assert together["usage"]["prompt_tokens"] == sum(map(len, prompts))
        assert together["usage"]["completion_tokens"] == 27


async def test_many_streams_at_once_get_their_own_text() -> None:
    config = EngineConfig(max_model_len=64, num_blocks=12, block_size=4, max_num_seqs=8, max_num_batched_tokens=16)
    async with serving(config=config) as server:
        prompts = [f"{index}\n" for index in range(24)]
        alone = [text_of((await server.complete(prompt, max_tokens=20)).json()) for prompt in prompts]
        answers = await asyncio.gather(*(server.complete(prompt, max_tokens=20, stream=True) for prompt in prompts))
        assert [joined(events(answer.text))[0] for answer in answers] == alone
        await server.settled()


async def test_two_requests_of_one_name_are_served_independently() -> None:
    async with serving() as server:
        same = {"headers": {"x-request-id": "mine"}}
        answers = await asyncio.gather(*(server.post(CHAT, _body(CHAT) | {"max_tokens": 20}, **same) for _ in range(3)))
        assert [answer.json()["id"] for answer in answers] == ["chatcmpl-mine"] * 3
        assert len({text_of(answer.json()) for answer in answers}) == 1
        await server.settled()


async def test_the_name_in_the_body_goes_before_the_header() -> None:
    async with serving() as server:
        body = _body(COMPLETIONS) | {"request_id": "body", "max_tokens": 1}
        answer = await server.post(COMPLETIONS, body, headers={"x-request-id": "header"})
        assert answer.json()["id"] == "cmpl-body"


async def test_a_seed_reaches_the_sampler_and_none_is_fresh() -> None:
    async with serving() as server:
        for seed in (5, 5, -2, None, None, -1):
            await server.complete(seed=seed, max_tokens=1, temperature=1.2)
        seeds = [draw.sampling.seed for plan in server.executor.plans for work in plan.work for draw in work.draws]
        assert seeds[:3] == [5, 5, 2**64 - 2]
        assert len(set(seeds[3:])) == 3


async def test_sampling_settings_reach_the_sampler() -> None:
    async with serving(defaults={"temperature": 0.3, "top_k": 7, "repetition_penalty": 1.2}) as server:
        await server.complete(max_tokens=1, top_p=0.5, min_p=0.1)
        await server.complete(max_tokens=1, top_k=-1, temperature=0)
        await server.complete(max_tokens=1, presence_penalty=0.5, frequency_penalty=-2, logit_bias={"7": 5}, logprobs=3)
        first, second, third = (work.draws[0].sampling for plan in server.executor.plans for work in plan.work)
        assert (first.temperature, first.top_k, first.top_p, first.min_p) == (0.3, 7, 0.5, 0.1)
        assert (second.temperature, second.top_k) == (0, 0)
        assert (third.presence_penalty, third.frequency_penalty, third.repetition_penalty) == (0.5, -2.0, 1.2)
        assert (third.logit_bias, third.logprobs) == (((7, 5.0),), 3)


ONE_RUNS_AND_TWO_WAIT = EngineConfig(max_model_len=256, num_blocks=64, max_num_seqs=1, max_num_queued_reqs=2)


@asynccontextmanager
async def busy(prompts: int) -> AsyncGenerator[Server]:
    """A server that has so many requests to answer, and answers them when the test is done."""
    async with serving(executor=GatedExecutor, config=ONE_RUNS_AND_TWO_WAIT) as server:
        assert isinstance(server.executor, GatedExecutor)
        asking = asyncio.create_task(server.complete(["a\n"] * prompts, max_tokens=1))
        await server.taken(prompts)
        yield server
        server.executor.open()
        assert (await asking).status_code == 200
        await server.settled()


@pytest.mark.parametrize("fields", [{}, {"stream": True}])
async def test_a_full_queue_is_429_with_a_time_to_come_back(fields: dict[str, Any]) -> None:
    async with busy(3) as server:
        refused = await server.complete("a\n", **fields)
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 120
        assert refused.json()["error"]["code"] == 429


async def test_of_several_prompts_all_or_none_are_taken() -> None:
    async with busy(2) as server:
        assert (await server.complete(["b\n"] * 2)).status_code == 429
        assert len(server.client._streams) == 2
    assert len({work.seq_id for plan in server.executor.plans for work in plan.work}) == 2


async def test_more_prompts_than_could_ever_wait_are_400() -> None:
    async with serving(config=ONE_RUNS_AND_TWO_WAIT) as server:
        refused = await server.complete(["a\n"] * 4)
        assert refused.status_code == 400
        assert "retry-after" not in refused.headers
        assert (await server.complete(["a\n"] * 3, max_tokens=1)).status_code == 200


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_failure_before_the_first_token_is_500(path: str) -> None:
    async with serving(executor=GatedExecutor) as server:
        assert isinstance(server.executor, GatedExecutor)
        server.executor.fail, server.executor.sound = "out of luck", True
        server.executor.allow(4)  # with the others of its step, a proof, alone, and a proof again
        answer = await server.post(path, _body(path))
        assert answer.status_code == 500
        assert answer.json()["error"]["type"] == "InternalServerError"
        server.executor.fail = None
        server.executor.open()
        assert (await server.post(path, _body(path))).status_code == 400
        assert (await server.complete("another\n")).status_code == 200
        await server.settled()


async def test_a_failure_in_midstream_is_an_event_and_the_end() -> None:
    async with serving(executor=GatedExecutor, real=True) as server:
        assert isinstance(server.executor, GatedExecutor)
        server.executor.allow(3)
        async with server.http.stream("POST", CHAT, json=_body(CHAT) | {"stream": True}) as answer:
            lines = answer.aiter_lines()
            seen = [line async for line in _until_text(lines)]
            server.executor.fail, server.executor.sound = "out of luck", True
            server.executor.open()
            seen += [line async for line in lines]
        told = [line for line in seen if line]
        assert told[-1] == "data: [DONE]"
        assert '"error":{"message":"the model could not be run: out of luck"' in told[-2]


async def _until_text(lines: AsyncIterator[str]) -> AsyncIterator[str]:
    async for line in lines:
        yield line
        if '"content":"' in line and '"content":""' not in line:
            return


async def test_a_stream_that_waits_is_kept_alive() -> None:
    async with serving(executor=GatedExecutor, real=True, settings=Settings(sse_keep_alive_s=0.001)) as server:
        assert isinstance(server.executor, GatedExecutor)
        async with server.http.stream("POST", COMPLETIONS, json=_body(COMPLETIONS) | {"stream": True}) as answer:
            lines = answer.aiter_lines()
            assert await anext(lines) == ": keep-alive"
            server.executor.open()
            rest = "\n".join([line async for line in lines])
        assert endings(events(rest.lstrip("\n") + "\n")) == [(0, "length")]


async def test_the_role_comes_with_the_first_output_and_text_as_it_is_made() -> None:
    async with serving(executor=GatedExecutor, real=True, next_token=script("ab")) as server:
        assert isinstance(server.executor, GatedExecutor)
        server.executor.allow()  # the status comes with the first output as well
        async with server.http.stream("POST", CHAT, json=_body(CHAT) | {"stream": True}) as answer:
            lines = (line async for line in answer.aiter_lines() if line)
            for expected in ('"role":"assistant"', '"content":"b"'):
                async with asyncio.timeout(5):
                    while expected not in await anext(lines):
                        pass
                server.executor.allow()
            server.executor.open()
            assert [line async for line in lines][-1] == "data: [DONE]"
