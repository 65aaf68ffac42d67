"""How an answer goes out: as one JSON body, or as server-sent events while it is being made. The only place that knows SSE.

Both ways follow the same pieces of the same run; the shape of a choice comes from `chat` or `completions`.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec
from starlette.types import Receive, Scope, Send

from chairlift.core.errors import ChairliftError
from chairlift.server.connection import while_connected
from chairlift.server.errors import from_domain, internal
from chairlift.server.flights import Flight
from chairlift.server.generate import Choice, Piece, Run, submitted
from chairlift.server.service import Service

log = logging.getLogger(__name__)

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
STREAM_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


class Form(Protocol):
    """The shape of one way of asking. A method returns an element of `choices`, or None if there is nothing to say."""

    @property
    def whole(self) -> str:
        """The `object` of a complete answer."""
        ...

    @property
    def chunk(self) -> str:
        """The `object` of an event."""
        ...

    def opening(self, index: int, /) -> dict[str, Any] | None: ...
    def part(self, piece: Piece, /) -> dict[str, Any]: ...
    def complete(self, whole: Piece, /) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Job:
    """A request, ready to be run and answered."""

    id: str
    model: str
    created: int
    fingerprint: str
    form: Form
    choices: tuple[Choice, ...]
    prompt_tokens: int
    stream: bool = False
    usage_at_end: bool = False
    usage_always: bool = False
    owner: str = ""
    tenant: str = ""

    def counted_to(self, tenant: str) -> "Job":
        """The same for another tenant."""
        choices = tuple(replace(choice, request=replace(choice.request, tenant=tenant)) for choice in self.choices)
        return replace(self, tenant=tenant, choices=choices)

    @property
    def flights(self) -> dict[str, Flight]:
        """Its choices by the engine's names for them."""
        return {
            choice.id: Flight(self.id, choice.index, self.owner, self.model, self.created, self.tenant)
            for choice in self.choices
        }


class Usage:
    """Counts the tokens of all choices of a job. A prompt counts once, however many answers it gets."""

    def __init__(self, job: Job) -> None:
        self._prompt = job.prompt_tokens
        self._requests = {choice.index: choice.request.id for choice in job.choices}
        self._answers: dict[int, int] = {}
        self._cached: dict[str, int] = {}

    def note(self, piece: Piece) -> None:
        self._answers[piece.choice] = piece.tokens
        request = self._requests[piece.choice]
        self._cached[request] = max(self._cached.get(request, 0), piece.cached)

    def value(self) -> dict[str, Any]:
        answers = sum(self._answers.values())
        return {
            "prompt_tokens": self._prompt,
            "total_tokens": self._prompt + answers,
            "completion_tokens": answers,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached.values())},
        }


class Reply:
    """The ASGI answer to a job. Whatever happens to the connection, nothing keeps running in the engine afterwards.

    Raises ChairliftError, before anything is sent, if the job is refused or comes to nothing.
    """

    def __init__(self, job: Job, service: Service) -> None:
        self._job = job
        self._service = service

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        await while_connected(receive, self._answer(send))

    async def _answer(self, send: Send) -> None:
        job, service = self._job, self._service
        seat = service.flights.seat(job.tenant)
        if seat != job.tenant:
            job = job.counted_to(seat)
        async with submitted(service.client, service.tokenizer, job.choices) as run:
            with service.flights.entered(job.flights):
                if job.stream:
                    await _stream(job, run, _Events(send), service.settings.sse_keep_alive_s)
                    return
                body = await _collect(job, run)
        raw = msgspec.json.encode(body)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(raw))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": raw})


async def _collect(job: Job, run: Run) -> dict[str, Any]:
    pieces: dict[int, list[Piece]] = {choice.index: [] for choice in job.choices}
    usage = Usage(job)

    async def take(piece: Piece) -> None:
        pieces[piece.choice].append(piece)
        usage.note(piece)

    await run.follow(take)
    return {
        "id": job.id,
        "object": job.form.whole,
        "created": job.created,
        "model": job.model,
        "choices": [job.form.complete(_joined(pieces[index])) for index in sorted(pieces)],
        "system_fingerprint": job.fingerprint,
        "usage": usage.value(),
    }


def _joined(pieces: list[Piece]) -> Piece:
    text = "".join(piece.text for piece in pieces)
    return pieces[-1]._replace(text=text, told=tuple(one for piece in pieces for one in piece.told))


async def _stream(job: Job, run: Run, events: "_Events", keep_alive_s: float) -> None:
    """The status goes out with the first event, so what goes wrong before that is an answer of its own.

    Afterwards it becomes an event, and the stream ends with `[DONE]`.
    """
    chunks = _Chunks(job, events)
    try:
        async with _keeping_alive(events, keep_alive_s):
            await run.follow(chunks.take)
        await chunks.end()
    except ChairliftError as error:
        if not events.sent:
            raise
        await events.send(from_domain(error).body())
    except Exception:
        if not events.sent:
            raise
        log.exception("the stream of %s failed", job.id)
        await events.send(internal().body())
    await events.end()


class _Chunks:
    """Makes events of pieces."""

    def __init__(self, job: Job, events: "_Events") -> None:
        self._job = job
        self._events = events
        self._usage = Usage(job)
        self._opened: set[int] = set()

    async def take(self, piece: Piece) -> None:
        form = self._job.form
        self._usage.note(piece)
        if piece.choice not in self._opened:
            self._opened.add(piece.choice)
            opening = form.opening(piece.choice)
            if opening is not None:
                await self._send([opening])
        if piece.text or piece.finish or piece.told:
            await self._send([form.part(piece)], last=piece.finish is not None)

    async def end(self) -> None:
        if self._job.usage_at_end:
            await self._send([], usage=True)

    async def _send(self, choices: list[dict[str, Any]], *, last: bool = False, usage: bool = False) -> None:
        job = self._job
        chunk: dict[str, Any] = {
            "id": job.id,
            "object": job.form.chunk,
            "created": job.created,
            "model": job.model,
            "choices": choices,
        }
        if last:
            chunk["system_fingerprint"] = job.fingerprint
        if usage or job.usage_always:
            chunk["usage"] = self._usage.value()
        await self._events.send(chunk)


class _Events:
    """Writes server-sent events, one at a time, and knows how many. The first one brings the status with it."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._turn = asyncio.Lock()
        self.sent = 0

    async def send(self, value: dict[str, Any]) -> None:
        await self.write(b"data: %b\n\n" % msgspec.json.encode(value))

    async def write(self, raw: bytes) -> None:
        async with self._turn:
            self.sent += 1
            if self.sent == 1:
                await self._send({"type": "http.response.start", "status": 200, "headers": list(STREAM_HEADERS)})
            await self._send({"type": "http.response.body", "body": raw, "more_body": True})

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": DONE})


@asynccontextmanager
async def _keeping_alive(events: _Events, interval_s: float) -> AsyncGenerator[None]:
    """Sends a comment whenever nothing else was sent for one to two intervals."""
    if interval_s <= 0:
        yield
        return
    keeper = asyncio.create_task(_keep_alive(events, interval_s))
    try:
        yield
    finally:
        keeper.cancel()
        await asyncio.wait((keeper,))


async def _keep_alive(events: _Events, interval_s: float) -> None:
    while True:
        before = events.sent
        await asyncio.sleep(interval_s)
        if events.sent == before:
            await events.write(KEEP_ALIVE)
