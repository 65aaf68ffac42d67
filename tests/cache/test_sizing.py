"""KV pool sizes from memory, and the messages when nothing fits."""

import pytest

from chairlift.cache.sizing import bytes_per_token, host_blocks, size_pool
from chairlift.core.errors import ConfigError

GIB = 2**30


def size(**changes: int | None):
    settings = {"token_bytes": 1024, "block_size": 16, "max_num_seqs": 4, "context": 1024, "free_bytes": GIB} | changes
    return size_pool(**settings)  # type: ignore[arg-type]


def test_keys_and_values_of_all_layers():
    assert bytes_per_token(layers=30, kv_heads=3, head_dim=64, itemsize=4) == 46080


def test_no_more_than_the_sequences_can_use():
    assert size().num_blocks == 4 * 64


def test_a_quarter_of_free_memory_at_most():
    assert size(free_bytes=4 * 100 * 16 * 1024, max_num_seqs=64).num_blocks == 100


def test_the_context_shrinks_to_fit():
    assert size(free_bytes=4 * 10 * 16 * 1024).max_model_len == 160


def test_a_context_that_was_asked_for_is_never_shrunk():
    with pytest.raises(ConfigError, match="does not fit into the KV cache"):
        size(free_bytes=4 * 10 * 16 * 1024, max_model_len=1024)


def test_a_context_longer_than_the_models_is_refused():
    with pytest.raises(ConfigError, match="1024 tokens that the model was made for"):
        size(max_model_len=2048)


def test_a_given_size_is_used():
    assert size(kv_bytes=16 * 1024 * 70).num_blocks == 70


def test_memory_for_less_than_a_block_is_refused():
    with pytest.raises(ConfigError, match="at least 16384 bytes"):
        size(kv_bytes=100)


def test_full_contexts():
    assert size().full_contexts(16) == 4.0


def host(swap_bytes: int) -> int:
    return host_blocks(size(), block_size=16, max_num_seqs=4, swap_bytes=swap_bytes)


def test_those_who_are_swapped_get_what_was_asked_for_in_whole_blocks():
    assert host(3 * 16 * 1024 + 1) == 3


def test_those_who_are_swapped_get_no_more_than_all_places_can_fill():
    assert host(GIB) == 4 * 64


def test_a_swap_space_of_less_than_a_block_is_refused():
    with pytest.raises(ConfigError, match="swap_space is less than the 16384 bytes"):
        host(16 * 1024 - 1)
