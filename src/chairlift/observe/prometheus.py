"""Renders the tally for Prometheus, under vLLM's names and with its labels, so that dashboards made for it work.

Knows names and formats; counts nothing. Series are few and fixed: nothing that a client sends becomes a label.
"""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from chairlift.core.config import EngineConfig
from chairlift.observe.metrics import Metrics, Tally

ENGINE = "0"
"""Label of the engine: a server has one."""

GAUGES: tuple[tuple[str, str, Callable[[Tally], float]], ...] = (
    ("num_requests_running", "Requests in the running batch.", lambda tally: tally.running),
    ("num_requests_waiting", "Requests that wait to be run.", lambda tally: tally.waiting),
    ("num_requests_swapped", "Requests that wait with their KV blocks in host memory.", lambda tally: tally.swapped),
    ("kv_cache_usage_perc", "Share of the KV blocks in use, 0 to 1.", lambda tally: tally.kv_cache_usage),
    ("cpu_cache_usage_perc", "Share of the KV blocks of host memory in use, 0 to 1.", lambda tally: tally.host_cache_usage),
)
COUNTERS: tuple[tuple[str, str, Callable[[Tally], float]], ...] = (
    ("num_preemptions", "Requests that had to give their blocks back.", lambda tally: tally.preemptions),
    ("swapped_out_blocks", "KV blocks moved to host memory.", lambda tally: tally.swapped_out),
    ("swapped_in_blocks", "KV blocks that came back from there.", lambda tally: tally.swapped_in),
    ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", lambda tally: tally.prefix_queries),
    ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", lambda tally: tally.prefix_hits),
    ("prompt_tokens", "Prompt tokens of admitted requests.", lambda tally: tally.prompt_tokens),
    ("prompt_tokens_cached", "Prompt tokens that were not computed again.", lambda tally: tally.prompt_tokens_cached),
    ("generation_tokens", "Tokens generated.", lambda tally: tally.generation_tokens),
)


class Exposition:
    """What GET /metrics answers."""

    def __init__(self, metrics: Metrics, *, model_name: str, config: EngineConfig) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Families(metrics, model_name, config))

    def render(self, accept: str) -> tuple[bytes, str]:
        """The page and its content type: OpenMetrics if `accept` asks for it, otherwise the plain text format."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


class _Families(Collector):
    """Prometheus asks for all families at once, so that they are of one moment."""

    def __init__(self, metrics: Metrics, model_name: str, config: EngineConfig) -> None:
        self._metrics = metrics
        self._labels = {"model_name": model_name, "engine": ENGINE}
        self._config = config

    def collect(self) -> Iterator[Metric]:
        tally = self._metrics.read()
        for name, told, value in GAUGES:
            yield self._gauge(name, told, value(tally))
        for name, told, value in COUNTERS:
            yield self._counter(name, told, value(tally))
        yield self._by("request_success", "Requests that have ended, by how.", "finished_reason", tally.finished.items())
        yield self._by("admission_rejections", "Requests that were refused, by limit.", "reason", tally.refused.items())
        yield self._cache_config()

    def _gauge(self, name: str, told: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", told, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counter(self, name: str, told: str, value: float) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", told, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _by(self, name: str, told: str, label: str, values: Iterable[tuple[str, int]]) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", told, labels=[*self._labels, label])
        for key, value in values:
            family.add_metric([*self._labels.values(), key], value)
        return family

    def _cache_config(self) -> Metric:
        config = self._config
        facts = {
            "engine": ENGINE,
            "block_size": str(config.block_size),
            "num_gpu_blocks": str(config.num_blocks),
            "num_cpu_blocks": str(config.num_host_blocks),
            "enable_prefix_caching": str(config.shares_prefixes),
        }
        family = GaugeMetricFamily("vllm:cache_config_info", "How the KV cache is set up.", labels=list(facts))
        family.add_metric(list(facts.values()), 1)
        return family
