"""`chairlift serve`: the flags of the server. What happens with them is in `serving`."""

from pathlib import Path
from typing import Annotated

import typer

from chairlift.cli import options, sharing
from chairlift.cli.config_file import read_into
from chairlift.core.config import DEFAULTS
from chairlift.models.fetch import DEFAULT_MODEL
from chairlift.options import AUTO, DEFAULT_EXECUTOR, DEFAULT_SWAP_SPACE, PREEMPTION_MODES, RECOMPUTE, EngineOptions
from chairlift.schedule.presets import HEADROOMS, ORDERS, PRESETS, SPLITS
from chairlift.server.settings import PRIORITIES, Settings

ENGINE = EngineOptions()
SETTINGS = Settings()
"""Where the flags of the HTTP side have their defaults; those of the engine are in `DEFAULTS`, or in `ENGINE`."""


def serve(
    model: options.Model = DEFAULT_MODEL,
    host: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Address to listen on; 0.0.0.0 lets other machines in."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="What clients call the model; may be given several times."),
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            envvar="CHAIRLIFT_API_KEY",
            help="Clients must send this key; may be given several times.",
            show_envvar=True,
        ),
    ] = None,
    admin_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            envvar="CHAIRLIFT_ADMIN_KEY",
            help="Whoever sends this key sees and cancels everyone's requests.",
            show_envvar=True,
        ),
    ] = SETTINGS.admin_key,
    allowed_origins: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="Let web pages of this origin call the API (CORS); * for all; may be given several times.",
        ),
    ] = None,
    enable_request_id_headers: Annotated[
        bool,
        typer.Option(
            "--enable-request-id-headers",
            help="Answer with an X-Request-Id: the client's or a fresh one.",
        ),
    ] = False,
    chat_template: options.ChatTemplateFile = None,
    trust_request_chat_template: Annotated[
        bool,
        typer.Option(
            "--trust-request-chat-template",
            help="Let requests bring their own chat template: a program that this server then runs, in a sandbox.",
        ),
    ] = False,
    max_body_bytes: Annotated[
        int,
        typer.Option(parser=options.count, metavar="BYTES", help="Longest body of a request; accepts 8M."),
    ] = SETTINGS.max_body_bytes,
    max_prompts: Annotated[
        int, typer.Option(min=1, metavar="N", help="Most prompts of one completion request.")
    ] = SETTINGS.max_prompts,
    default_max_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Longest answer of requests that say nothing. Default: 16, or for chats what fits."
        ),
    ] = SETTINGS.default_max_tokens,
    max_output_tokens: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Longest answer that may be asked for. Default: what the context has room for."),
    ] = SETTINGS.max_output_tokens,
    sse_keep_alive_interval: Annotated[
        float,
        typer.Option(
            parser=options.seconds,
            metavar="SECONDS",
            help="A comment into streams that are silent for so long; 0: never.",
        ),
    ] = SETTINGS.sse_keep_alive_s,
    queue_timeout: Annotated[
        float,
        typer.Option(parser=options.seconds, metavar="SECONDS", help="Who has waited for so long gets 408; 0: never."),
    ] = SETTINGS.queue_timeout_s,
    request_timeout: Annotated[
        float,
        typer.Option(parser=options.seconds, metavar="SECONDS", help="An answer ends after so long, as it is; 0: never."),
    ] = SETTINGS.request_timeout_s,
    stall_timeout: Annotated[
        float,
        typer.Option(
            parser=options.seconds,
            metavar="SECONDS",
            help="An answer that has begun and gets no token for so long ends as it is; 0: never.",
        ),
    ] = SETTINGS.stall_timeout_s,
    shutdown_timeout: Annotated[
        float,
        typer.Option(
            parser=options.seconds,
            metavar="SECONDS",
            help="After the first signal to end, answers may go on for so long.",
        ),
    ] = SETTINGS.shutdown_timeout_s,
    max_model_len: options.MaxModelLen = None,
    max_num_seqs: options.MaxNumSeqs = None,
    max_num_batched_tokens: options.MaxNumBatchedTokens = None,
    block_size: options.BlockSize = DEFAULTS.block_size,
    kv_cache_memory_bytes: options.KvCacheMemoryBytes = None,
    enable_prefix_caching: Annotated[
        bool, typer.Option(help="Share the KV cache of equal beginnings of prompts.")
    ] = DEFAULTS.enable_prefix_caching,
    kv_layout: options.KvLayout = DEFAULTS.kv_layout,
    preemption_mode: Annotated[
        str,
        typer.Option(
            parser=options.one_of(PREEMPTION_MODES),
            metavar="recompute|swap",
            help="Who loses its memory to others is computed again, or kept in --swap-space meanwhile.",
        ),
    ] = RECOMPUTE,
    swap_space: Annotated[
        float | None,
        typer.Option(
            metavar="GIB",
            help=f"Most host memory for --preemption-mode swap, {DEFAULT_SWAP_SPACE:g} by default; when it is full, recompute.",
        ),
    ] = ENGINE.swap_space,
    isolate_prefix_cache: Annotated[
        bool,
        typer.Option(
            help="Tenants, by API key or --tenant-header, share it only with themselves: otherwise the time of an answer tells"
            " them what others have asked. Without it all share, which is faster where all prompts begin alike. No effect"
            " without API keys or --tenant-header.",
        ),
    ] = SETTINGS.isolate_prefix_cache,
    preset: Annotated[
        str,
        typer.Option(
            parser=options.one_of(PRESETS),
            metavar="NAME",
            help="How requests are batched: continuous, prefill-first; or in groups, as static and dynamic, each of them"
            " -compacted or -sorted as well.",
        ),
    ] = DEFAULTS.preset,
    scheduling_policy: Annotated[
        str,
        typer.Option(
            parser=options.one_of(ORDERS),
            metavar="fcfs|priority|fair|deadline|shortest|prefix",
            help="Who is first of those that wait. All but fcfs respect classes; all but fcfs and priority share fairly.",
        ),
    ] = DEFAULTS.scheduling_policy,
    split: Annotated[
        str,
        typer.Option(
            parser=options.one_of(SPLITS),
            metavar="chunked|whole|balanced",
            help="How a step's tokens are divided among prompts: the first gets most, in one piece, or all get the same.",
        ),
    ] = DEFAULTS.split,
    headroom: Annotated[
        str,
        typer.Option(
            parser=options.one_of(HEADROOMS),
            metavar="optimistic|reserve|expected",
            help="Memory kept for those that run: a little, all that they may need, or what answers have turned out to need."
            " Not asked with --kv-layout contiguous, where all is reserved.",
        ),
    ] = DEFAULTS.headroom,
    itl_target_ms: Annotated[
        float | None,
        typer.Option(
            parser=options.target_ms,
            metavar="MS",
            help="Prompts are computed in such pieces that streams get their next token in this time."
            " Default: that of the strictest --slo-class.",
        ),
    ] = None,
    batch_wait_ms: Annotated[
        float,
        typer.Option(
            parser=options.milliseconds,
            metavar="MS",
            help="How long the dynamic presets wait for a batch to fill.",
        ),
    ] = DEFAULTS.batch_wait_s * 1000,
    max_priority: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=PRIORITIES,
            metavar="N",
            help="Clients may ask for a `priority` from -N (first) over 0 (usual) to 100 (last, for batch jobs); what is beyond"
            " counts as the limit, but for the admin key. Default: 0 with API keys or --tenant-header, otherwise 100.",
        ),
    ] = SETTINGS.max_priority,
    tenant_header: Annotated[
        str | None,
        typer.Option(
            parser=sharing.header,
            metavar="NAME",
            help="The header in which a --trusted-proxy says whose request it is; not looked at with API keys. Without both a"
            " tenant is the body's `user`.",
        ),
    ] = SETTINGS.tenant_header,
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS",
            help="An address, or a network like 10.1.0.0/16, whose --tenant-header is believed; may be given several times.",
        ),
    ] = None,
    tenant_weight: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=WEIGHT",
            help="A tenant whose share is not 1; may be given several times. With API keys NAME is the key, which is better"
            " written into --config FILE than here. No effect with --scheduling-policy fcfs or priority.",
        ),
    ] = None,
    slo_class: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=TTFT_MS,ITL_MS",
            help="Requests that say `slo_class`: NAME want their first token in TTFT_MS, and the next ones in ITL_MS each; may"
            " be given several times. TTFT_MS is heeded by --scheduling-policy deadline; the smallest ITL_MS is everybody's.",
        ),
    ] = None,
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
    async_scheduling: options.AsyncScheduling = None,
    max_num_queued_reqs: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Most requests that may wait; others get 429."),
    ] = DEFAULTS.max_num_queued_reqs,
    max_num_queued_tokens: Annotated[
        int | None,
        typer.Option(min=1, metavar="TOKENS", help="Most prompt tokens that may wait."),
    ] = DEFAULTS.max_num_queued_tokens,
    record: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            callback=options.fresh_file,
            help="Write down every decision of the scheduler, for `chairlift replay`; texts cannot be read from it.",
        ),
    ] = None,
    config: Annotated[  # noqa: ARG001  (its callback has read it)
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A YAML file whose keys are these flags, as in `port: 8080`; the command line wins.",
            is_eager=True,
            callback=read_into,
        ),
    ] = None,
) -> None:
    """Serve a model through an OpenAI-compatible API.

    The first start fetches the model. The server then prints its address and a request to try.
    """
    from chairlift.cli.serving import Asked, run
    from chairlift.executors import sized
    from chairlift.server.tenants import weights

    classes = [sharing.slo_class(text) for text in slo_class or ()]
    settings = Settings(
        api_keys=tuple(api_key or ()),
        admin_key=admin_key,
        allowed_origins=tuple(allowed_origins or ()),
        request_id_headers=enable_request_id_headers,
        trust_request_chat_template=trust_request_chat_template,
        max_body_bytes=max_body_bytes,
        max_prompts=max_prompts,
        default_max_tokens=default_max_tokens,
        max_output_tokens=max_output_tokens,
        sse_keep_alive_s=sse_keep_alive_interval,
        queue_timeout_s=queue_timeout,
        request_timeout_s=request_timeout,
        stall_timeout_s=stall_timeout,
        shutdown_timeout_s=shutdown_timeout,
        max_priority=max_priority,
        tenant_header=tenant_header,
        trusted_proxies=tuple(sharing.network(text) for text in trusted_proxy or ()),
        slo_classes=tuple(classes),
        isolate_prefix_cache=isolate_prefix_cache,
    )
    engine = EngineOptions(
        max_model_len=max_model_len,
        block_size=block_size,
        kv_cache_memory_bytes=kv_cache_memory_bytes,
        enable_prefix_caching=enable_prefix_caching,
        kv_layout=kv_layout,
        preemption_mode=preemption_mode,
        swap_space=swap_space,
        preset=preset,
        scheduling_policy=scheduling_policy,
        batch_wait_s=batch_wait_ms / 1000,
        split=split,
        headroom=headroom,
        itl_target_s=sharing.itl_target_s(itl_target_ms, classes),
        tenant_weights=weights(settings, [sharing.weight(text) for text in tenant_weight or ()]),
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
        async_scheduling=async_scheduling,
        max_num_queued_reqs=max_num_queued_reqs,
        max_num_queued_tokens=max_num_queued_tokens,
    )
    engine = sized(engine, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens)
    names = tuple(served_model_name or ())
    raise typer.Exit(run(Asked(model, host, port, names, chat_template, engine, settings, record)))
