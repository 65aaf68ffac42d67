"""Talks to an engine in this process: prompts in, text out, for the commands without a server. Knows no terminal."""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from chairlift.compose import Engine
from chairlift.core.errors import ModelError, Unavailable
from chairlift.core.types import Request, Sampling, Stopping
from chairlift.core.wishes import Wishes, sampling
from chairlift.engine.client import EngineClient
from chairlift.text.answer import Answer, Ending
from chairlift.text.template import encode_chat

SEED_BITS = 64
DEFAULT_TEMPERATURE = 0.7
"""For models whose files recommend none."""

Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Asked:
    """How answers are to be drawn and where they end. None: as the model recommends, and as long as the context has room."""

    wishes: Wishes = field(default_factory=Wishes)
    max_tokens: int | None = None
    stops: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Said:
    """An answer that has ended, with its figures.

    `tokens` counts the one that ended it. `first_s` is the time to the first token, `total_s` to the last.
    """

    text: str
    finish: Ending
    prompt_tokens: int
    tokens: int
    cached: int
    first_s: float
    total_s: float

    @property
    def tokens_per_s(self) -> float | None:
        """The rate after the first token; None if there is only one."""
        return (self.tokens - 1) / (self.total_s - self.first_s) if self.tokens > 1 and self.total_s > self.first_s else None


class Talker:
    """One engine and its client. Make it on the event loop that asks."""

    def __init__(
        self,
        engine: Engine,
        asked: Asked,
        *,
        clock: Callable[[], float] = time.perf_counter,
        randbits: Callable[[int], int] = secrets.randbits,
    ) -> None:
        self._engine = engine
        self._asked = asked
        self._client = EngineClient(engine.fit.config, engine.executor).start()
        self._clock = clock
        self._randbits = randbits
        self._count = 0

    def chat_prompt(self, messages: Messages) -> list[int]:
        """The tokens of a conversation, ready for the assistant's turn. TemplateError if the model cannot chat."""
        return encode_chat(self._engine.tokenizer, self._engine.template.render(messages))

    def plain_prompt(self, text: str) -> list[int]:
        return self._engine.tokenizer.encode(text)

    async def ask(self, prompt: list[int], say: Callable[[str], None]) -> Said:
        """Hands text to `say` as it comes.

        Raises NeverFits for a prompt that is too long, ModelError if the answer fails, and Unavailable if the engine has failed
        for good.

        Cancelling it ends the answer and frees its memory.
        """
        request = self._request(prompt)
        answer = Answer(self._engine.tokenizer, stops=self._asked.stops)
        began = self._clock()
        first, cached, finish = None, 0, None
        parts: list[str] = []
        async with self._client.submit(request) as stream:
            async for delta in stream:
                if delta.finish in ("error", "abort"):
                    raise (Unavailable if self._client.health() == "failed" else ModelError)(str(delta.stop_reason))
                first = first or self._clock()
                cached = max(cached, delta.cached)
                part = answer.take(delta.tokens, delta.finish)
                parts.append(part.text)
                say(part.text)
                finish = part.ending
                if finish is not None:
                    break
        ended = self._clock()
        assert finish is not None
        return Said("".join(parts), finish, len(prompt), answer.tokens, cached, (first or ended) - began, ended - began)

    async def close(self) -> None:
        await self._client.close()

    def _request(self, prompt: list[int]) -> Request:
        self._count += 1
        otherwise = Sampling(temperature=DEFAULT_TEMPERATURE, seed=self._randbits(SEED_BITS))
        return Request(
            id=f"talk-{self._count}",
            prompt=tuple(prompt),
            stopping=Stopping(
                max_tokens=self._asked.max_tokens or max(1, self._client.longest - len(prompt)),
                eos_ids=frozenset(self._engine.tokenizer.eos_ids),
            ),
            sampling=sampling(self._asked.wishes, self._engine.model.defaults, otherwise),
            arrival=self._client.now(),
        )
