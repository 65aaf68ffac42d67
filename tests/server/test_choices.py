"""Several answers to one prompt, over HTTP: each with its index, its text and its end, and the prompt counted once."""

import asyncio
from typing import Any

import pytest
import tiny
from executors import ShadowExecutor
from sse import endings, events, joined
from tiny import GatedExecutor, Server, letters, serving

from chairlift.core.config import EngineConfig
from chairlift.core.types import Draw
from chairlift.execute import noise

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SHORT = EngineConfig(max_model_len=64, num_blocks=8, block_size=16, max_num_seqs=8, max_num_batched_tokens=64)
"""Memory for two of the longest requests."""


def text(prompt: str, choice: int, count: int) -> str:
    """What a choice says: the shadow executor adds the number of the choice to every token."""
    tokens = list(prompt.encode())
    for _ in range(count):
        tokens.append(letters(tuple(tokens)) + choice)
    return bytes(tokens[-count:]).decode()


async def both(server: Server, path: str, **fields: Any) -> tuple[dict[str, Any], list[Any]]:
    """The same request, not streamed and streamed."""
    start: dict[str, Any] = {"messages": [{"role": "user", "content": "q"}]} if path == CHAT else {"prompt": "q\n"}
    whole = await server.post(path, start | fields)
    streamed = await server.post(path, start | fields | {"stream": True, "stream_options": {"include_usage": True}})
    assert (whole.status_code, streamed.status_code) == (200, 200)
    return whole.json(), events(streamed.text)


def texts_of(answer: dict[str, Any]) -> list[tuple[int, str]]:
    return [
        (choice["index"], choice["text"] if "text" in choice else choice["message"]["content"]) for choice in answer["choices"]
    ]


class Drawing(ShadowExecutor):
    """Draws a letter by the noise of the draw, whatever the prompt; an answer ends after three tokens for each choice."""

    def draw(self, draw: Draw, prefix: tuple[int, ...]) -> int:
        position = len(prefix) - draw.prompt_len
        if position >= 3 * (draw.choice + 1):
            return tiny.END
        return ord("a") + noise.key(draw.sampling.seed, draw.choice, position) % 26


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_choices_differ_and_run_to_their_own_end(path: str) -> None:
    async with serving(executor=Drawing) as server:
        whole, chunks = await both(server, path, n=4, seed=3, max_tokens=50)
        again = (await both(server, path, n=4, seed=3, max_tokens=50))[0]
        await server.settled()
    answers = texts_of(whole)
    assert [(index, len(answer)) for index, answer in answers] == [(0, 3), (1, 6), (2, 9), (3, 12)]
    assert len({answer[:3] for _, answer in answers}) == 4
    assert joined(chunks) == dict(answers) == dict(texts_of(again))
    assert sorted(endings(chunks)) == [(index, "stop") for index in range(4)]


async def test_the_first_choice_is_the_answer_of_a_request_for_one() -> None:
    async with serving(executor=Drawing) as server:
        one = (await server.complete(seed=3, max_tokens=50)).json()
        three = (await server.complete(seed=3, max_tokens=50, n=3)).json()
    assert texts_of(one)[0] == texts_of(three)[0]


@pytest.mark.parametrize("config", [tiny.CONFIG, SHORT], ids=["enough memory", "short of memory"])
async def test_every_choice_comes_once_with_its_own_text(config: EngineConfig) -> None:
    async with serving(config=config) as server:
        for _ in range(5):
            whole, chunks = await both(server, COMPLETIONS, n=8, max_tokens=32)
            assert texts_of(whole) == [(choice, text("q\n", choice, 32)) for choice in range(8)]
            assert joined(chunks) == dict(texts_of(whole))
            assert sorted(endings(chunks)) == [(choice, "length") for choice in range(8)]
        await server.settled()
        preempted = any(plan.preempted for plan in server.executor.plans)
    assert preempted or config is tiny.CONFIG


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_usage_counts_the_prompt_once_and_every_answer(path: str) -> None:
    async with serving() as server:
        one = (await both(server, path, max_tokens=8, ignore_eos=True))[0]["usage"]
        whole, chunks = await both(server, path, n=3, max_tokens=8, ignore_eos=True)
    prompt = one["prompt_tokens"]
    for usage in (whole["usage"], chunks[-1]["usage"]):
        assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (prompt, 24, prompt + 24)


