"""Transformers' own continuous batching beside our engine: the very same tensors, the same prompts, answers of the same length.

Each is run in turn. Ours counts from the moment when requests are handed in until the last answer is complete, theirs from the
moment when it takes on the first one (its own clock).
"""

import logging
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch

from chairlift.bench.engine import Workload
from chairlift.core.config import EngineConfig
from chairlift.core.types import Request, Sampling, Stopping
from chairlift.engine.core import EngineCore, Submit
from chairlift.execute.torch.device import Device
from chairlift.execute.torch.executor import TorchExecutor
from chairlift.execute.torch.weights import ModelWeights
from chairlift.models.description import Description
from gpu_check.engine import DEPTHS, configured
from gpu_check.records import Figure
from gpu_check.report import OURS, THEIRS
from gpu_check.setting import Setting
from gpu_check.shapes import Sizes, executor, random_weights, served

PAGE = 256
"""Tokens of a page of theirs."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Of all prompts, in order; `seconds` is what they took together."""

    tokens: tuple[tuple[int, ...], ...]
    seconds: float


class Round(NamedTuple):
    """The same prompts, answered by both."""

    ours: Answers
    theirs: Answers

    @property
    def by_name(self) -> dict[str, Answers]:
        return {OURS: self.ours, THEIRS: self.theirs}


def measure(setting: Setting) -> None:
    if find_spec("transformers") is None:
        setting.record.failure("there is nothing to compare with: transformers is not installed")
        return
    sizes, device = setting.sizes, setting.device
    weights = random_weights(sizes.description, device=device, dtype=device.dtype("auto"))
    ours, theirs = _Ours(sizes, weights, device), _Theirs(sizes, weights, device)
    setting.record.fact("kernels", ours.kernels)
    rounds: list[Round] = []
    for number in range(1 + sizes.runs):
        began = time.monotonic()
        rounds.append(_round(sizes, ours, theirs, number))
        _tell(setting, rounds)
        if 2 * time.monotonic() - began > setting.until:
            break
    for name, fact in theirs.facts().items():
        setting.record.fact(name, fact)
    theirs.close()


def _round(sizes: Sizes, ours: "_Ours", theirs: "_Theirs", number: int) -> "Round":
    prompts = _prompts(sizes, seed=number)
    done = Round(ours.answer(prompts), theirs.answer(prompts))
    for name, answers in done.by_name.items():
        lengths = {len(one) for one in answers.tokens}
        assert lengths == {sizes.output_len}, f"{name} answered with {lengths} tokens"
    return done


def _tell(setting: Setting, rounds: "Sequence[Round]") -> None:
    """The first round is left out as soon as there is another: kernels are compiled and graphs captured in it."""
    sizes, crowd = setting.sizes, setting.sizes.crowds[-1]
    for name in (OURS, THEIRS):
        seconds = [done.by_name[name].seconds for done in rounds[1:] or rounds]
        rates = tuple(crowd * sizes.output_len / one for one in seconds)
        setting.record.figure(Figure(f"batch {crowd}, {name}", "tokens/s", statistics.median(rates), rates))
    counted = f"{len(rounds) - 1}, and one before them" if rounds[1:] else "the first one only, in which each of them compiles"
    setting.record.fact("rounds", counted)
    alike = [mine[0] == yours[0] for one in rounds for mine, yours in zip(one.ours.tokens, one.theirs.tokens, strict=True)]
    setting.record.fact("answers that begin alike", f"{sum(alike)} of {len(alike)}")


def _prompts(sizes: Sizes, *, seed: int) -> list[list[int]]:
    shape = (sizes.crowds[-1], sizes.input_len)
    return torch.randint(sizes.description.vocab, shape, generator=torch.Generator().manual_seed(seed)).tolist()


# ── ours ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Ours:
    """An engine as a server has it, with as many steps in flight as there can be."""

    def __init__(self, sizes: Sizes, weights: ModelWeights, device: Device) -> None:
        choice = served(sizes.description, device)
        workload = Workload(sizes.crowds[-1:], sizes.input_len, sizes.output_len)
        self._config: EngineConfig = replace(configured(sizes, workload), depth=max(DEPTHS))
        self._executor: TorchExecutor = executor(
            sizes,
            weights,
            choice,
            rows=self._config.max_num_seqs,
            longest=self._config.max_model_len,
            num_blocks=self._config.num_blocks,
        )
        self._output_len = sizes.output_len
        self.kernels = choice.kernels(sizes.crowds[-1])

    def answer(self, prompts: Sequence[Sequence[int]]) -> Answers:
        core = EngineCore(self._config, self._executor)
        tokens: dict[str, list[int]] = {str(number): [] for number in range(len(prompts))}
        began = time.perf_counter()
        for name, prompt in zip(tokens, prompts, strict=True):
            stopping = Stopping(max_tokens=self._output_len)
            core.inbox.append(Submit(Request(name, tuple(prompt), stopping, Sampling(temperature=0.0))))
        going = len(prompts)
        while going:
            for output in core.step(time.perf_counter()).outputs:
                tokens[output.seq_id] += output.tokens
                going -= output.finish is not None
        return Answers(tuple(map(tuple, tokens.values())), time.perf_counter() - began)


