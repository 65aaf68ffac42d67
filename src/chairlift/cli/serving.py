"""Puts a server together and tells the terminal about it: the address, what is served, and a request to try."""

import contextlib
import hashlib
import json
import logging
import shlex
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from chairlift import __version__, compose, machine
from chairlift.cli import garbage
from chairlift.cli.loading import sources, user_console
from chairlift.cli.report import NO_TEMPLATE
from chairlift.core.errors import ConfigError
from chairlift.core.ports import Sink
from chairlift.engine.client import EngineClient
from chairlift.engine.tape import Writer
from chairlift.observe.metrics import Metrics
from chairlift.observe.prometheus import Exposition
from chairlift.observe.record import Recorder, create
from chairlift.observe.trace import Traces
from chairlift.schedule.door import longest
from chairlift.server import run as server
from chairlift.server.service import Service, World, prompt_bytes
from chairlift.server.settings import PRIORITIES, Settings

QUESTION = "What is the capital of France?"
SWITCH_S = 0.0005
"""Longest that a thread keeps Python's lock while another wants it. The engine wants it after every step, and the usual
5 ms are as long as a step.
"""


ONE_RUN = "contiguous: every request reserves room for its longest answer, and prefixes are not shared"
KEY_BITS = 256
"""Of the key that records are made unreadable with. It is forgotten with the process."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Everything that the command line says about a server. Without `names` the model is called what it was asked for."""

    model: str
    host: str
    port: int
    names: tuple[str, ...]
    chat_template: Path | None
    engine: compose.EngineOptions
    settings: Settings
    record: Path | None = None
    """Where the decisions of the scheduler are written down."""


def run(asked: Asked) -> int:
    """Serves until a signal or a failure, and returns the exit code. ConfigError if it cannot even begin."""
    compose.check_options(asked.engine)
    template = None if asked.chat_template is None else compose.read_template(asked.chat_template)
    console = user_console()
    _log_to_stderr()
    sys.setswitchinterval(SWITCH_S)
    with contextlib.ExitStack() as at_end, server.bind(asked.host, asked.port) as listener:
        address = _address(asked.host, listener)
        _say(console, f"{address} is ours; loading {asked.model} (until then requests get 503)")

        def load() -> Callable[[], Service]:
            engine = compose.load(
                asked.model,
                asked.engine,
                sources=sources(console),
                free_bytes=machine.free_memory(),
                template=template,
            )
            widest = prompt_bytes(engine.tokenizer, longest(engine.fit.config))
            garbage.spare()

            def start() -> Service:
                recorders = [] if asked.record is None else [_recorder(engine, asked, asked.record)]
                for recorder in recorders:
                    at_end.callback(recorder.close)
                service = _service(engine, asked, recorders, max_prompt_bytes=widest)
                for line in banner(engine, asked, address):
                    _say(console, line)
                return service

            return start

        return server.serve(listener, load, asked.settings)


