import math
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from native_kernels import OBJECTS
from scripted_engine import NoWeights
from silent import Silent
from tiny import source
from tiny_decoders import PLAIN, random_weights, row

from chairlift.compose import EngineOptions, Stages, build, check_options, fit, gib, read_template, resized
from chairlift.core.config import DEFAULTS
from chairlift.core.errors import ConfigError, ModelError, TemplateError
from chairlift.core.types import Plan
from chairlift.executors import EXECUTORS, Watch, parameter_count, prospect
from chairlift.models.description import Model

MIB, GIB = 2**20, 2**30
MODEL = Model("plain", PLAIN, NoWeights(), source(), {}, "F32", lambda: None)
REFERENCE = EngineOptions(executor="reference")


def test_every_request_of_a_legal_length_fits_into_the_pool() -> None:
    sizes = fit(MODEL, EngineOptions(max_num_seqs=2), free_bytes=GIB)
    assert (sizes.config.max_model_len, sizes.kv_tokens, sizes.full_contexts) == (256, 512, 2.0)


def test_the_context_shrinks_to_what_fits() -> None:
    block = 2 * 2 * 2 * 6 * 4 * 16
    sizes = fit(MODEL, replace(REFERENCE, kv_cache_memory_bytes=3 * block), free_bytes=GIB)
    assert (sizes.config.max_model_len, sizes.context) == (48, 256)


def test_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ModelError, match="the weights take"):
        fit(MODEL, REFERENCE, free_bytes=parameter_count(PLAIN) * 4 - 1)


def test_a_step_that_does_not_fit_beside_the_weights_is_refused() -> None:
    options = EngineOptions(threads=1, isa="portable")
    needs = fit(MODEL, options, free_bytes=GIB)
    with pytest.raises(ConfigError, match="lower max_model_len, max_num_seqs or max_num_batched_tokens"):
        fit(MODEL, options, free_bytes=needs.weight_bytes + needs.work_bytes - 1)


def test_weights_and_kv_cache_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="lower kv_cache_memory_bytes"):
        fit(MODEL, replace(REFERENCE, max_num_seqs=512, kv_cache_memory_bytes=MIB), free_bytes=MIB)


@given(free=st.integers(4 * MIB, 64 * MIB), places=st.integers(1, 64))
def test_all_that_is_taken_fits_into_what_is_free(free: int, places: int) -> None:
    options = EngineOptions(threads=1, isa="portable", max_num_seqs=places, max_num_batched_tokens=64)
    try:
        sizes = fit(MODEL, options, free_bytes=free)
    except ConfigError:
        return
    assert sizes.weight_bytes + sizes.work_bytes + sizes.kv.kv_bytes <= free


@pytest.mark.parametrize(
    "options",
    [EngineOptions(preset="none"), EngineOptions(max_num_seqs=65, max_num_batched_tokens=64), EngineOptions(max_model_len=1)],
)
def test_settings_that_never_work_are_found_without_a_model(options: EngineOptions) -> None:
    with pytest.raises(ConfigError):
        check_options(options)


def test_what_is_not_asked_for_is_as_the_engine_has_it() -> None:
    config = fit(MODEL, EngineOptions(), free_bytes=GIB).config
    assert config == replace(DEFAULTS, max_model_len=config.max_model_len, num_blocks=config.num_blocks)


def test_what_is_asked_for_reaches_the_engine() -> None:
    asked: dict[str, Any] = {
        "block_size": 32,
        "max_num_seqs": 3,
        "preset": "dynamic",
        "batch_wait_s": 0.2,
        "split": "whole",
        "headroom": "reserve",
        "itl_target_s": 0.1,
        "tenant_weights": (("name:a", 3.0),),
        "enable_prefix_caching": False,
        "kv_layout": "contiguous",
    }
    config = fit(MODEL, EngineOptions(**asked), free_bytes=GIB).config
    assert {name: getattr(config, name) for name in asked} == asked


SWAP = replace(REFERENCE, preemption_mode="swap", kv_cache_memory_bytes=MIB)


def test_swap_space_becomes_blocks_of_the_size_of_the_others() -> None:
    sizes = fit(MODEL, replace(SWAP, swap_space=0.001), free_bytes=GIB)
    block_bytes = sizes.kv.kv_bytes // sizes.config.num_blocks
    assert sizes.config.num_host_blocks == int(0.001 * GIB) // block_bytes
    assert sizes.host_bytes == sizes.config.num_host_blocks * block_bytes


