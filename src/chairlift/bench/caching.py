"""What prefix caching costs where it finds nothing: pairs of runs on one executor, with and without it, one after another.

Knows how an engine is measured (`bench.engine`) and compares; all prompts are random, so no two begin alike. Both of a pair get
the same prompts, and take turns in going first, so that a machine that gets slower or faster favours neither.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace

from chairlift.bench.engine import Run, Subject, Workload, measure


@dataclass(frozen=True, slots=True)
class Pair:
    """Seconds of all steps of a run with caching and of one without, and of those in which only next tokens were computed."""

    cached_s: float
    plain_s: float
    cached_decode_s: float
    plain_decode_s: float

    @property
    def ratio(self) -> float:
        """Of times: above 1 if caching is slower."""
        return self.cached_s / self.plain_s

    @property
    def decode_ratio(self) -> float:
        return self.cached_decode_s / self.plain_decode_s


@dataclass(frozen=True, slots=True)
class Overhead:
    """Parts by which caching makes a run longer, of all pairs: the median, and the quartiles around it."""

    pairs: int
    tokens: int
    median: float
    lower: float
    upper: float
    decode_median: float


def compare(
    subject: Subject,
    workload: Workload,
    *,
    clock: Callable[[], float],
    on_tokens: Callable[[int], None] = lambda _: None,
) -> list[Pair]:
    """A pair for each round of the workload, which has one batch size. Each way has a scheduler of its own and runs warm."""
    assert len(workload.batches) == 1, "a pair is two runs of one batch size"
    cached, plain = (
        measure(_with(subject, caching=caching), workload, clock=clock, on_tokens=on_tokens) for caching in (True, False)
    )
    pairs: list[Pair] = []
    for number in range(workload.rounds):
        if number % 2:
            without, with_it = next(plain), next(cached)
        else:
            with_it, without = next(cached), next(plain)
        pairs.append(Pair(_total_s(with_it), _total_s(without), with_it.decode.total_s, without.decode.total_s))
    return pairs


def overhead(pairs: list[Pair], workload: Workload) -> Overhead:
    """ValueError if there are fewer than two pairs."""
    lower, median, upper = statistics.quantiles([pair.ratio for pair in pairs], n=4, method="inclusive")
    decode = statistics.median(pair.decode_ratio for pair in pairs)
    return Overhead(len(pairs), workload.tokens, median - 1, lower - 1, upper - 1, decode - 1)


def _with(subject: Subject, *, caching: bool) -> Subject:
    return replace(subject, config=replace(subject.config, enable_prefix_caching=caching))


def _total_s(run: Run) -> float:
    return run.prefill.total_s + run.decode.total_s
