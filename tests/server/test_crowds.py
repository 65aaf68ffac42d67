"""Many clients, at once and one after another: nobody gets another's text, and nothing is left of those who have gone."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import tiny
from executors import ShadowExecutor
from native_kernels import OBJECTS
from sse import events, joined
from starlette.applications import Starlette
from tiny import CHATML, END, NEWLINE, GatedExecutor, script, serving, until
from tiny_decoders import PLAIN, random_weights

from chairlift.core.config import EngineConfig
from chairlift.core.types import Plan, Result
from chairlift.execute.cpu.executor import CpuExecutor, CpuOptions
from chairlift.server.run import bind, web_server

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


class Compiled(ShadowExecutor):
    """No script but a small random model, computed as a real one is."""

    def __init__(self, num_blocks: int, block_size: int, next_token: Callable[[tuple[int, ...]], int]) -> None:
        super().__init__(num_blocks, block_size, next_token)
        model = replace(PLAIN, vocab=tiny.WORD)
        self.real = CpuExecutor.load(
            model,
            random_weights(model),
            num_blocks=num_blocks,
            block_size=block_size,
            max_tokens=64,
            max_rows=8,
            options=CpuOptions(threads=1, quantization="none", kv_cache_dtype="f32"),
            cache=OBJECTS,
        )

    def launch(self, plan: Plan) -> None:
        self.real.launch(plan)

    def collect(self) -> Result:
        return self.real.collect()

    def close(self) -> None:
        self.real.close()


# ── texts of one's own ────────────────────────────────────────────────────────────────────────────────────────────────────


def parrot(prefix: tuple[int, ...]) -> int:
    """A model that says what the last user said, and ends."""
    said = prefix[prefix.index(NEWLINE) + 1 : prefix.index(END)]
    place = len(prefix) - 1 - max(index for index, token in enumerate(prefix) if token == NEWLINE)
    return said[place] if place < len(said) else END


async def test_no_answer_has_a_word_of_anothers_prompt() -> None:
    """Elsewhere, with sixteen in flight, answers were about what somebody else had asked."""
    config = EngineConfig(max_model_len=128, num_blocks=60, block_size=4, max_num_seqs=16, max_num_batched_tokens=32)
    async with serving(next_token=parrot, config=config) as server:
        said = [f"the word of {index} is marker{index * 7919}" for index in range(16)]
        for streamed in (False, True):
            answers = await asyncio.gather(*(server.chat(text, stream=streamed) for text in said))
            assert [text_of(answer.text, streamed) for answer in answers] == said
        await server.settled()
        assert server.metrics.read().preemptions > 0


def text_of(body: str, streamed: bool) -> str:
    return joined(events(body))[0] if streamed else json.loads(body)["choices"][0]["message"]["content"]


async def test_two_prompts_of_different_lengths_at_once_and_one_after_them() -> None:
    """Elsewhere they killed the thread that computes, and every later request waited for ever."""
    async with serving(executor=Compiled) as server:
        together = await asyncio.gather(*(server.complete("x" * length, max_tokens=8) for length in (10, 26)))
        after = await server.complete("x", max_tokens=8)
        assert [answer.status_code for answer in (*together, after)] == [200] * 3
        assert server.client.health() == "ok"


MIXED: list[dict[str, Any]] = [
    {"max_tokens": 9},
    {"max_tokens": 17, "frequency_penalty": 1.2, "logit_bias": {"97": 3}},
    {"max_tokens": 13, "min_tokens": 13, "logprobs": 2, "repetition_penalty": 1.3},
    {"max_tokens": 21},
]


async def test_settings_of_some_do_not_disturb_the_others_of_a_batch() -> None:
    """Elsewhere a batch of which only some had penalties broke when it was divided anew."""
    async with serving(executor=Compiled) as server:

        async def ask(place: int, *, stream: bool) -> str:
            body = {"prompt": "xyz"[: place + 1] * (5 + 4 * place), "temperature": 0, "ignore_eos": True, "stream": stream}
            answer = await server.post(COMPLETIONS, body | MIXED[place])
            assert answer.status_code == 200
            return joined(events(answer.text))[0] if stream else answer.json()["choices"][0]["text"]

        alone = [await ask(place, stream=False) for place in range(4)]
        assert len(set(alone)) == 4
        for _ in range(6):
            assert await asyncio.gather(*(ask(place, stream=place == 3) for place in range(4))) == alone
        await server.settled()


# ── conversations ─────────────────────────────────────────────────────────────────────────────────────────────────────────

THINKING = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
"""What an old answer begins with is not what it was asked for with."""


@pytest.mark.parametrize("template", [CHATML, THINKING], ids=["plain", "thinking"])
async def test_every_turn_of_a_chat_finds_what_was_said_before(template: str) -> None:
    """Elsewhere nothing was found from the first old answer on, as it is not written like the beginning of a new one."""
    size = tiny.CONFIG.block_size
    opening = len("0assistant\n" + ("<think>\n" if template is THINKING else ""))  # the start token is one
    async with serving(next_token=script("fine"), source=tiny.source(template=template)) as server:
        messages: list[dict[str, str]] = []
        before = 0
        for turn in range(5):
            messages.append({"role": "user", "content": f"question {turn}"})
            told = (await server.post(CHAT, {"messages": messages, "max_tokens": 9})).json()
            assert told["usage"]["prompt_tokens_details"]["cached_tokens"] >= before // size * size
            before = told["usage"]["prompt_tokens"] - opening
            messages.append(told["choices"][0]["message"])
        assert before > 4 * size


async def test_streamed_answers_fill_the_cache_too() -> None:
    """Elsewhere a stream read the cache and left nothing in it."""
    async with serving() as server:
        fields = {"stream": True, "max_tokens": 2, "stream_options": {"include_usage": True}}
        usages = [events((await server.complete("x" * 150 + "\n", **fields)).text)[-1]["usage"] for _ in range(3)]
        assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages] == [0, 144, 144]


# ── those who have gone ───────────────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def listening(app: Starlette) -> AsyncIterator[tuple[int, set[Any]]]:
    """The port, and the connections that are open."""
    with bind("127.0.0.1", 0) as listener:
        web = web_server(app)
        running = asyncio.create_task(web.serve(sockets=[listener]))
        try:
            yield listener.getsockname()[1], web.server_state.connections
        finally:
            web.should_exit = web.force_exit = True
            await running


async def test_connections_that_are_dropped_at_any_moment_leave_no_place_taken() -> None:
    """Elsewhere one in many kept its place, until none was left and the server took all and answered none."""
    chance = random.Random(1)
    body = json.dumps({"prompt": "q\n", "max_tokens": 200, "stream": True}).encode()
    raw = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    config = EngineConfig(max_model_len=256, num_blocks=64, max_num_seqs=4, max_num_batched_tokens=64)

    async def drop(port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(raw[: chance.choice([len(raw), len(raw), len(raw), chance.randrange(len(raw))])])
        for _ in range(chance.randrange(20)):
            await asyncio.sleep(0)
        if chance.random() < 0.3:
            writer.write_eof()
        writer.transport.abort()

    async with serving(config=config) as server, listening(server.app) as (port, connections):
        for _ in range(10):
            await asyncio.gather(*(drop(port) for _ in range(8)))
        await until(lambda: not connections and not server.client._streams)
        await server.settled()
        answer = await server.complete(max_tokens=2)
        assert (answer.status_code, answer.json()["usage"]["completion_tokens"]) == (200, 2)
        assert not server.service.flights._flights


async def test_everyone_who_was_taken_is_counted_as_ended_once() -> None:
    """Elsewhere those who were cancelled were missing, or counted as if they had come to their end."""
    async with serving(executor=GatedExecutor, real=True) as server:
        assert isinstance(server.executor, GatedExecutor)
        server.executor.fail, server.executor.sound = "out of luck", True
        server.executor.allow(4)  # with others, a proof, alone, and a proof again
        assert (await server.complete("bad\n")).status_code == 500
        server.executor.fail = None
        refused = [await server.complete("x" * 300), await server.complete(temperature=-1)]
        assert [answer.status_code for answer in refused] == [400, 400]
        leaving = [asyncio.create_task(server.complete(f"{number}\n", max_tokens=200)) for number in range(3)]
        await until(lambda: len(server.client._streams) == 3)
        for task in leaving:
            task.cancel()
        await until(lambda: not server.client._streams)
        server.executor.open()
        for number in range(4):
            assert (await server.complete(f"{number}\n", max_tokens=5)).status_code == 200
        await server.settled()
        tally = await server.counted(8)
        assert tally.finished == {"stop": 0, "length": 4, "abort": 3, "error": 1}
        lines = (await server.http.get("/metrics")).text.splitlines()
        assert sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:request_success_total{")) == 8


async def test_nothing_is_kept_by_the_name_of_an_answer_that_was_given() -> None:
    """Elsewhere a table of requests was filled by every one that was not streamed, and emptied by none."""
    async with serving() as server:
        for number in range(30):
            answer = await server.complete(f"{number}\n", max_tokens=1, stream=number % 3 == 0, request_id=f"r{number}")
            assert answer.status_code == 200
        await server.settled()
        kept = [server.client._streams, server.client._queued, server.service.flights._flights]
        assert not any(kept)
        assert not list(server.client._core.scheduler.sequences)
