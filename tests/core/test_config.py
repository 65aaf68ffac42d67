"""Settings that cannot work are refused, in a line that names them."""

from dataclasses import replace

import pytest
from engines import config

from chairlift.core.errors import ConfigError


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_size": 0}, "block_size must be at least 1"),
        ({"num_host_blocks": -1}, "num_host_blocks must not be negative"),
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1"),
        ({"max_model_len": 1}, "one token of prompt and one of answer"),
        ({"max_num_queued_tokens": 0}, "max_num_queued_tokens must be at least 1"),
        ({"max_num_batched_tokens": 3}, "must not be less than max_num_seqs"),
    ],
)
def test_impossible_settings_are_named(changes: dict[str, int], message: str):
    with pytest.raises(ConfigError, match=message):
        replace(config(), **changes)