def _recorder(engine: compose.Engine, asked: Asked, path: Path) -> Recorder:
    """ConfigError if there can be no such file."""
    world = World()
    writer = Writer(engine.fit.config, key=world.randbits(KEY_BITS).to_bytes(KEY_BITS // 8, "little"))
    header = writer.header(version=__version__, model=_names(engine, asked)[0], started=world.now())
    try:
        return Recorder(create(path), writer, header).start()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def _service(engine: compose.Engine, asked: Asked, recorders: Sequence[Sink], *, max_prompt_bytes: int) -> Service:
    metrics, traces, world = Metrics(), Traces(), World()
    names = _names(engine, asked)
    return Service(
        names=names,
        tokenizer=engine.tokenizer,
        template=engine.template,
        client=EngineClient(engine.fit.config, engine.executor, sinks=[metrics, traces, *recorders]).start(),
        metrics=Exposition(metrics, model_name=names[0], config=engine.fit.config),
        created=int(world.now()),
        fingerprint=fingerprint(engine),
        max_prompt_bytes=max_prompt_bytes,
        settings=asked.settings,
        defaults=engine.model.defaults,
        world=world,
        traces=traces,
    )


def _names(engine: compose.Engine, asked: Asked) -> tuple[str, ...]:
    return asked.names or (engine.model.name,)


def fingerprint(engine: compose.Engine) -> str:
    """A short name for what the texts of this server depend on, beside the request itself."""
    parts = (__version__, engine.model.name, engine.model.quantization, *engine.fit.computes.arithmetic)
    return "fp_" + hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def banner(engine: compose.Engine, asked: Asked, address: str) -> list[str]:
    """What is served, and a request that can be pasted into another terminal."""
    model, fit = engine.model, engine.fit
    names = _names(engine, asked)
    shrunk = fit.config.max_model_len < fit.context and asked.engine.max_model_len is None
    why = f": as much as fits, the model could have {fit.context:,}" if shrunk else ""
    pool = f"{fit.config.num_blocks:,} blocks of {fit.config.block_size} tokens, room for {fit.full_contexts:.1f} full contexts"
    weights = f"{model.quantization}, {fit.apiece(fit.weight_bytes)} in memory"
    return [
        f"model     {', '.join(names)}: {model.description.architecture}, {weights}",
        f"compute   {fit.computes.words}{', two steps in flight' if fit.config.depth == 2 else ''}",
        f"context   {fit.config.max_model_len:,} tokens{why}",
        f"KV cache  {fit.apiece(fit.kv.kv_bytes)}: {pool}",
        *([f"swap      {_swap(fit)}"] if fit.config.num_host_blocks else []),
        *([f"layout    {ONE_RUN}"] if fit.config.kv_layout == "contiguous" else []),
        f"order     {fit.config.scheduling_policy}; {_who(asked.settings)}",
        *([] if engine.template.available else [f"template  {NO_TEMPLATE}"]),
        *([] if asked.record is None else [f"record    {asked.record}"]),
        f"address   {address}/v1",
        "try       " + _curl(engine, names[0], asked.settings, address),
    ]


def _swap(fit: compose.Fit) -> str:
    blocks = fit.config.num_host_blocks
    contexts = blocks / -(-fit.config.max_model_len // fit.config.block_size)
    return f"{fit.apiece(fit.host_bytes)} of host memory: {blocks:,} blocks, room for {contexts:.1f} full contexts"


def _who(settings: Settings) -> str:
    """Who shares the machine, and what clients may say about who goes first."""
    if settings.api_keys:
        tenants = "a tenant is an API key"
    elif settings.tenant_header is not None:
        proxies = ", ".join(str(network) for network in settings.trusted_proxies)
        tenants = f"a tenant is what {proxies} put into {settings.tenant_header}"
    else:
        tenants = "a tenant is a request's `user`"
    classes = ", ".join(one.name for one in settings.slo_classes)
    slo = f"; slo_class: {classes}" if classes else ""
    return f"{tenants}; priorities from {settings.most_urgent} to {PRIORITIES}{slo}"


def _curl(engine: compose.Engine, name: str, settings: Settings, address: str) -> str:
    if engine.template.available:
        path = "/v1/chat/completions"
        body = {"model": name, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
    else:
        path = "/v1/completions"
        body = {"model": name, "prompt": "The capital of France is", "max_tokens": 16, "temperature": 0}
    key = " -H 'Authorization: Bearer YOUR_KEY'" if settings.api_keys else ""
    return f"curl {address}{path} -H 'Content-Type: application/json'{key} -d {shlex.quote(json.dumps(body))}"


def _address(host: str, listener: socket.socket) -> str:
    """A URL that works on this machine: of the port that was really taken, and with a name for "everywhere"."""
    port = listener.getsockname()[1]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http://{shown}:{port}"


def _say(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, markup=False)


def _log_to_stderr() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S")
    for chatty in ("uvicorn", "httpx", "huggingface_hub"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
