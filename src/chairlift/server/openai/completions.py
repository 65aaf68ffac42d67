"""POST /v1/completions: one text for every prompt. Knows the shape of the answer; how it is made and sent is told elsewhere."""

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp

from chairlift.server.body import read_object
from chairlift.server.generate import Piece
from chairlift.server.middleware import request_name
from chairlift.server.openai import schema
from chairlift.server.openai.jobs import Prompt, Wanted, make_job, named_model
from chairlift.server.openai.logprobs import CompletionLogprobs
from chairlift.server.openai.prompts import tokenised_prompts
from chairlift.server.openai.stream import Reply
from chairlift.server.service import Service
from chairlift.server.tenants import asker

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for this route."""


class CompletionForm:
    """The choices of a completion."""

    whole = "text_completion"
    chunk = "text_completion"

    def __init__(self, logprobs: Callable[[], CompletionLogprobs]) -> None:
        self._make = logprobs
        self._logprobs: dict[int, CompletionLogprobs] = {}
        """By choice, as offsets go on from chunk to chunk."""

    def opening(self, _index: int) -> dict[str, Any] | None:
        return None

    def part(self, piece: Piece) -> dict[str, Any]:
        return {
            "index": piece.choice,
            "text": piece.text,
            "logprobs": self._told(piece) if piece.told else None,
            "finish_reason": piece.finish,
            "stop_reason": piece.stop_reason,
        }

    def complete(self, whole: Piece) -> dict[str, Any]:
        return self.part(whole)

    def _told(self, piece: Piece) -> dict[str, Any] | None:
        if piece.choice not in self._logprobs:
            self._logprobs[piece.choice] = self._make()
        return self._logprobs[piece.choice].take(piece.told)


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
        CompletionForm(lambda: CompletionLogprobs(service.tokenizer, skip_special_tokens=body.skips_specials)),
        prompts,
        id=f"cmpl-{body.request_id or request_name(request)}",
        arrival=arrival,
        asker=asker(service.settings, request, body.user),
        wanted=Wanted(body.max_tokens, DEFAULT_MAX_TOKENS),
        param="prompt",
    )
    return Reply(job, service)


def _prompts(service: Service, body: schema.CompletionBody) -> list[Prompt]:
    tokenised = tokenised_prompts(service, body)
    if not body.echo:
        return [Prompt(tokens) for tokens in tokenised]
    return [
        Prompt(tokens, given if isinstance(given, str) else service.tokenizer.decode(given))
        for given, tokens in zip(body.prompt, tokenised, strict=True)
    ]
