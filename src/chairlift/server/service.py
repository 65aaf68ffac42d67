"""What the routes serve: one model behind one engine, and the state that the server is in. Knows no HTTP."""

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from chairlift.core.errors import Unavailable
from chairlift.engine.client import EngineClient
from chairlift.observe.prometheus import Exposition
from chairlift.observe.trace import Traces
from chairlift.server.flights import Flights
from chairlift.server.settings import Settings
from chairlift.text.template import ChatTemplate
from chairlift.text.tokenizer import Tokenizer

SEED_BITS = 64
BYTES_PER_CHARACTER = 4
"""UTF-8's longest: a tokenizer that normalises its input may make one byte of so many."""


@dataclass(frozen=True, slots=True)
class World:
    """Time and chance, as the routes use them."""

    now: Callable[[], float] = time.time
    """Seconds since 1970, for `created`."""
    randbits: Callable[[int], int] = secrets.randbits

    def seed(self) -> int:
        return self.randbits(SEED_BITS)

    def token(self) -> str:
        """A name that nobody else has: 128 random bits in hexadecimal."""
        return f"{self.randbits(128):032x}"


@dataclass(frozen=True, slots=True)
class Service:
    """A model that is ready. The first of `names` is its own; `defaults` are the sampling settings that its files recommend.

    `max_prompt_bytes` bounds the text of one prompt: more cannot be tokens of one request (`prompt_bytes`).
    """

    names: tuple[str, ...]
    tokenizer: Tokenizer
    template: ChatTemplate
    client: EngineClient
    metrics: Exposition
    created: int
    fingerprint: str
    max_prompt_bytes: int
    settings: Settings = field(default_factory=Settings)
    defaults: Mapping[str, float] = field(default_factory=dict[str, float])
    world: World = field(default_factory=World)
    flights: Flights = field(default_factory=Flights)
    traces: Traces = field(default_factory=Traces)
    """A sink of the engine as well."""


def prompt_bytes(tokenizer: Tokenizer, longest: int) -> int:
    """The most bytes of UTF-8 that `longest` tokens can come from. Takes a look at the whole vocabulary."""
    widest = max(len(tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size))
    return longest * max(widest, 1) * BYTES_PER_CHARACTER


class State:
    """Loading, then ready, then draining. Changed by `run` only, read by every route, all on one event loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._service: Service | None = None
        self._draining = False

    def ready(self, service: Service) -> None:
        self._service = service

    def drain(self) -> None:
        """From now on health is bad and new requests are refused."""
        self._draining = True

    @property
    def service(self) -> Service:
        """Raises Unavailable while there is none."""
        if self._service is None:
            raise Unavailable("the model is loading; try again in a moment")
        return self._service

    @property
    def accepting(self) -> Service:
        """The service, for routes that give the engine work. Raises Unavailable when it takes none."""
        service = self.service
        if self._draining:
            raise Unavailable("the server is shutting down")
        return service

    def check_health(self) -> None:
        """Raises Unavailable if requests would not be served. A busy engine is a healthy one."""
        health = self.accepting.client.health()
        if health != "ok":
            raise Unavailable(f"the engine is {health}")
