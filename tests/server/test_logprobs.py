"""Log probabilities in answers, streamed and not: one entry for every token that counts, and the bytes of the text."""

from typing import Any

import pytest
import tiny
from sse import events, joined
from tiny import Server, script, serving

FOX = "🦊"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


async def whole_and_streamed(server: Server, path: str, **fields: Any) -> tuple[dict[str, Any], dict[str, Any], list[Any]]:
    """The body of an answer, the logprobs of the same one streamed, put together again, and its chunks."""
    start: dict[str, Any] = {"messages": [{"role": "user", "content": "q"}]} if path == CHAT else {"prompt": "q\n"}
    whole = await server.post(path, start | fields)
    streamed = await server.post(path, start | fields | {"stream": True})
    assert (whole.status_code, streamed.status_code) == (200, 200)
    chunks = events(streamed.text)
    together: dict[str, Any] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        for name, values in (choice.get("logprobs") or {}).items():
            if isinstance(values, list):
                together.setdefault(name, []).extend(values)
    return whole.json(), together, chunks


def bytes_of(content: list[dict[str, Any]]) -> bytes:
    return b"".join(bytes(entry["bytes"]) for entry in content)


@pytest.mark.parametrize(
    ("answer", "fields", "tokens"),
    [
        pytest.param(["It is"], {}, 6, id="ends by itself"),
        pytest.param(["It is"], {"max_tokens": 3}, 3, id="cut by length"),
        pytest.param(["one ", *FOX.encode(), " 鹿"], {}, 13, id="characters of many bytes"),
        pytest.param(["12345678"], {"stop": ["345"]}, 5, id="nothing after a stop"),
        pytest.param(["abXcd"], {"stop_token_ids": [ord("X")]}, 3, id="a stop token"),
        pytest.param([tiny.WORD, tiny.WORD + 1], {}, 3, id="tokens of many bytes"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_every_token_that_counts_has_one_entry(path: str, answer: list[Any], fields: dict[str, Any], tokens: int) -> None:
    asked = {"logprobs": True, "top_logprobs": 2} if path == CHAT else {"logprobs": 2}
    async with serving(next_token=script(*answer), source=tiny.source(words=("It is", " Lisbon"))) as server:
        whole, streamed, _ = await whole_and_streamed(server, path, **({"max_tokens": 50} | asked | fields))
    told = whole["choices"][0]["logprobs"]
    assert whole["usage"]["completion_tokens"] == tokens
    assert {len(told[name]) for name in streamed} == {tokens}
    assert streamed == {name: told[name] for name in streamed}


async def test_the_bytes_of_a_chat_are_those_of_its_text() -> None:
    async with serving(next_token=script("one ", *FOX.encode())) as server:
        whole, _, chunks = await whole_and_streamed(server, CHAT, logprobs=True)
    choice = whole["choices"][0]
    content = choice["logprobs"]["content"]
    assert bytes_of(content) == choice["message"]["content"].encode() == joined(chunks)[0].encode()
    assert [entry["token"] for entry in content] == [*"one ", *["\ufffd"] * 4, "<|im_end|>"]


async def test_special_tokens_that_are_shown_have_bytes() -> None:
    async with serving(next_token=script("a", tiny.BOS, "b")) as server:
        whole, _, _ = await whole_and_streamed(server, CHAT, logprobs=True, skip_special_tokens=False, max_tokens=3)
    choice = whole["choices"][0]
    assert bytes_of(choice["logprobs"]["content"]) == choice["message"]["content"].encode() == b"a<s>b"


async def test_a_chat_entry_is_as_openai_has_it() -> None:
    async with serving(next_token=script("a")) as server:
        whole, _, _ = await whole_and_streamed(server, CHAT, logprobs=True, top_logprobs=2, max_tokens=1)
    assert whole["choices"][0]["logprobs"] == {
        "content": [
            {
                "token": "a",
                "logprob": -1.5,
                "bytes": [97],
                "top_logprobs": [
                    {"token": "b", "logprob": -0.5, "bytes": [98]},
                    {"token": "a", "logprob": -1.5, "bytes": [97]},
                ],
            }
        ],
        "refusal": None,
    }


async def test_without_top_logprobs_a_chat_has_empty_lists() -> None:
    async with serving() as server:
        whole, _, _ = await whole_and_streamed(server, CHAT, logprobs=True, max_tokens=3)
    assert [entry["top_logprobs"] for entry in whole["choices"][0]["logprobs"]["content"]] == [[], [], []]


@pytest.mark.parametrize(("count", "best"), [(0, {"a": -1.5}), (1, {"b": -0.5, "a": -1.5}), (2, {"b": -0.5, "a": -1.5})])
async def test_the_drawn_token_is_among_the_best_of_a_completion(count: int, best: dict[str, float]) -> None:
    async with serving(next_token=script("a")) as server:
        whole, _, _ = await whole_and_streamed(server, COMPLETIONS, logprobs=count, max_tokens=1)
    assert whole["choices"][0]["logprobs"] == {
        "text_offset": [0],
        "token_logprobs": [-1.5],
        "tokens": ["a"],
        "top_logprobs": [best],
    }


async def test_offsets_of_a_completion_count_characters() -> None:
    async with serving(next_token=script("a", *FOX.encode(), "b")) as server:
        whole, _, _ = await whole_and_streamed(server, COMPLETIONS, logprobs=0, max_tokens=7)
    told = whole["choices"][0]["logprobs"]
    assert told["text_offset"] == [0, 1, 1, 1, 1, 2, 3]
    assert told["tokens"] == ["a", r"bytes:\xf0", r"bytes:\x9f", r"bytes:\xa6", r"bytes:\x8a", "b", "<|im_end|>"]


async def test_every_prompt_has_offsets_of_its_own() -> None:
    async with serving() as server:
        body = {"prompt": ["x\n", "y\n"], "max_tokens": 3, "logprobs": 0, "stream": True}
        chunks = events((await server.post(COMPLETIONS, body)).text)
    offsets: dict[int, list[int]] = {0: [], 1: []}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        offsets[choice["index"]] += choice["logprobs"]["text_offset"]
    assert offsets == {0: [0, 1, 2], 1: [0, 1, 2]}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_without_being_asked_nothing_is_told(path: str) -> None:
    async with serving() as server:
        whole, streamed, _ = await whole_and_streamed(server, path, max_tokens=3)
    assert (whole["choices"][0]["logprobs"], streamed) == (None, {})
