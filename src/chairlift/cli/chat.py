"""`chairlift chat`: a conversation in the terminal. Ctrl-C ends an answer, Ctrl-D the program."""

import asyncio
import contextlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from chairlift.cli import options
from chairlift.core.errors import ChairliftError, NeverFits, TemplateError, Unavailable
from chairlift.models.fetch import DEFAULT_MODEL
from chairlift.options import AUTO, DEFAULT_EXECUTOR

if TYPE_CHECKING:
    from chairlift.cli.talk import Messages, Talker

HELP = "/new starts afresh, /exit or Ctrl-D ends, Ctrl-C stops an answer"


def chat(
    model: options.Model = DEFAULT_MODEL,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="A system prompt, before everything else.")] = None,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    min_p: options.MinP = None,
    seed: options.Seed = None,
    stop: options.Stop = None,
    max_model_len: options.MaxModelLen = None,
    kv_cache_memory_bytes: options.KvCacheMemoryBytes = None,
    executor: options.Executor = DEFAULT_EXECUTOR,
    threads: options.Threads = None,
    isa: options.Isa = AUTO,
    quantization: options.Quantization = AUTO,
    kv_cache_dtype: options.KvCacheDtype = AUTO,
    device: options.Device = AUTO,
    dtype: options.Dtype = AUTO,
    attention_backend: options.AttentionBackend = AUTO,
    enforce_eager: options.EnforceEager = False,
    tensor_parallel_size: options.TensorParallelSize = 1,
    chat_template: options.ChatTemplateFile = None,
) -> None:
    """Talk with a model in the terminal.

    Ctrl-C stops the answer and not the program; Ctrl-D or /exit ends it; /new forgets the conversation.
    """
    from chairlift.cli.loading import load_engine
    from chairlift.cli.talk import Asked, Talker
    from chairlift.compose import EngineOptions
    from chairlift.core.wishes import Wishes

    wanted = EngineOptions(
        max_model_len=max_model_len,
        max_num_seqs=1,
        kv_cache_memory_bytes=kv_cache_memory_bytes,
        executor=executor,
        threads=threads,
        isa=isa,
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        device=device,
        dtype=dtype,
        attention_backend=attention_backend,
        enforce_eager=enforce_eager,
        tensor_parallel_size=tensor_parallel_size,
    )
    options.check_stops(stop)
    asked = Asked(Wishes(temperature, top_k, top_p, min_p, seed), max_tokens, tuple(stop or ()))
    engine = load_engine(model, wanted, template=chat_template)
    if not engine.template.available:
        raise TemplateError(
            f"{model} has no chat template: complete text with `chairlift run --raw`, or give one with --chat-template FILE"
        )

    async def begin() -> Talker:
        return Talker(engine, asked)

    # The loop runs while an answer comes and stands still while the user types: so Ctrl-C always reaches the right one.
    with asyncio.Runner() as runner:
        talker = runner.run(begin())
        try:
            _Conversation(runner, talker, system).hold(_read_line if sys.stdin.isatty() else _read_piped)
        finally:
            runner.run(talker.close())


class _Conversation:
    """The messages so far. What was said of a stopped answer stays."""

    def __init__(self, runner: asyncio.Runner, talker: "Talker", system: str | None) -> None:
        self._runner = runner
        self._talker = talker
        self._opening = [] if system is None else [{"role": "system", "content": system}]
        self._messages: list[dict[str, str]] = []

    def hold(self, read: Callable[[], str | None]) -> None:
        typer.echo(HELP, err=True)
        while (line := read()) is not None:
            match line.strip():
                case "":
                    continue
                case "/exit" | "/quit":
                    return
                case "/new" | "/clear":
                    self._messages = []
                    typer.echo("a new conversation", err=True)
                case "/help":
                    typer.echo(HELP, err=True)
                case text:
                    self._turn(text)

    def _turn(self, text: str) -> None:
        question = {"role": "user", "content": text}
        said: list[str] = []

        def say(piece: str) -> None:
            said.append(piece)
            typer.echo(piece, nl=False)

        try:
            self._runner.run(self._answer([*self._opening, *self._messages, question], say))
        except KeyboardInterrupt:
            typer.echo(" (stopped)", err=True)
        except Unavailable:
            raise
        except NeverFits as error:
            typer.echo(f"error: {error}; /new starts afresh", err=True)
            return
        except ChairliftError as error:
            typer.echo(f"error: {error}", err=True)
            return
        typer.echo()
        self._messages += [question, {"role": "assistant", "content": "".join(said)}]

    async def _answer(self, messages: "Messages", say: Callable[[str], None]) -> None:
        await self._talker.ask(self._talker.chat_prompt(messages), say)


def _read_line() -> str | None:
    """A line typed at the prompt; None at the end. Ctrl-C drops the line and says how to leave."""
    with contextlib.suppress(ImportError):  # some Pythons are built without it
        import readline  # noqa: F401  (input() then edits and recalls lines)
    while True:
        try:
            return input("> ")
        except EOFError:
            typer.echo()
            return None
        except KeyboardInterrupt:
            typer.echo(f"\n{HELP}", err=True)


def _read_piped() -> str | None:
    return sys.stdin.readline() or None
