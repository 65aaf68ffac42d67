"""Requests that cannot be served, over HTTP: the right answer at once, and nothing left behind."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import tiny
from tiny import Server, serving

from chairlift.core.config import EngineConfig
from chairlift.server.settings import Settings

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MAX_BODY = 4096


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """After every test a normal request works, and nothing runs, waits or holds blocks."""
    async with serving(settings=Settings(max_body_bytes=MAX_BODY, max_prompts=8)) as server:
        yield server
        normal = await server.complete("x\n", max_tokens=2)
        assert normal.status_code == 200
        assert normal.json()["usage"]["completion_tokens"] == 2
        await server.settled()
        assert (await server.http.get("/health")).status_code == 200


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}]} | fields


def prompt(value: Any = "hi\n", **fields: Any) -> dict[str, Any]:
    return {"prompt": value} | fields


BAD: list[tuple[str, str, Any]] = [
    ("malformed JSON", CHAT, b'{"messages": oops}'),
    ("cut JSON", CHAT, b'{"messages": ['),
    ("no body", CHAT, b""),
    ("a list", CHAT, b"[]"),
    ("null", COMPLETIONS, b"null"),
    ("bytes that are not UTF-8", COMPLETIONS, b'{"prompt": "\xff"}'),
    ("half a surrogate", CHAT, rb'{"messages": [{"role": "user", "content": "hi \ud83d"}]}'),
    ("NaN", COMPLETIONS, b'{"prompt": "x", "temperature": NaN}'),
    ("a number out of range", COMPLETIONS, b'{"prompt": "x", "top_p": 1e999}'),
    ("no messages", CHAT, {}),
    ("empty messages", CHAT, {"messages": []}),
    ("an unknown role", CHAT, {"messages": [{"role": "robot", "content": "x"}]}),
    ("a negative temperature", CHAT, message(temperature=-1)),
    ("top_p 0", CHAT, message(top_p=0)),
    ("top_k -2", CHAT, message(top_k=-2)),
    ("a top_k that no float can hold", CHAT, message(top_k=10**400)),
    ("a temperature that no float can hold", CHAT, message(temperature=10**400)),
    ("a top_p that no float can hold", CHAT, message(top_p=10**400)),
    ("a min_p that no float can hold", CHAT, message(min_p=10**400)),
    ("a seed of many digits", CHAT, message(seed=10**4000)),
    ("a max_tokens of many digits", CHAT, message(max_tokens=10**3000)),
    ("a min_tokens of many digits", CHAT, message(min_tokens=10**3000)),
    ("a stop token of many digits", CHAT, message(stop_token_ids=[10**3000])),
    ("max_tokens 0", CHAT, message(max_tokens=0)),
    ("max_tokens 0 without echo", COMPLETIONS, prompt(max_tokens=0)),
    ("max_tokens -1", COMPLETIONS, prompt(max_tokens=-1)),
    ("max_tokens 1.5", COMPLETIONS, prompt(max_tokens=1.5)),
    ("a huge max_tokens", COMPLETIONS, prompt(max_tokens=10**12)),
    ("min_tokens above max_tokens", COMPLETIONS, prompt(max_tokens=2, min_tokens=3)),
    ("n 0", CHAT, message(n=0)),
    ("n 100000", CHAT, message(n=100_000)),
    ("tools", CHAT, message(tools=[{"type": "function", "function": {"name": "f"}}])),
    ("tool_choice without tools", CHAT, message(tools=[], tool_choice="required")),
    ("a bias of a token outside the vocabulary", CHAT, message(logit_bias={str(tiny.WORD + 7): 5})),
    ("a bias of a negative token", CHAT, message(logit_bias={"-1": 5})),
    ("a bias of a word", CHAT, message(logit_bias={"cat": -50})),
    ("a bias out of range", CHAT, message(logit_bias={"7": 1000})),
    ("a penalty out of range", CHAT, message(presence_penalty=99)),
    ("a repetition penalty of 0", COMPLETIONS, prompt(repetition_penalty=0)),
    ("more logprobs than there may be", COMPLETIONS, prompt(logprobs=21)),
    ("logprobs of the prompt", COMPLETIONS, prompt(logprobs=1, echo=True)),
    ("top_logprobs without logprobs", CHAT, message(top_logprobs=3, logprobs=False)),
    ("a JSON schema", CHAT, message(response_format={"type": "json_schema"})),
    ("a template in the request", CHAT, message(chat_template="{{ messages }}")),
    ("stop [null]", CHAT, message(stop=[None])),
    ("a stop token outside the vocabulary", CHAT, message(stop_token_ids=[10**6])),
    ("a negative stop token", CHAT, message(stop_token_ids=[-1])),
    ("a suffix", COMPLETIONS, prompt(suffix="x")),
    ("an empty prompt", COMPLETIONS, prompt("")),
    ("no prompts", COMPLETIONS, prompt([])),
    ("one empty prompt of two", COMPLETIONS, prompt(["hi\n", ""])),
    ("empty token ids", COMPLETIONS, prompt([[]])),
    ("a token outside the vocabulary", COMPLETIONS, prompt([tiny.WORD])),
    ("a token of many digits", COMPLETIONS, prompt([10**3000])),
    ("a negative token", COMPLETIONS, prompt([[1, 2], [-1]])),
    ("too many prompts", COMPLETIONS, prompt(["x"] * 9)),
    ("a prompt that is longer than the context", COMPLETIONS, prompt("x" * 300)),
    ("a prompt that fills the context", COMPLETIONS, prompt("x" * 256)),
    ("prompt and answer that are too long together", COMPLETIONS, prompt("x" * 200, max_tokens=57)),
]


@pytest.mark.parametrize(("path", "body"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
async def test_a_bad_request_is_400_in_openais_shape(server: Server, path: str, body: Any) -> None:
    answer = await server.post(path, body)
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] == 400
    assert len(answer.content) < 4096
    assert "Error(" not in error["message"]
    assert "Traceback" not in error["message"]


@pytest.mark.parametrize(
    ("path", "body"), [case[1:] for case in BAD if isinstance(case[2], dict)], ids=[c[0] for c in BAD if isinstance(c[2], dict)]
)
async def test_a_bad_request_for_a_stream_is_the_same_400(server: Server, path: str, body: dict[str, Any]) -> None:
    plain = await server.post(path, body)
    streamed = await server.post(path, body | {"stream": True})
    assert (streamed.status_code, streamed.json()) == (plain.status_code, plain.json())
    assert streamed.headers["content-type"] == "application/json"


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded"])
async def test_the_content_type_does_not_matter(server: Server, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    answer = await server.post(COMPLETIONS, prompt(max_tokens=1), headers=headers)
    assert answer.status_code == 200


async def test_a_body_that_announces_too_much_is_413(server: Server) -> None:
    assert (await server.post(COMPLETIONS, prompt("x" * MAX_BODY))).status_code == 413


async def test_a_body_that_turns_out_too_long_is_413(server: Server) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 1000

    answer = await server.http.post(COMPLETIONS, content=endless())
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == 413


async def test_a_client_that_sends_far_too_much_reads_the_413() -> None:
    async with serving(real=True) as server:
        answer = await server.complete("x" * 30_000_000)
        assert answer.status_code == 413
        assert (await server.complete(max_tokens=1)).status_code == 200


async def test_too_long_a_prompt_is_told_its_length_and_the_limit(server: Server) -> None:
    said = (await server.complete("x" * 300)).json()["error"]["message"]
    assert "300" in said
    assert "256" in said
    assert "-" not in said


async def test_too_long_an_answer_is_told_all_three_numbers(server: Server) -> None:
    said = (await server.complete("x" * 200, max_tokens=57)).json()["error"]["message"]
    assert {"200", "57", "256"} <= set(said.replace(";", " ").split())


async def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenised() -> None:
    async with serving(config=EngineConfig(max_model_len=16, num_blocks=8, block_size=16)) as server:
        said = (await server.complete("x" * 20_000)).json()["error"]["message"]
        assert "20000 bytes" in said


async def test_prompts_that_are_one_token_too_long_hold_nobody_up(server: Server) -> None:
    for _ in range(5):
        assert (await server.complete("x" * 257, max_tokens=1)).status_code == 400
    before = len(server.executor.plans)
    assert (await server.complete("x\n", max_tokens=2)).status_code == 200
    assert len(server.executor.plans) == before + 2
    assert "vllm:num_requests_waiting{" in (page := (await server.http.get("/metrics")).text)
    assert all(line.endswith(" 0.0") for line in page.splitlines() if line.startswith("vllm:num_requests_waiting{"))


async def test_the_last_token_of_the_context_can_be_had(server: Server) -> None:
    answer = (await server.complete("x" * 255, max_tokens=1)).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == 256


async def test_a_default_length_is_cut_to_what_fits(server: Server) -> None:
    answer = (await server.complete("x" * 250)).json()
    assert answer["usage"]["completion_tokens"] == 6


async def test_a_completion_without_a_length_has_sixteen_tokens(server: Server) -> None:
    assert (await server.complete()).json()["usage"]["completion_tokens"] == 16


async def test_a_chat_without_a_length_ends_with_the_context(server: Server) -> None:
    answer = (await server.chat()).json()
    assert answer["usage"]["total_tokens"] == 256
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [({"max_tokens": 5}, 5), ({"max_completion_tokens": 5}, 5), ({"max_tokens": 5, "max_completion_tokens": 9}, 9)],
)
async def test_the_length_of_a_chat_is_kept(server: Server, fields: dict[str, Any], tokens: int) -> None:
    assert (await server.chat(**fields)).json()["usage"]["completion_tokens"] == tokens


async def test_a_prompt_larger_than_the_pool_is_told_so() -> None:
    config = EngineConfig(max_model_len=512, num_blocks=8, block_size=16, max_num_seqs=4)
    async with serving(config=config) as server:
        refused = await server.complete("x" * 200, max_tokens=4)
        assert refused.status_code == 400
        assert "KV cache" in refused.json()["error"]["message"]
        assert (await server.complete("x" * 10, max_tokens=4)).status_code == 200


async def test_neutral_values_give_the_answer_that_their_absence_gives(server: Server) -> None:
    neutral = {"logit_bias": {}, "stop": [], "tools": [], "n": 1, "logprobs": False, "seed": None, "temperature": None}
    bare, full = await server.chat(max_tokens=8), await server.chat(max_tokens=8, **neutral)
    assert full.json()["choices"] == bare.json()["choices"]


async def test_a_prompt_that_is_empty_but_for_bos_is_a_prompt() -> None:
    async with serving(source=tiny.source(add_bos=True)) as server:
        assert (await server.complete("", max_tokens=1)).json()["usage"]["prompt_tokens"] == 1


async def test_nul_in_a_prompt_is_a_character(server: Server) -> None:
    assert (await server.complete("a\0b\n", max_tokens=1)).json()["usage"]["prompt_tokens"] == 4


@pytest.mark.parametrize("model", ["no-such-model", ""])
async def test_an_unknown_model_is_404_and_told_what_there_is(server: Server, model: str) -> None:
    answer = await server.chat(model=model)
    assert answer.status_code == 404
    assert "tiny, alias" in answer.json()["error"]["message"]
    assert "no-such" not in answer.text


@pytest.mark.parametrize(("model", "named"), [("tiny", "tiny"), ("alias", "alias"), (None, "tiny")])
async def test_a_served_name_is_answered_with(server: Server, model: str | None, named: str) -> None:
    assert (await server.chat(model=model, max_tokens=1)).json()["model"] == named


async def test_an_empty_assistant_turn_is_a_turn(server: Server) -> None:
    turns = [("user", "A"), ("assistant", ""), ("user", "B")]
    answer = await server.post(CHAT, {"messages": [{"role": r, "content": c} for r, c in turns], "max_tokens": 1})
    assert answer.status_code == 200


async def test_parts_cost_what_their_text_costs(server: Server) -> None:
    parts = [{"type": "text", "text": "My name is Ada."}, {"type": "text", "text": " What is my name?"}]
    split = await server.chat(messages=[{"role": "user", "content": parts}], max_tokens=1)
    whole = await server.chat("My name is Ada. What is my name?", max_tokens=1)
    assert split.json()["usage"] | {"prompt_tokens_details": 0} == whole.json()["usage"] | {"prompt_tokens_details": 0}


async def test_a_template_that_refuses_is_400_with_its_own_words() -> None:
    picky = "{% if messages[0].role == 'system' %}{{ raise_exception('no system here') }}{% endif %}x"
    async with serving(source=tiny.source(template=picky)) as server:
        answer = await server.post(CHAT, {"messages": [{"role": "system", "content": "x"}]})
        assert answer.status_code == 400
        assert "no system here" in answer.json()["error"]["message"]
        assert (await server.chat(max_tokens=1)).status_code == 200


async def test_a_model_without_a_template_says_how_to_give_one() -> None:
    async with serving(source=tiny.source(template=None)) as server:
        answer = await server.chat()
        assert answer.status_code == 400
        assert "--chat-template" in answer.json()["error"]["message"]
        assert (await server.complete(max_tokens=1)).status_code == 200


async def test_a_trusted_request_brings_its_own_template() -> None:
    async with serving(settings=Settings(trust_request_chat_template=True)) as server:
        answer = await server.chat(chat_template="{{ word }}!", chat_template_kwargs={"word": "hello"}, max_tokens=1)
        assert answer.json()["usage"]["prompt_tokens"] == len("hello!")


async def test_documents_that_the_template_has_no_place_for_are_400(server: Server) -> None:
    answer = await server.chat(documents=[{"text": "x"}])
    assert answer.status_code == 400
    assert "`documents`" in answer.json()["error"]["message"]


async def test_documents_reach_a_template_that_shows_them() -> None:
    async with serving(source=tiny.source(template="{{ documents[0].text }}!")) as server:
        answer = await server.chat(documents=[{"text": "x"}], max_tokens=1)
        assert answer.json()["usage"]["prompt_tokens"] == len("x!")


async def test_an_effort_that_the_template_does_not_know_is_passed_over(server: Server) -> None:
    assert (await server.chat(reasoning_effort="low", max_tokens=1)).status_code == 200


async def test_a_chat_begins_with_one_bos_even_if_the_template_writes_it() -> None:
    for template in (tiny.CHATML, "<s>" + tiny.CHATML):
        async with serving(source=tiny.source(add_bos=True, template=template)) as server:
            tokens = (await server.post("/tokenize", {"messages": [{"role": "user", "content": "x"}]})).json()["tokens"]
            assert tokens[0] == tiny.BOS
            assert tokens.count(tiny.BOS) == 1
