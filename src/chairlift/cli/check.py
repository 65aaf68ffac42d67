"""`chairlift check`: whether a model can be served here, what it is and what it takes."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from chairlift.cli import options
from chairlift.cli.report import NO_TEMPLATE
from chairlift.core.config import DEFAULTS
from chairlift.models.fetch import DEFAULT_MODEL
from chairlift.options import AUTO, DEFAULT_EXECUTOR

if TYPE_CHECKING:
    from chairlift.compose import Fit
    from chairlift.models.description import Model


def check(
    model: options.Model = DEFAULT_MODEL,
    max_model_len: options.MaxModelLen = None,
    max_num_seqs: options.MaxNumSeqs = None,
    block_size: options.BlockSize = DEFAULTS.block_size,
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
    json: options.Json = None,
) -> None:
    """Say what a model is and whether it fits here.

    Shows its architecture, its memory and how many requests fit; exit code 1 with the reason if it cannot be served. Fetches
    a known model that is not here yet, and verifies its file. The weights are not loaded.
    """
    from chairlift import compose, executors, machine
    from chairlift.cli.loading import sources, user_console
    from chairlift.cli.report import write_json
    from chairlift.models import registry

    asked = compose.EngineOptions(
        max_model_len=max_model_len,
        block_size=block_size,
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
    asked = executors.sized(asked, max_num_seqs=max_num_seqs)
    compose.check_options(asked)
    opened = registry.load(model, sources(user_console()))
    compose.speech(opened)
    fit = compose.fit(opened, asked, free_bytes=machine.free_memory())
    figures = _figures(opened, fit)
    if json is not None:
        write_json(json, figures)
    if json != Path("-"):
        for line in _lines(figures, fit):
            typer.echo(line)


def _figures(model: "Model", fit: "Fit") -> dict[str, Any]:
    from chairlift.executors import parameter_count

    description = model.description
    return {
        "model": model.name,
        "architecture": description.architecture,
        "parameters": parameter_count(description),
        "quantization": model.quantization,
        "layers": len(description.layers),
        "vocabulary": description.vocab,
        "context": description.context,
        "max_model_len": fit.config.max_model_len,
        "tokenizer": model.tokenizer.kind,
        "chat_template": bool(model.tokenizer.templates),
        "executor": fit.computes.executor,
        "device": fit.computes.device,
        "kernels": fit.computes.kernels,
        "isa": fit.computes.isa,
        "threads": fit.computes.threads,
        "weights": fit.computes.weights,
        "kv_cache_dtype": fit.computes.kv_cache_dtype,
        "weight_bytes": fit.weight_bytes,
        "work_bytes": fit.work_bytes,
        "kv_bytes": fit.kv.kv_bytes,
        "kv_blocks": fit.config.num_blocks,
        "kv_tokens": fit.kv_tokens,
        "full_contexts": round(fit.full_contexts, 1),
    }


def _lines(figures: dict[str, Any], fit: "Fit") -> list[str]:
    shrunk = f", {figures['max_model_len']:,} of them in use" if figures["max_model_len"] < figures["context"] else ""
    blocks = f"{figures['kv_blocks']:,} blocks, {figures['kv_tokens']:,} tokens, {figures['full_contexts']} full contexts"
    return [
        f"{figures['model']} can be served",
        f"  architecture   {figures['architecture']}, {figures['layers']} layers, vocabulary of {figures['vocabulary']:,}",
        f"  parameters     {figures['parameters'] / 1e6:,.1f} million, mostly {figures['quantization']}",
        f"  context        {figures['context']:,} tokens{shrunk}",
        f"  tokenizer      {figures['tokenizer']}",
        f"  chat template  {'there is one' if figures['chat_template'] else NO_TEMPLATE}",
        f"  compute        {fit.computes.words}",
        f"  weights        {fit.apiece(fit.weight_bytes)} in memory",
        f"  activations    {fit.apiece(fit.work_bytes)}, logits and all else that a step works in",
        f"  KV cache       {fit.apiece(fit.kv.kv_bytes)}: {blocks}",
    ]