def test_without_swap_nothing_is_kept_free_for_it() -> None:
    sizes = fit(MODEL, replace(SWAP, preemption_mode="recompute"), free_bytes=GIB)
    assert (sizes.config.num_host_blocks, sizes.host_bytes) == (0, 0)


def test_a_swap_space_that_does_not_fit_beside_all_else_is_refused() -> None:
    with pytest.raises(ConfigError, match="lower swap_space"):
        fit(MODEL, replace(SWAP, max_num_seqs=512), free_bytes=4 * MIB)


def test_parameters_are_counted_over_all_tensors() -> None:
    layer = 24 * 24 + 2 * 12 * 24 + 24 * 24 + 3 * 24 * 40 + 2 * 24
    assert parameter_count(PLAIN) == 2 * 61 * 24 + 24 + 2 * layer


def test_a_broken_chat_template_is_found_before_the_weights_are_read() -> None:
    model = Model("broken", PLAIN, NoWeights(), source(template="{% if %}"), {}, "F32", lambda: None)
    with pytest.raises(TemplateError, match="broken"):
        build(model, fit(MODEL, REFERENCE, free_bytes=GIB), REFERENCE, progress=Silent())


@pytest.mark.parametrize(("content", "reason"), [(b"\xff", "UTF-8"), (b"x" * (MIB + 1), "at most")])
def test_a_template_file_that_is_none_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "template.jinja"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=reason):
        read_template(file)


def test_a_missing_template_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_template(tmp_path / "none.jinja")


