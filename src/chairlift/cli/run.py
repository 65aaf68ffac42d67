"""`chairlift run`: one prompt, one answer, streamed to standard output."""

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chairlift.cli import options
from chairlift.options import AUTO, DEFAULT_EXECUTOR

if TYPE_CHECKING:
    from chairlift.cli.talk import Said, Talker


def run(
    model: options.Model,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What to ask; - reads it from standard input.")],
    raw: Annotated[bool, typer.Option("--raw", help="Complete the prompt as it is, without the chat template.")] = False,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="A system prompt for the chat.")] = None,
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
    stats: Annotated[bool, typer.Option("--stats", help="Print tokens and rates to standard error afterwards.")] = False,
    json: options.Json = None,
) -> None:
    """Answer one prompt.

    For example: chairlift run smollm2 "What is the capital of France?"

    Uses the model's chat template if it has one; a model without one completes the text.
    """
    from chairlift.cli.loading import load_engine
    from chairlift.cli.report import write_json
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
    if system is not None and raw:
        raise typer.BadParameter("--raw completes the prompt as it is: there is no place for --system")
    options.check_stops(stop)
    asked = Asked(Wishes(temperature, top_k, top_p, min_p, seed), max_tokens, tuple(stop or ()))
    text = typer.get_text_stream("stdin").read() if prompt == "-" else prompt
    engine = load_engine(model, wanted, template=chat_template)
    plain = raw or not engine.template.available

    async def answer() -> "Said":
        talker = Talker(engine, asked)
        try:
            return await _ask(talker, text, system=system, plain=plain)
        finally:
            await talker.close()

    said = asyncio.run(answer())
    typer.echo()
    if stats:
        typer.echo(_line(said), err=True)
    if json is not None:
        write_json(json, _figures(model, said))


async def _ask(talker: "Talker", text: str, *, system: str | None, plain: bool) -> "Said":
    if plain:
        tokens = talker.plain_prompt(text)
    else:
        opening = [] if system is None else [{"role": "system", "content": system}]
        tokens = talker.chat_prompt([*opening, {"role": "user", "content": text}])
    return await talker.ask(tokens, lambda piece: typer.echo(piece, nl=False))


def _line(said: "Said") -> str:
    rate = f", then {said.tokens_per_s:.1f} tokens/s" if said.tokens_per_s else ""
    return f"{said.prompt_tokens} + {said.tokens} tokens, first after {said.first_s:.2f} s{rate} ({said.finish})"


def _figures(model: str, said: "Said") -> dict[str, Any]:
    return {
        "model": model,
        "text": said.text,
        "finish_reason": said.finish,
        "prompt_tokens": said.prompt_tokens,
        "completion_tokens": said.tokens,
        "time_to_first_token_s": said.first_s,
        "total_s": said.total_s,
        "output_tokens_per_s": said.tokens_per_s,
    }
