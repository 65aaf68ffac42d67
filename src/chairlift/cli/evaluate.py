"""`chairlift evaluate`: the flags of its commands. What happens with them is in `accuracy` and `sameness`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from chairlift.cli import options
from chairlift.models.fetch import DEFAULT_MODEL
from chairlift.options import AUTO

DEFAULT_WINDOW = 512
DEFAULT_TRIALS = 24

HELP = "Check what the compiled executor computes: how accurate it is, and that no company changes a bit of it."


def perplexity(
    model: options.Model = DEFAULT_MODEL,
    text: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Text to predict, in UTF-8. Default: English prose that comes with the program."),
    ] = None,
    window: Annotated[
        int, typer.Option(min=2, metavar="TOKENS", help="The text is cut into pieces of this length.")
    ] = DEFAULT_WINDOW,
    tokens: Annotated[
        int | None,
        typer.Option(parser=options.count, metavar="N", help="Use only so much of the text; accepts 2k. Default: all of it."),
    ] = None,
    quantization: Annotated[
        str, typer.Option(metavar="LIST", help="How weights are held, such as auto,int8: each is tried.")
    ] = AUTO,
    kv_cache_dtype: Annotated[
        str, typer.Option(metavar="LIST", help="How keys and values are held, such as f32,f16: each is tried.")
    ] = AUTO,
    threads: options.Threads = None,
    isa: options.Isa = AUTO,
    json: options.Json = None,
) -> None:
    """Say how much accuracy the compiled executor gives up.

    For example: chairlift evaluate perplexity smollm2 --kv-cache-dtype f32,f16

    Perplexity says how well a model predicts a text; less is better. It is measured with the float32 reference and with the
    compiled executor, on the same weights and the same text, so that the difference is rounding alone. The reference is slow:
    minutes for the whole text. All combinations of the two lists are tried.
    """
    from chairlift.cli.accuracy import Asked, run

    run(
        Asked(
            model=model,
            text=text,
            window=window,
            tokens=tokens,
            quantizations=options.names(quantization),
            kv_cache_dtypes=options.names(kv_cache_dtype),
            threads=threads,
            isa=isa,
        ),
        json,
    )


def invariance(
    model: options.Model = DEFAULT_MODEL,
    trials: Annotated[int, typer.Option(min=1, metavar="N", help="Random trials to run.")] = DEFAULT_TRIALS,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="The same seed makes the same trials.")] = 0,
    threads: Annotated[str, typer.Option(metavar="LIST", help="Numbers of threads; all must give the same bits.")] = "1,2",
    quantization: options.Quantization = AUTO,
    kv_cache_dtype: options.KvCacheDtype = AUTO,
    isa: options.Isa = AUTO,
    json: options.Json = None,
) -> None:
    """Check that no company changes a bit of what is computed.

    Each trial sends a few pieces of text through the scheduler as requests: cut into chunks, beside others, after a
    preemption, on blocks that another request has filled. Their logits must be equal, to the last bit, to those of the same
    tokens computed alone in one step. Exit code 1 if they are not.
    """
    from chairlift.cli.sameness import Asked, run

    run(
        Asked(
            model=model,
            trials=trials,
            seed=seed,
            threads=options.numbers(threads),
            quantization=quantization,
            kv_cache_dtype=kv_cache_dtype,
            isa=isa,
        ),
        json,
    )


def evaluate(context: dict[str, Any]) -> typer.Typer:
    """The commands below `chairlift evaluate`. `context` are the settings of every command."""
    app = typer.Typer(name="evaluate", help=HELP, no_args_is_help=True, rich_markup_mode=None, context_settings=context)
    app.command()(perplexity)
    app.command()(invariance)
    return app
