"""The settings of an engine, checked once. Units stand in the names; None means "work it out"."""

import math
from dataclasses import dataclass

from chairlift.core.errors import ConfigError

MAX_WEIGHT = 1_000_000
"""Of a tenant's share, and its inverse the least: counters of service stay numbers that can be compared."""

MAX_DEPTH = 2
"""A third step in flight would have to be decided without the results of two."""

KV_LAYOUTS = ("paged", "contiguous")
"""Blocks from anywhere as a request grows, or one run of neighbours that is reserved for all of it at once."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Sizes and limits of one engine. Names are those of the command line.

    `max_model_len` and `num_blocks` are already resolved here: `cache.sizing` works them out from the machine's memory.
    """

    max_model_len: int
    num_blocks: int
    block_size: int = 16
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    max_num_queued_reqs: int = 256
    max_num_queued_tokens: int | None = None
    enable_prefix_caching: bool = True
    """Of no effect where `kv_layout` is contiguous: a run has one owner (`shares_prefixes`)."""
    kv_layout: str = "paged"
    num_host_blocks: int = 0
    """Blocks of host memory into which those are swapped that lose theirs; 0: they are computed again."""
    preset: str = "continuous"
    scheduling_policy: str = "fair"
    """Who is first. With one class and one tenant the default is first come, first served."""
    tenant_weights: tuple[tuple[str, float], ...] = ()
    """Tenants whose share is not 1, and their shares."""
    split: str = "chunked"
    """How a step's tokens are divided among prompts."""
    itl_target_s: float | None = None
    """Prompts get so few tokens a step that streams wait no longer than this for their next token; None: no such wish."""
    headroom: str = "optimistic"
    """How much memory must stay free for those that run when another gets on."""
    batch_wait_s: float = 0.05
    """How long dynamic batching waits for a group to fill."""
    depth: int = 1
    """Steps in flight: with 2 the next one is decided and launched while the executor works, for one that can."""

    @property
    def shares_prefixes(self) -> bool:
        """Blocks of one request may serve others that begin alike."""
        return self.enable_prefix_caching and self.kv_layout == "paged"

    def __post_init__(self) -> None:
        for name in (
            "max_model_len",
            "num_blocks",
            "block_size",
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_num_queued_reqs",
            "depth",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.num_host_blocks < 0:
            raise ConfigError(f"num_host_blocks must not be negative, as {self.num_host_blocks} is")
        if self.kv_layout not in KV_LAYOUTS:
            raise ConfigError(f"there is no KV layout {self.kv_layout!r:.40}; there are {', '.join(KV_LAYOUTS)}")
        if self.max_num_queued_tokens is not None and self.max_num_queued_tokens < 1:
            raise ConfigError(f"max_num_queued_tokens must be at least 1, not {self.max_num_queued_tokens}")
        if self.itl_target_s is not None and not 0 < self.itl_target_s < math.inf:
            raise ConfigError(f"itl_target_s must be a number above 0, not {self.itl_target_s}")
        for tenant, weight in self.tenant_weights:
            if not 1 / MAX_WEIGHT <= weight <= MAX_WEIGHT:
                raise ConfigError(
                    f"the weight of tenant {tenant!r} must be from {1 / MAX_WEIGHT} to {MAX_WEIGHT:,}, not {weight}"
                )
        if self.depth > MAX_DEPTH:
            raise ConfigError(f"depth must be at most {MAX_DEPTH}, not {self.depth}")
        if self.max_model_len < 2:
            raise ConfigError("max_model_len must be at least 2: one token of prompt and one of answer")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must not be less than max_num_seqs"
                f" ({self.max_num_seqs}): every running request needs one token a step"
            )


DEFAULTS = EngineConfig(max_model_len=2, num_blocks=1)
"""The smallest engine there is: whoever offers the other settings to a user takes their defaults from here."""