async def test_cached_tokens_of_a_prompt_count_once() -> None:
    async with serving() as server:
        await server.complete("x" * 40 + "\n", max_tokens=1)
        usage = (await server.complete("x" * 40 + "\n", max_tokens=4, n=3)).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 32


async def test_choices_are_in_the_order_of_their_prompts() -> None:
    prompts = ["long " * 8 + "\n", "s\n", "medium medium\n"]
    async with serving() as server:
        whole, chunks = await both(server, COMPLETIONS, prompt=prompts, n=2, echo=True, max_tokens=6)
    expected = [(2 * place + k, prompt + text(prompt, k, 6)) for place, prompt in enumerate(prompts) for k in range(2)]
    assert texts_of(whole) == expected
    assert joined(chunks) == dict(expected)
    assert whole["usage"]["completion_tokens"] == 36
    assert whole["usage"]["prompt_tokens"] == sum(len(prompt) for prompt in prompts)


async def test_a_prompt_is_computed_once_for_all_its_choices() -> None:
    prompt = "x" * 50 + "\n"
    async with serving() as server:
        await server.complete(prompt, max_tokens=2, n=5)
        computed = sum(len(work.tokens) for plan in server.executor.plans for work in plan.work if work.start < len(prompt))
        assert computed == len(prompt)


async def test_a_stop_string_ends_only_the_choice_that_has_it() -> None:
    drawn = ["".join(chr(ord("a") + noise.key(3, choice, at) % 26) for at in range(3 * choice + 3)) for choice in range(3)]
    stop = drawn[1][2:5]
    async with serving(executor=Drawing) as server:
        whole, chunks = await both(server, COMPLETIONS, n=3, seed=3, max_tokens=20, stop=[stop])
        await server.settled()
    assert [choice["stop_reason"] for choice in whole["choices"]] == [None, stop, None]
    assert texts_of(whole) == [(0, drawn[0]), (1, drawn[1][:2]), (2, drawn[2])]
    assert joined(chunks) == dict(texts_of(whole))


@pytest.mark.parametrize("n", [0, 1.5, -1, "2", True, 129, 10**30])
async def test_other_numbers_of_choices_are_refused_by_name(n: Any) -> None:
    async with serving() as server:
        answer = await server.chat(n=n)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")


async def test_more_choices_than_places_are_refused_with_the_limit() -> None:
    async with serving() as server:
        answer = await server.chat(n=9)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")
        assert "must not be more than 8" in answer.json()["error"]["message"]
        await server.settled()


@pytest.mark.parametrize(("n", "best_of", "status"), [(2, 2, 200), (None, 1, 200), (2, None, 200), (2, 3, 400), (2, 1, 400)])
async def test_best_of_must_be_all_of_them(n: int | None, best_of: int | None, status: int) -> None:
    async with serving() as server:
        answer = await server.complete(n=n, best_of=best_of, max_tokens=2)
        assert answer.status_code == status
        assert status == 200 or answer.json()["error"]["param"] == "best_of"


async def test_logprobs_come_with_every_choice() -> None:
    async with serving() as server:
        whole, chunks = await both(server, CHAT, n=3, max_tokens=4, logprobs=True, top_logprobs=2)
    assert [len(choice["logprobs"]["content"]) for choice in whole["choices"]] == [4, 4, 4]
    told = [choice for chunk in chunks for choice in chunk["choices"] if choice.get("logprobs")]
    assert sum(len(choice["logprobs"]["content"]) for choice in told) == 12


async def test_choices_in_flight_are_listed_and_cancelled_together() -> None:
    async with serving(executor=GatedExecutor) as server:
        assert isinstance(server.executor, GatedExecutor)
        body = {"prompt": "q\n", "max_tokens": 60, "request_id": "r", "n": 3}
        asked = asyncio.create_task(server.post(COMPLETIONS, body))
        await server.taken(3)
        assert [flight.choice for _, flight in server.service.flights.named("cmpl-r")] == [0, 1, 2]
        await server.http.post("/v1/requests/cmpl-r/cancel")
        server.executor.open()
        answer = (await asked).json()
        assert [choice["finish_reason"] for choice in answer["choices"]] == ["abort"] * 3
        await server.settled()
        assert (await server.counted(3)).finished["abort"] == 3
