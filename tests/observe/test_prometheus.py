"""The page that Prometheus reads."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from chairlift.core.config import EngineConfig
from chairlift.core.events import Step
from chairlift.core.types import Held, Output, Plan, Snapshot
from chairlift.observe.metrics import Metrics
from chairlift.observe.prometheus import Exposition

CONFIG = EngineConfig(max_model_len=256, num_blocks=64, block_size=16)
STEP = Step(
    now=0.0,
    plan=Plan(1, (), preempted=("x",), held=Held("no_block", "a")),
    outputs=(Output("a", (1, 2), "stop"), Output("b", (), "abort")),
    admitted=(),
    snapshot=Snapshot(running=2, waiting=1, free_blocks=48, total_blocks=64),
)


def page(accept: str = "") -> tuple[str, str]:
    metrics = Metrics()
    metrics.on_step(STEP)
    metrics.on_refusal("max_num_queued_reqs")
    body, content_type = Exposition(metrics, model_name='a "model"', config=CONFIG).render(accept)
    return body.decode(), content_type


def samples() -> dict[tuple[str, str], float]:
    """Values by name and by the label that is not the same for all."""
    found: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(page()[0]):
        for sample in family.samples:
            own = [value for name, value in sample.labels.items() if name in ("finished_reason", "reason", "block_size")]
            found[(sample.name, "".join(own))] = sample.value
    return found


@pytest.mark.parametrize(
    ("name", "label", "value"),
    [
        ("vllm:num_requests_running", "", 2),
        ("vllm:num_requests_waiting", "", 1),
        ("vllm:kv_cache_usage_perc", "", 0.25),
        ("vllm:num_requests_swapped", "", 0),
        ("vllm:cpu_cache_usage_perc", "", 0),
        ("vllm:swapped_out_blocks_total", "", 0),
        ("vllm:swapped_in_blocks_total", "", 0),
        ("vllm:cache_config_info", "16", 1),
        ("vllm:num_preemptions_total", "", 1),
        ("vllm:prefix_cache_queries_total", "", 0),
        ("vllm:prefix_cache_hits_total", "", 0),
        ("vllm:prompt_tokens_total", "", 0),
        ("vllm:prompt_tokens_cached_total", "", 0),
        ("vllm:generation_tokens_total", "", 2),
        ("vllm:request_success_total", "stop", 1),
        ("vllm:request_success_total", "length", 0),
        ("vllm:request_success_total", "abort", 1),
        ("vllm:request_success_total", "error", 0),
        ("vllm:admission_rejections_total", "max_num_queued_reqs", 1),
        ("vllm:admission_rejections_total", "max_num_queued_tokens", 0),
    ],
)
def test_figures_stand_under_vllms_names(name: str, label: str, value: float) -> None:
    assert samples()[(name, label)] == value


def test_every_series_of_the_engine_names_model_and_engine() -> None:
    for family in text_string_to_metric_families(page()[0]):
        for sample in family.samples:
            assert sample.labels["engine"] == "0"
            assert family.name == "vllm:cache_config_info" or sample.labels["model_name"] == 'a "model"'


def test_a_scraper_that_asks_for_openmetrics_gets_it() -> None:
    body, content_type = page("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith("# EOF\n")
