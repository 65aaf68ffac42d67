"""A tokenizer of one token per byte with ChatML's special tokens, a scripted model, and a server around them."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from executors import ShadowExecutor
from mirrored import mirrored
from starlette.applications import Starlette

from chairlift.core.config import EngineConfig
from chairlift.core.types import Plan, TokenizerSource
from chairlift.engine.client import EngineClient
from chairlift.observe.metrics import Metrics, Tally
from chairlift.observe.prometheus import Exposition
from chairlift.observe.trace import Traces
from chairlift.server.app import create_app
from chairlift.server.run import bind, web_server
from chairlift.server.service import Service, State, World, prompt_bytes
from chairlift.server.settings import Settings
from chairlift.text.alphabet import byte_level_alphabet
from chairlift.text.template import ChatTemplate
from chairlift.text.tokenizer import Tokenizer, build

START, END, BOS = 256, 257, 258
"""`<|im_start|>`, `<|im_end|>` (which ends an answer), `<s>`. Bytes are their own ids; extra words follow."""
WORD = 259
"""Id of the first extra word."""

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NEWLINE = 10

CONFIG = EngineConfig(max_model_len=256, num_blocks=64, block_size=16, max_num_seqs=8, max_num_batched_tokens=64)


def source(*, words: tuple[str, ...] = (), add_bos: bool = False, template: str | None = CHATML) -> TokenizerSource:
    """`words` are plain ASCII tokens that no text is encoded to, for a script to draw."""
    spelt = {byte: character for character, byte in byte_level_alphabet().items()}
    specials = ("<|im_start|>", "<|im_end|>", "<s>")
    return TokenizerSource(
        kind="bpe",
        pre="gpt-2",
        tokens=(
            *(spelt[byte] for byte in range(256)),
            *specials,
            *("".join(spelt[byte] for byte in word.encode()) for word in words),
        ),
        types=(1,) * 256 + (3,) * len(specials) + (1,) * len(words),
        bos_id=BOS,
        eos_ids=(END,),
        add_bos=add_bos,
        templates={} if template is None else {"default": template},
    )


def script(*answer: int | str | bytes) -> Callable[[tuple[int, ...]], int]:
    """A model that answers with these tokens (texts as bytes), then ends. Prompts end with a newline; the answer has none."""
    tokens: list[int] = []
    for part in answer:
        tokens += [part] if isinstance(part, int) else list(part.encode() if isinstance(part, str) else part)
    assert NEWLINE not in tokens

    def next_token(prefix: tuple[int, ...]) -> int:
        place = len(prefix) - 1 - max(index for index, token in enumerate(prefix) if token == NEWLINE)
        return tokens[place] if place < len(tokens) else END

    return next_token


PATIENCE_S = 30.0
"""After which a condition is taken for one that never comes true. Only tests that fail take so long."""


async def until(condition: Callable[[], object]) -> None:
    """Waits for what the engine's thread, or a socket, will bring about: neither says when it has."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def letters(prefix: tuple[int, ...]) -> int:
    """A model that never ends, and whose text tells prompts apart."""
    return ord("a") + (sum(prefix) + len(prefix)) % 26


class GatedExecutor(ShadowExecutor):
    """Computes as many steps as it is allowed to, then waits. `fail` makes steps raise: all of them, or with `sound` only those
    that compute something for somebody.
    """

    def __init__(self, num_blocks: int, block_size: int, next_token: Callable[[tuple[int, ...]], int]) -> None:
        super().__init__(num_blocks, block_size, next_token)
        self._permits = threading.Semaphore(0)
        self._free = threading.Event()
        self.fail: str | None = None
        self.sound = False

    def allow(self, steps: int = 1) -> None:
        self._permits.release(steps)

    def open(self) -> None:
        """No more waiting."""
        self._free.set()
        self._permits.release()

    def launch(self, plan: Plan) -> None:
        if not self._free.is_set():
            self._permits.acquire()
        if self.fail is not None and not (self.sound and all(work.pad for work in plan.work)):
            self.drop()
            raise RuntimeError(self.fail)
        super().launch(plan)


