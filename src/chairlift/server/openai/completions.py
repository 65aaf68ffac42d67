"""POST /v1/completions: one text for every prompt. Knows the shape of the answer; how it is made and sent is told elsewhere."""

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp

from chairlift.server.body import read_object
from chairlift.server.generate import Piece
from chairlift.server.middleware import request_name
from chairlift.server.openai import schema
from chairlift.server.openai.jobs import Prompt, Wanted, make_job, named_model
from chairlift.server.openai.prompts import tokenised_prompts
from chairlift.server.openai.stream import Reply
from chairlift.server.service import Service

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for this route."""


class CompletionForm:
    """The choices of a completion."""

    whole = "text_completion"
    chunk = "text_completion"

    def opening(self, _index: int) -> dict[str, Any] | None:
        return None

    def part(self, piece: Piece) -> dict[str, Any]:
        return self.complete(piece.text, piece)

    def complete(self, text: str, last: Piece) -> dict[str, Any]:
        return {
            "index": last.choice,
            "text": text,
            "logprobs": None,
            "finish_reason": last.finish,
            "stop_reason": last.stop_reason,
        }


async def completions(service: Service, request: Request) -> ASGIApp:
    """Continues one prompt or several, streamed or not."""
    arrival = service.client.now()
    fields = await read_object(request, max_bytes=service.settings.max_body_bytes)
    body = schema.validate(schema.CompletionBody, fields)
    named_model(service, body.model)
    prompts = await asyncio.to_thread(_prompts, service, body)
    job = make_job(
        service,
        body,
        CompletionForm(),
        prompts,
        id=f"cmpl-{body.request_id or request_name(request)}",
        arrival=arrival,
        wanted=Wanted(body.max_tokens, DEFAULT_MAX_TOKENS),
        param="prompt",
    )
    return Reply(job, service.client, service.tokenizer, keep_alive_s=service.settings.sse_keep_alive_s)


def _prompts(service: Service, body: schema.CompletionBody) -> list[Prompt]:
    tokenised = tokenised_prompts(service, body)
    if not body.echo:
        return [Prompt(tokens) for tokens in tokenised]
    return [
        Prompt(tokens, given if isinstance(given, str) else service.tokenizer.decode(given))
        for given, tokens in zip(body.prompt, tokenised, strict=True)
    ]
