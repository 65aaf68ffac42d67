"""Small engines over a shadow KV store, for tests that need nothing but decisions."""

from collections.abc import Callable

from executors import ShadowExecutor, hashed
from virtual import Ride

from chairlift.core.config import EngineConfig
from chairlift.engine.core import EngineCore

NEXT = hashed(50)
"""The text that every test engine writes unless told otherwise: it depends on the whole prefix."""


def config(**changes: int | float | str | bool | None) -> EngineConfig:
    """20 blocks of 4 tokens, 4 places, 16 tokens a step."""
    settings: dict[str, int | float | str | bool | None] = {
        "max_model_len": 64,
        "num_blocks": 20,
        "block_size": 4,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
    }
    return EngineConfig(**(settings | changes))  # type: ignore[arg-type]


def ride(next_token: Callable[[tuple[int, ...]], int] = NEXT, **changes: int | float | str | bool | None) -> Ride:
    settings = config(**changes)
    return Ride(EngineCore(settings, shadow(settings, next_token)))


def shadow(settings: EngineConfig, next_token: Callable[[tuple[int, ...]], int] = NEXT) -> ShadowExecutor:
    contiguous = settings.kv_layout == "contiguous"
    return ShadowExecutor(
        settings.num_blocks,
        settings.block_size,
        next_token,
        contiguous=contiguous,
        num_host_blocks=settings.num_host_blocks,
    )
