"""That differences are found, that there are none on tiny models, and that there are none on the default model."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from random import Random

import numpy as np
import pytest
from cpu_executors import cpu_executor
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from logits_executors import Fault, HashedLogits
from real_models import real_model

from chairlift.core.types import Work
from chairlift.evaluate import texts
from chairlift.evaluate.invariance import (
    BESIDE,
    CIRCUMSTANCES,
    HIT,
    LONG,
    PADDED,
    PIECES,
    PREEMPTED,
    Report,
    equal,
    measure,
    run,
)
from chairlift.evaluate.logits import LogitsExecutor
from chairlift.evaluate.trials import Sizes, Trial, draw_trial
from chairlift.execute.cpu.executor import CpuOptions
from chairlift.models.description import Model
from chairlift.models.dummy import load_dummy
from chairlift.text import tokenizer

SIZES = Sizes(prompt=40, answer=24, long=None)
WITH_LONG = Sizes(long=1030, prompt=40, answer=24)
TEXT = range(2_000)
TRIALS = 30
DEFAULT = CpuOptions()
WAYS = (
    CpuOptions(quantization="none", kv_cache_dtype="f32"),
    CpuOptions(quantization="int8", kv_cache_dtype="f16"),
    CpuOptions(quantization="int8", kv_cache_dtype="int8"),
)


def trials(number_of: int, sizes: Sizes = SIZES, text: Sequence[int] = TEXT) -> list[Trial]:
    random = Random(1)
    return [draw_trial(random, text, sizes, long=number % 10 == 0) for number in range(number_of)]


def hashed(fault: Fault) -> Report:
    return measure(trials(TRIALS), {"hashed": HashedLogits(SIZES.num_blocks, SIZES.block_size, fault)})


# ── differences are found ─────────────────────────────────────────────────────────────────────────────────────────────────


def in_company(work: Work, step: Sequence[Work]) -> bool:
    return len(step) > 1


def in_large_steps(work: Work, step: Sequence[Work]) -> bool:
    return sum(len(row.tokens) for row in step) > 1 and len(work.tokens) == 1


def beside_padding(work: Work, step: Sequence[Work]) -> bool:
    return any(row.pad for row in step)


def not_from_the_start(work: Work, step: Sequence[Work]) -> bool:
    return work.start > 0


def in_high_blocks(work: Work, step: Sequence[Work]) -> bool:
    return max(work.blocks) >= SIZES.num_blocks // 2


def resumed(work: Work, step: Sequence[Work]) -> bool:
    return work.start > 0 and len(work.tokens) > 1


@pytest.mark.parametrize("fault", [in_company, in_large_steps, beside_padding, not_from_the_start, in_high_blocks, resumed])
def test_logits_that_depend_on_how_they_were_computed_are_found(fault: Fault) -> None:
    assert hashed(fault).differences


def test_logits_that_depend_on_their_tokens_only_have_no_differences() -> None:
    report = hashed(lambda work, step: False)
    assert report.differences == ()
    assert report.compared["hashed"] > 2 * TRIALS


def test_a_difference_between_two_executors_names_the_wrong_one() -> None:
    right = HashedLogits(SIZES.num_blocks, SIZES.block_size)
    wrong = HashedLogits(SIZES.num_blocks, SIZES.block_size, lambda work, step: True)
    report = measure(trials(3), {"right": right, "wrong": wrong})
    assert {difference.executor for difference in report.differences} == {"wrong"}
    assert len(report.differences) == report.compared["wrong"]


def test_a_difference_says_in_one_line_where_and_how_much() -> None:
    first = hashed(in_company).differences[0]
    line = str(first)
    assert "\n" not in line
    assert f"trial {first.trial}, request {first.place.request} after {first.place.tokens} tokens" in line
    assert BESIDE in line
    assert "1 of 8 logits differ, first that of token 7" in line
    assert first.alone != first.found
    assert repr(first.found) in line


def test_every_circumstance_occurs() -> None:
    sizes = WITH_LONG
    report = measure(trials(60, sizes), {"hashed": HashedLogits(sizes.num_blocks, sizes.block_size)})
    assert all(report.met["hashed"][circumstance] > 5 for circumstance in CIRCUMSTANCES), report.met


def test_progress_counts_trials() -> None:
    told: list[int] = []
    executor = HashedLogits(SIZES.num_blocks, SIZES.block_size)
    measure(trials(4), {"hashed": executor}, on_trial=lambda: told.append(1))
    assert len(told) == 4


def test_bits_are_compared_and_not_numbers() -> None:
    zero, minus, nan = (np.array([value], dtype=np.float32) for value in (0.0, -0.0, np.nan))
    assert not equal(zero, minus)
    assert equal(nan, nan.copy())


# ── there are none ────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def on_threads(
    model: Model, sizes: Sizes, counts: Sequence[int] = (1, 2), options: CpuOptions = DEFAULT
) -> Iterator[Mapping[str, LogitsExecutor]]:
    with ExitStack() as stack:
        yield {
            f"{threads} threads": stack.enter_context(
                cpu_executor(
                    model.description,
                    model.weights,
                    num_blocks=sizes.num_blocks,
                    max_tokens=sizes.max_tokens,
                    max_rows=sizes.requests,
                    options=replace(options, threads=threads),
                )
            )
            for threads in counts
        }


def eventful(text: Sequence[int], sizes: Sizes, circumstances: frozenset[str]) -> st.SearchStrategy[Trial]:
    """Trials in which all of these are met. That does not depend on who computes, so it can be tried out.

    From a seed, as the random numbers that Hypothesis makes up are often so small that memory is never short.
    """

    def first_from(seed: int) -> Trial:
        for number in count(seed):
            trial = draw_trial(Random(number), text, sizes)
            seen = run(trial, HashedLogits(sizes.num_blocks, sizes.block_size))
            if circumstances <= {name for one in seen.values() for name in one.circumstances}:
                return trial
        raise AssertionError

    return st.integers(0, 2**32 - 1).map(first_from)


def never_differs(executors: Mapping[str, LogitsExecutor], trials: st.SearchStrategy[Trial], *, examples: int) -> Counter[str]:
    """Tries trials on all executors. How often each circumstance was met."""
    met: Counter[str] = Counter()

    # A trial that fails is not made smaller, as that would take minutes: the first difference says enough.
    @settings(max_examples=examples, deadline=None, phases=[Phase.explicit, Phase.generate])
    @given(trial=trials)
    def holds(trial: Trial) -> None:
        report = measure([trial], executors)
        assert report.differences == ()
        for found in report.met.values():
            met.update(found)

    holds()
    return met


@pytest.mark.parametrize("options", WAYS, ids=lambda options: f"{options.quantization}-{options.kv_cache_dtype}")
def test_a_tiny_model_has_the_same_bits_in_any_company(options: CpuOptions) -> None:
    model = load_dummy("dummy:tiny")
    text = Random(2).choices(range(model.description.vocab), k=2_000)
    asked = frozenset((BESIDE, PADDED, PIECES, PREEMPTED, HIT))
    with on_threads(model, SIZES, options=options) as executors:
        met = never_differs(executors, eventful(text, SIZES, asked), examples=8)
    assert all(met[circumstance] for circumstance in asked), met


def test_a_long_context_has_the_same_bits_on_any_number_of_threads() -> None:
    model = load_dummy("dummy:tiny")
    text = Random(3).choices(range(model.description.vocab), k=2_000)
    tried = [draw_trial(Random(seed), text, WITH_LONG, long=True) for seed in range(3)]
    with on_threads(model, WITH_LONG, (1, 2, 3)) as executors:
        report = measure(tried, executors)
    assert report.differences == ()
    assert all(met[LONG] for met in report.met.values())


@pytest.mark.model
def test_the_default_model_has_the_same_bits_in_any_company() -> None:
    model = real_model("smollm2")
    text = tokenizer.build(model.tokenizer).encode(texts.shipped())
    sizes = Sizes(requests=4, prompt=32, answer=20, long=None, checked=2)
    with on_threads(model, sizes) as executors:
        met = never_differs(executors, eventful(text, sizes, frozenset((PREEMPTED, HIT))), examples=3)
    model.close()
    assert met[PREEMPTED], met
    assert met[HIT], met