@dataclass
class Server:
    """Everything a test may want to look at."""

    app: Starlette
    state: State
    service: Service
    client: EngineClient
    executor: ShadowExecutor
    metrics: Metrics
    http: httpx.AsyncClient

    async def post(self, path: str, body: Any, **more: Any) -> httpx.Response:
        return await self.http.post(path, content=body if isinstance(body, bytes) else json.dumps(body), **more)

    async def chat(self, text: str = "hi", **fields: Any) -> httpx.Response:
        return await self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]} | fields)

    async def complete(self, prompt: Any = "hi\n", **fields: Any) -> httpx.Response:
        return await self.post("/v1/completions", {"prompt": prompt} | fields)

    async def settled(self) -> None:
        """Waits until nobody runs or waits and all blocks are free; that it gets there at all is the test."""

        def free() -> bool:
            now = self.client.snapshot()
            return (now.running, now.waiting, now.free_blocks) == (0, 0, now.total_blocks)

        await until(free)

    async def taken(self, count: int = 1) -> None:
        """Waits until so many choices are in flight."""
        await until(lambda: len(self.client._streams) == count)

    async def counted(self, ended: int) -> Tally:
        """The metrics once they count so many ended requests; sinks hear of a step a moment after its readers."""
        await until(lambda: sum(self.metrics.read().finished.values()) >= ended)
        return self.metrics.read()


@dataclass(frozen=True)
class Setup:
    """What differs between servers under test."""

    next_token: Callable[[tuple[int, ...]], int] = letters
    config: EngineConfig = CONFIG
    settings: Settings = field(default_factory=Settings)
    source: TokenizerSource = field(default_factory=source)
    defaults: Mapping[str, float] = field(default_factory=dict)
    executor: type[ShadowExecutor] = ShadowExecutor
    world: World = field(default_factory=World)
    clock: Callable[[], float] = time.monotonic
    """The engine's."""


def make_service(setup: Setup) -> tuple[Service, ShadowExecutor, Metrics]:
    """To be called on the event loop."""
    config = setup.config
    executor = setup.executor(config.num_blocks, config.block_size, setup.next_token)
    metrics, traces = Metrics(), Traces()
    client = EngineClient(config, mirrored(executor, config), sinks=[metrics, traces], clock=setup.clock).start()
    tokenizer: Tokenizer = build(setup.source)
    service = Service(
        names=("tiny", "alias"),
        tokenizer=tokenizer,
        template=ChatTemplate(setup.source, tokenizer),
        client=client,
        metrics=Exposition(metrics, model_name="tiny", config=config),
        created=1,
        fingerprint="chairlift-test",
        max_prompt_bytes=prompt_bytes(tokenizer, client.longest),
        settings=setup.settings,
        defaults=setup.defaults,
        world=setup.world,
        traces=traces,
    )
    return service, executor, metrics


@asynccontextmanager
async def serving(setup: Setup | None = None, *, real: bool = False, **changes: Any) -> AsyncGenerator[Server]:
    """A server that is ready, reached without a socket, or through one on a free port if `real`."""
    setup = setup or Setup(**changes)
    state = State(setup.settings)
    service, executor, metrics = make_service(setup)
    state.ready(service)
    app = create_app(state)
    try:
        async with _reached(app, real=real) as http:
            yield Server(app, state, service, service.client, executor, metrics, http)
    finally:
        if isinstance(executor, GatedExecutor):
            executor.open()
        await service.client.close()


@asynccontextmanager
async def _reached(app: Starlette, *, real: bool) -> AsyncGenerator[httpx.AsyncClient]:
    if not real:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            yield http
        return
    async with listening(app) as url, httpx.AsyncClient(base_url=url, timeout=20) as http:
        yield http


@asynccontextmanager
async def listening(app: Starlette) -> AsyncGenerator[str]:
    """The app behind a real uvicorn on a free port of the loopback."""
    with bind("127.0.0.1", 0) as listener:
        server = web_server(app)
        running = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            server.force_exit = True
            await running