def test_bytes_are_written_for_people() -> None:
    assert (gib(85 * MIB), gib(3 * GIB // 2)) == ("85 MiB", "1.5 GiB")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (EngineOptions(executor="abacus"), "there is no executor 'abacus'"),
        (EngineOptions(executor="reference", async_scheduling=True), "the executor reference computes one step at a time"),
        *(
            (replace(REFERENCE, **setting), "is a setting of the executor cpu, not of reference")
            for setting in ({"threads": 2}, {"isa": "avx2"}, {"quantization": "none"}, {"kv_cache_dtype": "f32"})
        ),
        *(
            (replace(EngineOptions(), **setting), "is a setting of the executor torch, not of cpu")
            for setting in (
                {"device": "cpu"},
                {"dtype": "float32"},
                {"attention_backend": "reference"},
                {"enforce_eager": True},
                {"tensor_parallel_size": 2},
            )
        ),
        (EngineOptions(executor="torch", threads=1), "threads is a setting of the executor cpu, not of torch"),
        (EngineOptions(preemption_mode="swop"), "there are recompute, swap"),
        *((EngineOptions(swap_space=size), "above 0") for size in (0.0, -1.0, math.inf, math.nan)),
        (EngineOptions(swap_space=2.0), "swap_space is a setting of preemption_mode swap, not of recompute"),
        (EngineOptions(quantization="int3"), "it may be auto, int8, int4, none"),
        (EngineOptions(isa="sse9"), "isa 'sse9' is unknown"),
        (EngineOptions(kv_cache_dtype="f8"), "kv_cache_dtype 'f8' is unknown"),
        (EngineOptions(threads=0), "threads must be from 1"),
        (EngineOptions(block_size=24), "block_size must be a multiple of 16"),
    ],
)
def test_what_the_executor_cannot_take_is_refused_before_a_model_is_fetched(options: EngineOptions, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        check_options(options)


def test_a_resized_pool_takes_its_share_of_memory() -> None:
    sizes = fit(MODEL, EngineOptions(max_num_seqs=2), free_bytes=GIB)
    twice = resized(sizes, replace(sizes.config, num_blocks=2 * sizes.config.num_blocks))
    assert twice.kv.kv_bytes == 2 * sizes.kv.kv_bytes
    assert twice.kv_tokens == 2 * sizes.kv_tokens


def test_a_pool_that_is_too_large_says_for_whom_it_was() -> None:
    sizes = fit(MODEL, EngineOptions(max_num_seqs=2), free_bytes=GIB)
    with pytest.raises(ConfigError, match="a KV cache for 2 sequences of 256 tokens"):
        resized(sizes, replace(sizes.config, num_blocks=10**9))


class Told:
    """Progress as a list of what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def start(self, label: str, total_bytes: int | None) -> None:
        self.told.append(f"start {label} {total_bytes}")

    def advance(self, count: int) -> None:
        self.told.append(f"advance {count}")

    def done(self) -> None:
        self.told.append("done")

    def notice(self, text: str) -> None:
        self.told.append(text)


def test_compiling_is_told_before_loading() -> None:
    progress = Told()
    stages = Stages("Loading m", 100, progress, iter([1.0, 3.5]).__next__)
    stages.compiling()
    for done in (0, 1, 4):
        stages.loading(done, 4)
    stages.end()
    compiled = ["start Compiling kernels (once) None", "done", "Compiled kernels in 2.5 s"]
    assert progress.told == [*compiled, "start Loading m 100", "advance 0", "advance 25", "advance 75", "done"]


def test_compiling_and_capturing_are_told_after_loading() -> None:
    progress = Told()
    stages = Stages("Loading m", 100, progress, iter([1.0, 3.5, 4.0, 6.0]).__next__)
    for done in (0, 1):
        stages.loading(done, 1)
    stages.compiling()
    for done in range(4):
        stages.capturing(done, 3)
    stages.end()
    loaded = ["start Loading m 100", "advance 0", "advance 100", "done"]
    compiled = ["start Compiling kernels (once) None", "done", "Compiled kernels in 2.5 s"]
    captured = ["start Capturing decode steps None", "done", "Captured decode steps of 3 sizes in 2.0 s"]
    assert progress.told == [*loaded, *compiled, *captured]


def test_a_failure_while_compiling_ends_what_was_started() -> None:
    progress = Told()
    stages = Stages("Loading m", 100, progress, lambda: 0.0)
    stages.compiling()
    stages.end()
    stages.end()
    assert progress.told == ["start Compiling kernels (once) None", "done"]


@pytest.mark.skipif(not find_spec("torch"), reason="PyTorch is not installed")
@pytest.mark.parametrize(("asked", "depth"), [(None, 1), (False, 1), (True, 2)])
def test_steps_overlap_on_the_cpu_only_if_that_is_asked_for(asked: bool | None, depth: int) -> None:
    """The executor in PyTorch computes there as it is asked: results would only come later."""
    options = EngineOptions(executor="torch", device="cpu", async_scheduling=asked)
    assert fit(MODEL, options, free_bytes=GIB).config.depth == depth


@pytest.mark.skipif(not find_spec("torch"), reason="PyTorch is not installed")
def test_ranks_on_the_cpu_share_its_memory() -> None:
    options = EngineOptions(executor="torch", device="cpu", preemption_mode="swap", swap_space=0.25)
    sizes = [fit(MODEL, replace(options, tensor_parallel_size=ranks), free_bytes=GIB) for ranks in (1, 2)]
    assert [one.free_bytes for one in sizes] == [GIB, GIB // 2]
    assert [one.apiece(GIB) for one in sizes] == ["1.0 GiB", "1.0 GiB a rank"]
    assert sizes[1].computes.words.startswith("torch: 2 ranks (gloo), cpu, ")


@pytest.mark.skipif(not find_spec("torch"), reason="PyTorch is not installed")
def test_no_ranks_at_all_are_refused() -> None:
    with pytest.raises(ConfigError, match="tensor_parallel_size must be at least 1, not 0"):
        check_options(EngineOptions(executor="torch", device="cpu", tensor_parallel_size=0))


@pytest.mark.parametrize("executor", [name for name in EXECUTORS if name != "torch" or find_spec("torch")])
def test_every_executor_makes_what_it_says(executor: str) -> None:
    """With the sizes that the engine has, it answers."""
    model = replace(MODEL, weights=random_weights(PLAIN))
    options = EngineOptions(executor=executor, max_num_seqs=2, max_model_len=32)
    made = prospect(model, options)
    config = fit(model, options, free_bytes=GIB).config
    told: list[tuple[int, int]] = []
    watch = Watch(lambda: None, lambda done, total: told.append((done, total)), lambda done, total: None)
    running = made.load(config, kernels=OBJECTS, watch=watch)
    try:
        running.launch(Plan(1, (row([1, 2, 3], [0]),)))
        assert len(running.collect().rows) == 1
    finally:
        running.close()
    assert (told[0][0], told[-1][0]) == (0, told[-1][1])
