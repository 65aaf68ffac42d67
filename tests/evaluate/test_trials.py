from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.core.errors import ConfigError
from chairlift.core.types import Request, Stopping
from chairlift.evaluate.trials import Sizes, draw_trial
from chairlift.schedule import door

SIZES = Sizes()
TEXT = range(3_000)
SMALL = Sizes(requests=3, prompt=12, answer=8, long=None)


@given(random=st.randoms(use_true_random=False), long=st.booleans(), sizes=st.sampled_from([SIZES, SMALL]))
def test_every_trial_fits_the_executors_that_its_sizes_ask_for(random: Random, long: bool, sizes: Sizes) -> None:
    trial = draw_trial(random, TEXT, sizes, long=long)
    assert 2 <= len(trial.asked) <= sizes.requests
    assert trial.config.max_num_seqs <= sizes.requests
    assert trial.config.max_num_batched_tokens <= sizes.max_tokens
    assert max(len(asked.tokens) for asked in trial.asked) <= sizes.max_tokens
    assert len(set(trial.table)) == len(trial.table) == trial.config.num_blocks
    assert 0 <= min(trial.table) <= max(trial.table) < sizes.num_blocks


@given(random=st.randoms(use_true_random=False), long=st.booleans())
def test_every_request_of_a_trial_passes_the_door(random: Random, long: bool) -> None:
    trial = draw_trial(random, TEXT, SIZES, long=long)
    for asked in trial.asked:
        stopping = Stopping(len(asked.tokens) - asked.prompt)
        door.check(Request("r", asked.tokens[: asked.prompt], stopping), trial.config)
        assert asked.prompt in asked.checked
        assert len(asked.tokens) - 1 in asked.checked
        assert asked.prompt <= min(asked.checked) <= max(asked.checked) < len(asked.tokens)


def test_the_same_seed_makes_the_same_trials() -> None:
    assert draw_trial(Random(5), TEXT, SIZES) == draw_trial(Random(5), TEXT, SIZES)
    assert draw_trial(Random(5), TEXT, SIZES) != draw_trial(Random(6), TEXT, SIZES)


def test_a_model_of_short_context_gets_no_long_prompts() -> None:
    assert SIZES.within(4096) is SIZES
    short = SIZES.within(256)
    assert short.long is None
    assert short.max_tokens <= 256


def test_a_model_of_hardly_any_context_is_refused() -> None:
    with pytest.raises(ConfigError, match="a context of 64 tokens is too short"):
        SIZES.within(64)
