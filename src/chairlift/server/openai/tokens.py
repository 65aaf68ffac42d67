"""POST /tokenize and /detokenize: what the model's tokenizer makes of a text, and back. The engine is not asked."""

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from chairlift.server.body import read_object
from chairlift.server.openai import schema
from chairlift.server.openai.jobs import named_model
from chairlift.server.openai.prompts import check_ids, check_size, tokenised_chat
from chairlift.server.service import Service


async def tokenize(service: Service, request: Request) -> ASGIApp:
    """Counts and lists the tokens of a prompt, or of messages as the chat route would put them to the model."""
    fields = await read_object(request, max_bytes=service.settings.max_body_bytes)
    body = schema.validate(schema.TokenizeBody, fields)
    named_model(service, body.model)
    return _json(await asyncio.to_thread(_tokenized, service, body))


async def detokenize(service: Service, request: Request) -> ASGIApp:
    """The text of tokens, special ones included."""
    fields = await read_object(request, max_bytes=service.settings.max_body_bytes)
    body = schema.validate(schema.DetokenizeBody, fields)
    named_model(service, body.model)
    check_ids(service.tokenizer, body.tokens, "tokens")
    text = await asyncio.to_thread(service.tokenizer.decode, body.tokens, skip_special_tokens=False)
    return _json({"prompt": text})


def _tokenized(service: Service, body: schema.TokenizeBody) -> dict[str, Any]:
    tokens = _tokens(service, body)
    names = [service.tokenizer.token(token) for token in tokens] if body.return_token_strs else None
    return {"count": len(tokens), "max_model_len": service.client.longest, "tokens": tokens, "token_strs": names}


def _tokens(service: Service, body: schema.TokenizeBody) -> list[int]:
    if body.prompt is not None:
        check_size(service, body.prompt, "prompt")
        return service.tokenizer.encode(body.prompt, add_special_tokens=body.add_special_tokens is not False)
    assert body.messages is not None, "the schema asks for one of the two"
    chat = schema.ChatBody(
        messages=body.messages,
        add_generation_prompt=body.add_generation_prompt,
        add_special_tokens=body.add_special_tokens,
    )
    return tokenised_chat(service, chat)


def _json(value: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
