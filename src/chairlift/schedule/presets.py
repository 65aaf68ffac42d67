"""Policies by name: data, so that a comparison can run through them."""

from collections.abc import Callable, Iterable, Mapping

from chairlift.cache.prefix import PrefixIndex
from chairlift.core.config import EngineConfig
from chairlift.core.errors import ConfigError
from chairlift.schedule.cached import CachedFirst
from chairlift.schedule.deadlines import UNTARGETED_S, Deadline, Onset
from chairlift.schedule.gates import Continuous, Group, Paced
from chairlift.schedule.headrooms import Expected, Granted, Optimistic, Reserve
from chairlift.schedule.lengths import Lengths, ShortestFirst, StepTime
from chairlift.schedule.orders import AGING_S, Learner, Ranked, Seniority, arrival
from chairlift.schedule.policy import Gate, Headroom, Order, Policy, Split
from chairlift.schedule.queues import Classes, Fair, Queue, Sorted
from chairlift.schedule.shares import ANSWER_TOKEN, Ledger
from chairlift.schedule.splits import Adaptive, Balanced, Chunked, PrefillFirst, Whole


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


def _fcfs(config: EngineConfig, index: PrefixIndex) -> Order:  # noqa: ARG001
    """Neither classes nor tenants: what others are compared with."""
    return Ranked(Sorted(arrival), Seniority(None))


def _priority(config: EngineConfig, index: PrefixIndex) -> Order:  # noqa: ARG001
    seniority = Seniority(AGING_S)
    return Ranked(Classes(seniority, lambda: Sorted(arrival)), seniority)


def _fair(config: EngineConfig, index: PrefixIndex) -> Order:  # noqa: ARG001
    return _shared(config, lambda: Sorted(arrival))


def _deadline(config: EngineConfig, index: PrefixIndex) -> Order:  # noqa: ARG001
    onset = Onset()
    return _shared(config, lambda: Deadline(onset), onset, patience_s=UNTARGETED_S)


def _shortest(config: EngineConfig, index: PrefixIndex) -> Order:  # noqa: ARG001
    lengths, step = Lengths(), StepTime()
    return _shared(config, lambda: Sorted(ShortestFirst(lengths, step)), lengths, step)


def _prefix(config: EngineConfig, index: PrefixIndex) -> Order:
    return _shared(config, lambda: CachedFirst(index))


def _shared(config: EngineConfig, inner: Callable[[], Queue], *learners: Learner, patience_s: float = 0.0) -> Order:
    """Classes, then tenants' shares, then the order within."""
    # As much as all who run can be given: by so much the counters of those who wait differ in any case.
    tokens = min(config.num_blocks * config.block_size, config.max_num_seqs * config.max_model_len)
    contiguous = config.kv_layout == "contiguous"  # paged, most of what is displaced is found again
    ledger = Ledger(dict(config.tenant_weights), credit=ANSWER_TOKEN * tokens, reluctant=contiguous)
    seniority = Seniority(AGING_S, patience_s)
    return Ranked(Classes(seniority, lambda: Fair(ledger, inner)), seniority, ledger=ledger, learners=learners)


ORDERS: Mapping[str, Callable[[EngineConfig, PrefixIndex], Order]] = {
    "fcfs": _fcfs,
    "priority": _priority,
    "fair": _fair,
    "deadline": _deadline,
    "shortest": _shortest,
    "prefix": _prefix,
}
"""Scheduling policies, as the command line calls them. All but the first two are for classes and tenants as well."""


SPLITS: Mapping[str, Callable[[EngineConfig], Split]] = {
    "chunked": lambda config: Chunked(floor=_chunk(config)),
    "whole": lambda config: Whole(budget=config.max_num_batched_tokens),
    "balanced": lambda config: Balanced(),  # noqa: ARG005
}

HEADROOMS: Mapping[str, Callable[[EngineConfig], Headroom]] = {
    "optimistic": lambda config: Optimistic(),  # noqa: ARG005
    "reserve": lambda config: Reserve(block_size=config.block_size),
    "expected": lambda config: Expected(block_size=config.block_size),
}


def preset(config: EngineConfig, index: PrefixIndex) -> Policy:
    """The policy that the configuration names. `index` is the one of the engine that it is for. ConfigError for no name."""
    return Policy(
        gate=_gate(config),
        order=ORDERS[_known("scheduling policy", config.scheduling_policy, ORDERS)](config, index),
        split=_split(config),
        headroom=_headroom(config),
    )


def _known(kind: str, name: str, names: Iterable[str]) -> str:
    if name not in names:
        raise ConfigError(f"there is no {kind} {name!r}; there are {', '.join(names)}")
    return name


def _gate(config: EngineConfig) -> Gate:
    gate = GATES.get(_known("preset", config.preset, PRESETS), GATES["continuous"])(config)
    return gate if config.itl_target_s is None else Paced(gate, itl_target_s=config.itl_target_s, floor=_least(config))


def _headroom(config: EngineConfig) -> Headroom:
    """A contiguous run is all that its owner may ever need: whatever is asked for, that is as `reserve` would have it."""
    named = HEADROOMS[_known("headroom", config.headroom, HEADROOMS)](config)
    return Granted() if config.kv_layout == "contiguous" else named


def _split(config: EngineConfig) -> Split:
    split = SPLITS[_known("split", config.split, SPLITS)](config)
    if config.itl_target_s is not None:
        budget = config.max_num_batched_tokens
        split = Adaptive(split, itl_target_s=config.itl_target_s, floor=_least(config), budget=budget)
    return PrefillFirst(split) if config.preset == PREFILL_FIRST else split


def _floor(config: EngineConfig) -> int:
    """The smallest chunk that is worth a row of its own."""
    return max(1, config.max_num_batched_tokens // 8)


def _least(config: EngineConfig) -> int:
    """What all prompts together get of a step in any case, however long it takes."""
    return max(1, config.max_num_batched_tokens // 16)


def _chunk(config: EngineConfig) -> int:
    """The smallest chunk of a prompt beside other prompts. Where all may get no more than the least, they share that."""
    return _floor(config) if config.itl_target_s is None else max(1, _least(config) // 4)
