"""Policies by name: data, so that a comparison can run through them."""

from collections.abc import Callable, Mapping

from chairlift.core.config import EngineConfig
from chairlift.core.errors import ConfigError
from chairlift.schedule.gates import Continuous, Group
from chairlift.schedule.headrooms import Optimistic
from chairlift.schedule.orders import Ranked, arrival
from chairlift.schedule.policy import Gate, Policy, Split
from chairlift.schedule.splits import Chunked, PrefillFirst


def _static(*, padded: bool = False, by_length: bool = False) -> Callable[[EngineConfig], Gate]:
    return lambda config: Group(size=config.max_num_seqs, padded=padded, by_length=by_length)


def _dynamic(*, padded: bool = False, by_length: bool = False) -> Callable[[EngineConfig], Gate]:
    return lambda config: Group(size=config.max_num_seqs, wait_s=config.batch_wait_s, padded=padded, by_length=by_length)


GATES: Mapping[str, Callable[[EngineConfig], Gate]] = {
    "continuous": lambda config: Continuous(),  # noqa: ARG005
    "static": _static(padded=True),
    "static-compacted": _static(),
    "static-sorted": _static(padded=True, by_length=True),
    "dynamic": _dynamic(padded=True),
    "dynamic-compacted": _dynamic(),
    "dynamic-sorted": _dynamic(padded=True, by_length=True),
}

"""Presets that differ in when waiting requests may join."""

PREFILL_FIRST = "prefill-first"
PRESETS = (*GATES, PREFILL_FIRST)
"""All names. Prefill-first lets requests join at every step, as the continuous one does."""


def preset(config: EngineConfig) -> Policy:
    """The policy that the configuration names."""
    if config.preset not in PRESETS:
        raise ConfigError(f"there is no preset {config.preset!r}; there are {', '.join(PRESETS)}")
    return Policy(
        gate=GATES.get(config.preset, GATES["continuous"])(config),
        order=Ranked(arrival),
        split=_split(config),
        headroom=Optimistic(),
    )


def _split(config: EngineConfig) -> Split:
    chunked = Chunked(floor=max(1, config.max_num_batched_tokens // 8))
    return PrefillFirst(chunked) if config.preset == PREFILL_FIRST else chunked
