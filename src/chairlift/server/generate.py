"""From requests to pieces of text: submits choices to the engine, follows their streams, and turns tokens into text.

Knows the engine's client and `text`; knows neither HTTP nor the shape of any answer.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple

from chairlift.core.errors import ChairliftError
from chairlift.core.types import CANCELLED, TIMEOUT, Logprobs, Request, choice_id
from chairlift.engine.client import Delta, EngineClient, Stream
from chairlift.text.answer import Answer, Ending
from chairlift.text.tokenizer import Tokenizer


class Failed(ChairliftError):
    """An answer that ended by a fault of ours, before its time."""


class Aborted(ChairliftError):
    """An answer that was ended from elsewhere, as the server is shutting down."""


class TimedOut(ChairliftError):
    """No token had come when the request's time was over."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One text that is wanted: choice number `sample` of an engine's request, which may be that of several.

    `lead` goes before it (an echoed prompt), and is no part of what stop strings are sought in.
    """

    index: int
    request: Request
    sample: int = 0
    lead: str = ""
    stops: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True

    @property
    def id(self) -> str:
        """The engine's name for it."""
        return choice_id(self.request.id, self.sample)


Told = tuple[tuple[int, Logprobs], ...]


class Piece(NamedTuple):
    """What is new of the choice with this index.

    `tokens` counts its answer so far, `cached` its prompt tokens that came out of the cache.
    The last piece of a choice, and only it, has a `finish`; `stop_reason` is the stop string or token that ended it,
    TIMEOUT or CANCELLED. `told` has
    every new token with its log probabilities, if they were asked for, also of tokens whose text is still held back.
    """

    choice: int
    text: str
    tokens: int
    cached: int
    finish: Ending | None = None
    stop_reason: int | str | None = None
    told: Told = ()


Emit = Callable[[Piece], Awaitable[None]]


class Run:
    """Choices that the engine has accepted, all of them. `follow` once."""

    def __init__(self, client: EngineClient, tokenizer: Tokenizer, running: Sequence[tuple[Choice, Stream]]) -> None:
        self._client = client
        self._tokenizer = tokenizer
        self._running = running

    async def follow(self, emit: Emit) -> None:
        """Hands every piece to `emit`, in order within a choice, as they come over all. Raises Failed or Aborted if one is,
        and TimedOut if the time was over before anyone got a token."""
        punctual = _Punctual(emit)
        try:
            async with asyncio.TaskGroup() as group:
                for choice, stream in self._running:
                    group.create_task(self._follow(choice, stream, punctual.take))
        except ExceptionGroup as group:
            raise _cause(group) from None
        punctual.end()

    async def _follow(self, choice: Choice, stream: Stream, emit: Emit) -> None:
        writer = _Writer(choice, self._tokenizer)
        async for delta in stream:
            piece = writer.take(delta)
            if writer.ended_by_text:
                self._client.finish(choice.id)
            await emit(piece)
            if piece.finish is not None:
                return


def _cause(group: ExceptionGroup[Exception]) -> Exception:
    """What can be told to the client if there is such a thing, otherwise our own mistake."""
    return next((error for error in group.exceptions if isinstance(error, ChairliftError)), group.exceptions[0])


@asynccontextmanager
async def submitted(client: EngineClient, tokenizer: Tokenizer, choices: Sequence[Choice]) -> AsyncGenerator[Run]:
    """Submits the requests of all choices, or none: raises Refused if they cannot be taken.

    There is a choice for each sample of each request, in order. Leaving the block ends whatever still runs.
    """
    async with AsyncExitStack() as stack:
        streams = client.submit_all([choice.request for choice in choices if choice.sample == 0])
        for stream in streams:
            await stack.enter_async_context(stream)
        yield Run(client, tokenizer, list(zip(choices, streams, strict=True)))


class _Punctual:
    """Keeps back the choices that ran out of time without a token, until it is known whether there is any answer at all."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._answered = False
        self._late: list[Piece] = []

    async def take(self, piece: Piece) -> None:
        if not self._answered and piece.stop_reason == TIMEOUT and piece.finish == "length" and not piece.tokens:
            self._late.append(piece)
            return
        self._answered = True
        late, self._late = self._late, []
        for earlier in late:
            await self._emit(earlier)
        await self._emit(piece)

    def end(self) -> None:
        if self._late:
            raise TimedOut("the request's time was over before its first token")


class _Writer:
    """Turns the deltas of one choice into pieces."""

    def __init__(self, choice: Choice, tokenizer: Tokenizer) -> None:
        self._choice = choice
        self._lead = choice.lead
        self._cached = 0
        self._answer = Answer(
            tokenizer,
            stops=choice.stops,
            include_stop=choice.include_stop,
            skip_special_tokens=choice.skip_special_tokens,
            min_tokens=choice.request.stopping.min_tokens,
        )

    @property
    def ended_by_text(self) -> bool:
        return self._answer.stopped is not None

    def take(self, delta: Delta) -> Piece:
        if delta.finish == "error":
            raise Failed(str(delta.stop_reason))
        if delta.finish == "abort" and delta.stop_reason != CANCELLED:
            raise Aborted(str(delta.stop_reason or "the request was aborted"))
        self._cached = max(self._cached, delta.cached)
        before = self._answer.tokens
        part = self._answer.take(delta.tokens, delta.finish, delta.stop_reason)
        text, count = self._take_lead() + part.text, self._answer.tokens
        told = tuple(zip(delta.tokens, delta.logprobs, strict=True))[: count - before] if delta.logprobs else ()
        return Piece(self._choice.index, text, count, self._cached, part.ending, part.reason, told)

    def _take_lead(self) -> str:
        lead, self._lead = self._lead, ""
        return lead
