from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted_engine import NoWeights
from silent import Silent
from tiny import source
from tiny_decoders import PLAIN

from chairlift.compose import EngineOptions, build, check_options, fit, gib, parameter_count, read_template, resized
from chairlift.core.config import DEFAULTS
from chairlift.core.errors import ConfigError, ModelError, TemplateError
from chairlift.models.description import Model

MIB, GIB = 2**20, 2**30


def test_every_request_of_a_legal_length_fits_into_the_pool() -> None:
    sizes = fit(PLAIN, EngineOptions(max_num_seqs=2), free_bytes=GIB)
    assert (sizes.config.max_model_len, sizes.kv_tokens, sizes.full_contexts) == (256, 512, 2.0)


def test_the_context_shrinks_to_what_fits() -> None:
    block = 2 * 2 * 2 * 6 * 4 * 16
    sizes = fit(PLAIN, EngineOptions(kv_cache_memory_bytes=3 * block), free_bytes=GIB)
    assert (sizes.config.max_model_len, sizes.context) == (48, 256)


def test_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ModelError, match="the weights take"):
        fit(PLAIN, EngineOptions(), free_bytes=parameter_count(PLAIN) * 4 - 1)


def test_weights_and_kv_cache_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="lower kv_cache_memory_bytes"):
        fit(PLAIN, EngineOptions(max_num_seqs=512, kv_cache_memory_bytes=MIB), free_bytes=MIB)


@pytest.mark.parametrize(
    "options",
    [EngineOptions(preset="none"), EngineOptions(max_num_seqs=65, max_num_batched_tokens=64), EngineOptions(max_model_len=1)],
)
def test_settings_that_never_work_are_found_without_a_model(options: EngineOptions) -> None:
    with pytest.raises(ConfigError):
        check_options(options)


def test_what_is_not_asked_for_is_as_the_engine_has_it() -> None:
    config = fit(PLAIN, EngineOptions(), free_bytes=GIB).config
    assert config == replace(DEFAULTS, max_model_len=config.max_model_len, num_blocks=config.num_blocks)


def test_what_is_asked_for_reaches_the_engine() -> None:
    asked: dict[str, Any] = {
        "block_size": 8,
        "max_num_seqs": 3,
        "preset": "dynamic",
        "batch_wait_s": 0.2,
        "enable_prefix_caching": False,
    }
    config = fit(PLAIN, EngineOptions(**asked), free_bytes=GIB).config
    assert {name: getattr(config, name) for name in asked} == asked


def test_parameters_are_counted_over_all_tensors() -> None:
    layer = 24 * 24 + 2 * 12 * 24 + 24 * 24 + 3 * 24 * 40 + 2 * 24
    assert parameter_count(PLAIN) == 2 * 61 * 24 + 24 + 2 * layer


def test_a_broken_chat_template_is_found_before_the_weights_are_read() -> None:
    model = Model("broken", PLAIN, NoWeights(), source(template="{% if %}"), {}, "F32", lambda: None)
    with pytest.raises(TemplateError, match="broken"):
        build(model, fit(PLAIN, EngineOptions(), free_bytes=GIB), EngineOptions(), progress=Silent())


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
        (EngineOptions(threads=2), "threads are a setting of the executor cpu"),
    ],
)
def test_what_the_executor_cannot_take_is_refused_before_a_model_is_fetched(options: EngineOptions, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        check_options(options)


def test_a_resized_pool_takes_its_share_of_memory() -> None:
    sizes = fit(PLAIN, EngineOptions(max_num_seqs=2), free_bytes=GIB)
    twice = resized(sizes, replace(sizes.config, num_blocks=2 * sizes.config.num_blocks), free_bytes=GIB)
    assert twice.kv.kv_bytes == 2 * sizes.kv.kv_bytes
    assert twice.kv_tokens == 2 * sizes.kv_tokens


def test_a_pool_that_is_too_large_says_for_whom_it_was() -> None:
    sizes = fit(PLAIN, EngineOptions(max_num_seqs=2), free_bytes=GIB)
    with pytest.raises(ConfigError, match="a KV cache for 2 sequences of 256 tokens"):
        resized(sizes, replace(sizes.config, num_blocks=10**9), free_bytes=GIB)