# ── theirs ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Theirs:
    """`generate_batch` of a Llama over the same tensors, with everything that it chooses by itself left to it."""

    def __init__(self, sizes: Sizes, weights: ModelWeights, device: Device) -> None:
        logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)
        self._sizes = sizes
        self._model = twin(sizes.description, weights, device)
        self._options: dict[str, Any] = {} if device.free_bytes() is not None else _few_blocks(sizes)

    def answer(self, prompts: Sequence[Sequence[int]]) -> Answers:
        from transformers import GenerationConfig
        from transformers.generation.configuration_utils import ContinuousBatchingConfig

        # No token ends an answer, so all are of one length.
        settings = GenerationConfig(max_new_tokens=self._sizes.output_len, do_sample=False, eos_token_id=-1, pad_token_id=0)
        done = self._model.generate_batch(
            [list(prompt) for prompt in prompts],
            generation_config=settings,
            continuous_batching_config=ContinuousBatchingConfig(**self._options),
            persistent_manager=True,
        )
        answers = list(done.values())
        assert len(answers) == len(prompts), f"transformers answered {len(answers)} of {len(prompts)} prompts"
        faults = {one.error for one in answers if one.error}
        assert not faults, f"transformers failed: {faults.pop()}"
        seconds = max(one.lifespan[1] for one in answers) - min(one.lifespan[0] for one in answers)
        return Answers(tuple(tuple(one.generated_tokens) for one in answers), seconds)

    def facts(self) -> dict[str, str]:
        """What it has chosen."""
        manager = getattr(self._model, "_cached_continuous_batching_manager", None)
        chosen = getattr(manager, "continuous_batching_config", None)
        names = ("use_cuda_graph", "use_async_batching", "num_blocks", "max_batch_tokens")
        told = ", ".join(f"{name} {getattr(chosen, name, 'unknown')}" for name in names)
        return {"transformers": f"attention {self._model.config._attn_implementation}, {told}"}  # noqa: SLF001  (there is no other)

    def close(self) -> None:
        self._model.destroy_cached_continuous_batching_manager()


def _few_blocks(sizes: Sizes) -> dict[str, int]:
    """On a device without memory of its own it would otherwise take most of the machine's."""
    each = 1 + -(-(sizes.input_len + sizes.output_len) // PAGE)
    return {"num_blocks": each * sizes.crowds[-1], "max_batch_tokens": sizes.most_tokens}


def twin(description: Description, weights: ModelWeights, device: Device) -> Any:
    """Transformers' Llama, whose parameters are views of these weights: nothing is copied."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=description.vocab,
        hidden_size=description.hidden,
        intermediate_size=description.mlp,
        num_hidden_layers=len(description.layers),
        num_attention_heads=description.heads,
        num_key_value_heads=description.kv_heads,
        head_dim=description.head_dim,
        rms_norm_eps=description.norm_eps,
        max_position_embeddings=description.context,
        rope_parameters={"rope_type": "default", "rope_theta": description.layers[0].rope.theta},
        tie_word_embeddings=False,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.load_state_dict(_state(description, weights), strict=True, assign=True)
    # Its tables are no parameters, and those that were made on "meta" have no numbers.
    model.model.rotary_emb = type(model.model.rotary_emb)(config).to(device.on)
    if find_spec("kernels") and not find_spec("flash_attn"):
        model._supports_flash_attn = False  # noqa: SLF001  (it would ask the network for one)
    return model.requires_grad_(False).eval()


def _state(description: Description, weights: ModelWeights) -> dict[str, torch.Tensor]:
    """By their names. Norms are float32 here and of the model's type there."""
    dtype, dim = weights.embed.dtype, description.head_dim
    state = {"model.embed_tokens.weight": weights.embed, "lm_head.weight": weights.head}
    state["model.norm.weight"] = weights.norm.to(dtype)
    for number, layer in enumerate(weights.layers):
        prefix = f"model.layers.{number}."
        parts = layer.qkv.split([description.heads * dim, description.kv_heads * dim, description.kv_heads * dim])
        state |= {f"{prefix}self_attn.{name}_proj.weight": part for name, part in zip("qkv", parts, strict=True)}
        state[f"{prefix}self_attn.o_proj.weight"] = layer.o
        gate, up = layer.gate_up.chunk(2)
        state |= {f"{prefix}mlp.gate_proj.weight": gate, f"{prefix}mlp.up_proj.weight": up}
        state[f"{prefix}mlp.down_proj.weight"] = layer.down
        state[f"{prefix}input_layernorm.weight"] = layer.attn_norm.to(dtype)
        state[f"{prefix}post_attention_layernorm.weight"] = layer.mlp_norm.to(dtype)
    return state
