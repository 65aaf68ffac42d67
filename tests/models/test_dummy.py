"""Made-up models: the same everywhere, and complete enough to be served."""

import numpy as np
import pytest

from chairlift.core.errors import ModelError
from chairlift.models.dummy import PRESETS, load_dummy


def test_every_tensor_of_the_layout_can_be_read_in_its_shape() -> None:
    model = load_dummy("dummy:tiny")
    layout = model.description.layout()
    assert {name: model.weights.float32(name).shape for name in layout} == layout


def test_weights_are_the_same_every_time_and_differ_by_name() -> None:
    weights = [load_dummy("dummy:tiny").weights for _ in range(2)]
    np.testing.assert_array_equal(weights[0].float32("layers.0.gate"), weights[1].float32("layers.0.gate"))
    assert (weights[0].float32("layers.0.gate") != weights[0].float32("layers.0.up")).any()


@pytest.mark.parametrize("preset", PRESETS)
def test_every_token_of_the_vocabulary_has_a_text_of_its_own(preset: str) -> None:
    model = load_dummy(f"dummy:{preset}")
    tokens, types = model.tokenizer.tokens, model.tokenizer.types
    assert len(tokens) == len(types) == len(set(tokens)) == model.description.vocab


def test_every_byte_has_a_token() -> None:
    tokens = load_dummy("dummy:tiny").tokenizer.tokens
    # GPT-2's alphabet: a space is Ġ, a line feed is Ċ, and printable characters stand for themselves.
    assert {"Ġ", "Ċ", "A", "~", "ÿ"} <= set(tokens)
    assert sum(len(token) == 1 for token in tokens) == 256


def test_unknown_preset_is_refused() -> None:
    with pytest.raises(ModelError, match="only dummy:tiny"):
        load_dummy("dummy:nothing")
