"""POST /v1/chat/completions. Knows the shape of a chat answer; how it is made and sent is told elsewhere."""

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp

from chairlift.server.body import read_object
from chairlift.server.generate import Piece
from chairlift.server.middleware import request_name
from chairlift.server.openai import schema
from chairlift.server.openai.jobs import Prompt, Wanted, make_job, named_model
from chairlift.server.openai.logprobs import ChatLogprobs
from chairlift.server.openai.prompts import tokenised_chat
from chairlift.server.openai.stream import Reply
from chairlift.server.service import Service
from chairlift.server.tenants import asker


class ChatForm:
    """The choices of a chat answer."""

    whole = "chat.completion"
    chunk = "chat.completion.chunk"

    def __init__(self, logprobs: ChatLogprobs) -> None:
        self._logprobs = logprobs

    def opening(self, index: int) -> dict[str, Any] | None:
        """Sent with the first output of the engine, so that clients see the time to the first token."""
        return {"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}

    def part(self, piece: Piece) -> dict[str, Any]:
        delta = {"content": piece.text} if piece.text else {}
        choice: dict[str, Any] = {"index": piece.choice, "delta": delta, "finish_reason": piece.finish}
        if piece.told:
            choice["logprobs"] = self._logprobs.take(piece.told)
        if piece.finish is not None:
            choice["stop_reason"] = piece.stop_reason
        return choice

    def complete(self, whole: Piece) -> dict[str, Any]:
        return {
            "index": whole.choice,
            "message": {"role": "assistant", "content": whole.text, "refusal": None, "tool_calls": []},
            "logprobs": self._logprobs.take(whole.told),
            "finish_reason": whole.finish,
            "stop_reason": whole.stop_reason,
        }


async def chat_completions(service: Service, request: Request) -> ASGIApp:
    """Answers a conversation, streamed or not."""
    arrival = service.client.now()
    fields = await read_object(request, max_bytes=service.settings.max_body_bytes)
    body = schema.validate(schema.ChatBody, fields)
    named_model(service, body.model)
    tokens = await asyncio.to_thread(tokenised_chat, service, body)
    job = make_job(
        service,
        body,
        ChatForm(ChatLogprobs(service.tokenizer, skip_special_tokens=body.skips_specials)),
        [Prompt(tokens)],
        id=f"chatcmpl-{body.request_id or request_name(request)}",
        arrival=arrival,
        asker=asker(service.settings, request, body.user),
        wanted=Wanted(body.longest_answer, field="max_completion_tokens" if body.max_completion_tokens else "max_tokens"),
        param="messages",
    )
    return Reply(job, service)
