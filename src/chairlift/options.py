"""What the user asks of an engine, as data. Knows names and defaults; what they lead to is worked out elsewhere."""

from dataclasses import dataclass

from chairlift.core.config import DEFAULTS

AUTO = "auto"
DEFAULT_EXECUTOR = "cpu"
RECOMPUTE, SWAP = PREEMPTION_MODES = ("recompute", "swap")
"""What becomes of the keys and values of those who yield: they are computed again, or kept in host memory meanwhile."""
DEFAULT_SWAP_SPACE = 4.0
"""GiB, as with vLLM."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The first two are worked out from model and memory where they are None.

    The last ones say what computes, and how: None and "auto" leave it to the executor. With `async_scheduling` the next step
    is decided while one is computed (`EngineConfig.depth`). How much memory those have who are swapped is worked out from
    `swap_space`. All others are settings of `EngineConfig`, and stand here under its names.
    """

    max_model_len: int | None = None
    kv_cache_memory_bytes: int | None = None
    block_size: int = DEFAULTS.block_size
    max_num_seqs: int = DEFAULTS.max_num_seqs
    max_num_batched_tokens: int = DEFAULTS.max_num_batched_tokens
    max_num_queued_reqs: int = DEFAULTS.max_num_queued_reqs
    max_num_queued_tokens: int | None = DEFAULTS.max_num_queued_tokens
    enable_prefix_caching: bool = DEFAULTS.enable_prefix_caching
    kv_layout: str = DEFAULTS.kv_layout
    preset: str = DEFAULTS.preset
    scheduling_policy: str = DEFAULTS.scheduling_policy
    batch_wait_s: float = DEFAULTS.batch_wait_s
    split: str = DEFAULTS.split
    headroom: str = DEFAULTS.headroom
    itl_target_s: float | None = DEFAULTS.itl_target_s
    tenant_weights: tuple[tuple[str, float], ...] = DEFAULTS.tenant_weights
    preemption_mode: str = RECOMPUTE
    swap_space: float | None = None
    """GiB of host memory, at most, for those who are swapped; None: DEFAULT_SWAP_SPACE."""
    executor: str = DEFAULT_EXECUTOR
    threads: int | None = None
    isa: str = AUTO
    quantization: str = AUTO
    kv_cache_dtype: str = AUTO
    device: str = AUTO
    dtype: str = AUTO
    attention_backend: str = AUTO
    enforce_eager: bool = False
    tensor_parallel_size: int = 1
    async_scheduling: bool | None = None
