"""How the world talks to an engine: submit a request, get a stream of its tokens. Lives on one asyncio event loop.

Knows tokens and endings; knows neither text nor HTTP. The engine's thread sends one message per step, whatever the number of
streams; a stream is a mailbox with one slot that merges what its reader has not fetched yet, so a slow reader costs nobody else
anything.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from types import TracebackType
from typing import NamedTuple, Self

from chairlift.core.config import EngineConfig
from chairlift.core.errors import NeverFits, QueueFull, Refused, Unavailable
from chairlift.core.events import Health, Step
from chairlift.core.ports import Executor, Sink
from chairlift.core.types import CANCELLED, Finish, Logprobs, Output, Request, Snapshot, Standing, choice_ids
from chairlift.engine.backlog import Backlog
from chairlift.engine.core import Ask, End, EngineCore, Submit
from chairlift.engine.loop import EngineLoop
from chairlift.engine.refusals import Refusals
from chairlift.schedule import door

MIN_RETRY_S, MAX_RETRY_S = 1, 120
ASKING_S = 10.0
"""Whoever asks how everyone stands waits for the running step, but no longer than this."""


class Delta(NamedTuple):
    """What has come since the reader last looked. `stop_reason` is a stop token, or the message of an error.

    `logprobs` has one entry for each token if the request asked for them.
    """

    tokens: tuple[int, ...] = ()
    finish: Finish | None = None
    stop_reason: int | str | None = None
    cached: int = 0
    logprobs: tuple[Logprobs, ...] = ()


class Stream:
    """The answer to a request, or one choice of it; `id` is the choice's.

    Use it as `async with client.submit(request) as stream: async for delta in stream: ...`.

    Leaving the block before the end aborts this choice, once. The last delta, and only it, has a `finish`.
    """

    def __init__(self, choice: str, leave: Callable[[str], None]) -> None:
        self.id = choice
        self._leave = leave
        self._tokens: list[int] = []
        self._logprobs: list[Logprobs] = []
        self._last = Output(choice)
        self._filled = asyncio.Event()
        self._ended = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave(self.id)

    async def __aiter__(self) -> AsyncIterator[Delta]:
        while not self._ended:
            await self._filled.wait()
            self._filled.clear()
            tokens, self._tokens = self._tokens, []
            logprobs, self._logprobs = self._logprobs, []
            last = self._last
            self._ended = last.finish is not None
            yield Delta(tuple(tokens), last.finish, last.stop_reason, last.cached, tuple(logprobs))

    def put(self, output: Output) -> None:
        """Called by the client for every output of this choice; the slot keeps all tokens and the latest of the rest."""
        self._tokens.extend(output.tokens)
        self._logprobs.extend(output.logprobs)
        self._last = output
        self._filled.set()


class _Room(NamedTuple):
    """How much may wait, of whom `parts` tenants share it.

    When it is full, a tenant still gets in who would have no more than an equal part of it: otherwise one that fills the queue
    would keep all others out, before anybody can be fair to them. For them there is as much room again, and no more.
    """

    size: int
    parts: int

    def has(self, waiting: int, own: int, more: int) -> bool:
        if waiting + more <= self.size:
            return True
        return self.parts > 1 and own + more <= self.size // self.parts and waiting + more <= 2 * self.size


def _prompt_tokens(requests: Iterable[Request]) -> int:
    """Choices of one request have their prompt in common."""
    return sum(len(request.prompt) for request in {one.id: one for one in requests}.values())


class EngineClient:
    """One engine in a thread of this process. Make and `start` it on the event loop that uses it; `close` it at the end."""

    def __init__(
        self,
        config: EngineConfig,
        executor: Executor,
        *,
        sinks: Iterable[Sink] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.longest = door.longest(config)
        """The most tokens that one request may have, prompt and answer together."""
        self._core = EngineCore(config, executor)
        self._home = asyncio.get_running_loop()
        self._loop = EngineLoop(self._core, clock=clock, publish=self._publish, failed=self._engine_failed, sinks=sinks)
        self._streams: dict[str, Stream] = {}
        self._queued: dict[str, Request] = {}
        """Choices of requests that have not been admitted yet."""
        self._snapshot = self._core.scheduler.snapshot()
        self._closed: str | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._backlog = Backlog()
        self._refusals = Refusals()

    def start(self) -> Self:
        """Starts the engine's thread."""
        self._loop.start()
        return self

    def now(self) -> float:
        """The engine's clock, for `Request.arrival`."""
        return self._loop.clock()

    def submit(self, request: Request) -> Stream:
        """Queues a request of one choice. Raises NeverFits, QueueFull or Unavailable; a refused one leaves no trace."""
        [stream] = self.submit_all([request])
        return stream

    def submit_all(self, requests: Sequence[Request]) -> list[Stream]:
        """Queues requests that belong together: all of them, or none. Raises as `submit`.

        A stream for every choice of the first, of the second, and so on.
        """
        closed = self._closed or self._loop.failure
        if closed is not None:
            raise Unavailable(closed)
        try:
            for request in requests:
                door.check(request, self.config)
                self._refusals.check(request.prompt, self.now())
            self._check_queue(requests)
        except QueueFull as full:
            self._loop.tell_refusal(full.limit)
            raise
        except NeverFits:
            self._loop.tell_refusal("never_fits")
            raise
        except Refused:
            self._loop.tell_refusal("other")
            raise
        return [stream for request in requests for stream in self._enqueue(request)]

    def abort(self, choice: str) -> None:
        """Ends a choice whose client has left. One that has ended is left alone."""
        self._end(choice, "abort")

    def cancel(self, choice: str) -> None:
        """Ends a choice whose client may still be there, as "abort" with stop reason CANCELLED."""
        self._end(choice, "abort", CANCELLED)

    def finish(self, choice: str) -> None:
        """Ends a choice whose text is complete, as "stop"."""
        self._end(choice, "stop")

    def snapshot(self) -> Snapshot:
        """The engine after its last step."""
        return self._snapshot

    async def standings(self) -> tuple[Standing, ...]:
        """How everyone in flight stands after the running step. Raises Unavailable if the engine does not say."""
        if self.health() not in ("ok", "stalled"):
            raise Unavailable(f"the engine is {self.health()}")
        asked: asyncio.Future[tuple[Standing, ...]] = self._home.create_future()
        self._loop.send(Ask(lambda answer: self._publish_answer(asked, answer)))
        try:
            async with asyncio.timeout(ASKING_S):
                return await asked
        except TimeoutError:
            raise Unavailable("the engine is busy with a long step") from None

    def wait_s(self, waiting: int) -> float:
        """How long it will take until so many who wait have got on, as measured."""
        return self._backlog.wait_s(self.now(), waiting=waiting)

    def health(self) -> Health:
        return self._loop.health()

    async def drain(self, timeout_s: float) -> None:
        """Refuses new requests, waits for those in flight, and aborts what is left after `timeout_s`."""
        self._closed = self._closed or "the server is shutting down"
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            for request_id, stream in list(self._streams.items()):
                self._loop.send(End(request_id, "abort"))
                self._deliver_one(stream, Output(request_id, finish="abort", stop_reason=self._closed))

    async def close(self) -> None:
        """Ends whatever is still in flight, and the thread."""
        await self.drain(0)
        await asyncio.to_thread(self._loop.stop)

    def _enqueue(self, request: Request) -> list[Stream]:
        streams = [Stream(choice, self.abort) for choice in choice_ids(request)]
        for stream in streams:
            assert stream.id not in self._streams, "ids of requests in flight are unique"
            self._streams[stream.id] = stream
            self._queued[stream.id] = request
        self._idle.clear()
        self._loop.send(Submit(request))
        return streams

    def _end(self, choice: str, finish: Finish, reason: str | None = None) -> None:
        stream = self._streams.get(choice)
        if stream is not None:
            self._loop.send(End(choice, finish, reason))
            self._deliver_one(stream, Output(choice, finish=finish, stop_reason=reason))

    def _forget(self, choice: str) -> None:
        self._queued.pop(choice, None)
        self._streams.pop(choice, None)
        if not self._streams:
            self._idle.set()

    def _check_queue(self, requests: Sequence[Request]) -> None:
        """Whoever finds a free place does not count as waiting; the tokens of a job may always wait if nobody else does.

        Every choice counts, as it will need a place; the prompt that it has in common with others counts once.
        """
        config, queued, count = self.config, len(self._queued), sum(request.samples for request in requests)
        if count > config.max_num_seqs + config.max_num_queued_reqs:
            raise NeverFits(
                f"the request wants {count} answers, but at most {config.max_num_seqs} can run"
                f" and {config.max_num_queued_reqs} wait"
            )
        tenant = requests[0].tenant if requests else ""
        free_places = max(0, config.max_num_seqs - (len(self._streams) - queued))
        own = [one for one in self._queued.values() if one.tenant == tenant]
        room = _Room(
            config.max_num_queued_reqs + free_places, parts=len({one.tenant for one in self._queued.values()} | {tenant})
        )
        if not room.has(queued, len(own), count):
            raise self._full("max_num_queued_reqs", f"{queued} requests are waiting already")
        if config.max_num_queued_tokens is None or not queued:
            return
        waiting, tokens = _prompt_tokens(self._queued.values()), _prompt_tokens(requests)
        room = _Room(config.max_num_queued_tokens, parts=room.parts)
        if not room.has(waiting, _prompt_tokens(own), tokens):
            raise self._full("max_num_queued_tokens", f"{waiting} prompt tokens are waiting already")

    def _full(self, limit: str, what: str) -> QueueFull:
        wait_s = math.ceil(self.wait_s(len(self._queued)))
        return QueueFull(
            f"the queue is full: {what}; try again later",
            limit=limit,
            retry_after_s=min(max(wait_s, MIN_RETRY_S), MAX_RETRY_S),
        )

    # ── from the engine's thread to the event loop ────────────────────────────────────────────────────────────────────────

    def _publish(self, step: Step) -> None:
        self._call_home(self._deliver, step)

    def _publish_answer(self, asked: asyncio.Future[tuple[Standing, ...]], answer: tuple[Standing, ...]) -> None:
        self._call_home(lambda: None if asked.done() else asked.set_result(answer))

    def _engine_failed(self, message: str) -> None:
        self._call_home(self._deliver_failure, message)

    def _call_home(self, call: Callable[..., object], *told: object) -> None:
        """Nobody listens any more where the event loop is closed, as after a second signal in the midst of a step."""
        try:
            self._home.call_soon_threadsafe(call, *told)
        except RuntimeError:
            if not self._home.is_closed():
                raise

    def _deliver(self, step: Step) -> None:
        self._snapshot = step.snapshot
        for admitted in step.admitted:
            for choice in choice_ids(admitted.request):
                self._queued.pop(choice, None)
        for request in step.blamed:
            self._refusals.add(request.prompt, self.now())
        for output in step.outputs:
            stream = self._streams.get(output.seq_id)
            if stream is not None:
                self._deliver_one(stream, output)

    def _deliver_one(self, stream: Stream, output: Output) -> None:
        stream.put(output)
        if output.finish is not None:
            self._backlog.ended(self.now(), waiting=len(self._queued))
            self._forget(output.seq_id)

    def _deliver_failure(self, message: str) -> None:
        for request_id, stream in list(self._streams.items()):
            self._deliver_one(stream, Output(request_id, finish="error", stop_reason=message))
