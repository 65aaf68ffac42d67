"""Whole models out of GGUF files: what the metadata means, the order of rotary rows, the tokenizer, and broken files."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_files import SIZES, TOKENS, gguf_metadata, gguf_tensors, random_tensor, tiny_gguf, write_gguf
from numpy.typing import NDArray

from chairlift.core.errors import ModelError
from chairlift.models.description import Description, Model
from chairlift.models.gguf_model import load_gguf

Load = Callable[[Path], Model]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tiny.gguf"


@pytest.fixture
def load() -> object:
    """Loads models and closes them after the test."""
    models: list[Model] = []

    def load(path: Path) -> Model:
        models.append(load_gguf(path, name="tiny"))
        return models[-1]

    yield load
    for model in models:
        model.close()


def interleaved(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """What converters do to query and key rows of the llama architecture: halves of a head become neighbours."""
    return np.concatenate(
        [head[[i // 2 + (i % 2) * (len(head) // 2) for i in range(len(head))]] for head in np.split(rows, heads)]
    )


def described(path: Path, load: Load) -> Description:
    return load(path).description


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load_gguf(path, name="tiny")
    return str(caught.value)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma3"])
def test_every_tensor_of_the_layout_can_be_read_in_its_shape(architecture: str, path: Path, load: Load) -> None:
    model = load(tiny_gguf(path, architecture))
    layout = model.description.layout()
    assert {name: model.weights.float32(name).shape for name in layout} == layout


def test_sizes_are_those_of_the_metadata(path: Path, load: Load) -> None:
    found = described(tiny_gguf(path), load)
    assert {name: getattr(found, name) for name in SIZES if name != "layers"} == {
        name: size for name, size in SIZES.items() if name != "layers"
    }
    assert len(found.layers) == SIZES["layers"]
    assert found.attention_scale == 8**-0.5


@pytest.mark.parametrize(("name", "tensor", "heads"), [("q", "attn_q", 4), ("k", "attn_k", 2)])
def test_rotary_rows_of_llama_are_put_back_in_order(name: str, tensor: str, heads: int, path: Path, load: Load) -> None:
    tensors = gguf_tensors()
    original = tensors[f"blk.0.{tensor}.weight"]
    tensors[f"blk.0.{tensor}.weight"] = interleaved(original, heads)
    model = load(write_gguf(path, tensors, gguf_metadata()))
    np.testing.assert_array_equal(model.weights.float32(f"layers.0.{name}"), original)


def test_biases_of_llama_are_put_back_in_order(path: Path, load: Load) -> None:
    original = random_tensor("bias", (16,))
    biases = {
        f"blk.{i}.attn_{name}.bias": interleaved(random_tensor("bias", (rows,)), heads)
        for i in range(2)
        for name, rows, heads in (("q", 32, 4), ("k", 16, 2), ("v", 16, 1))
    }
    model = load(write_gguf(path, gguf_tensors() | biases, gguf_metadata()))
    assert model.description.qkv_bias
    np.testing.assert_array_equal(model.weights.float32("layers.1.k_bias"), original)


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "gemma3"])
def test_rotary_rows_of_other_architectures_stay(architecture: str, path: Path, load: Load) -> None:
    model = load(tiny_gguf(path, architecture))
    expected = gguf_tensors(architecture)["blk.0.attn_q.weight"]
    np.testing.assert_array_equal(model.weights.float32("layers.0.q"), expected)


@pytest.mark.parametrize("tied", [True, False])
def test_a_file_without_head_is_tied(tied: bool, path: Path, load: Load) -> None:
    assert described(tiny_gguf(path, tied=tied), load).tied is tied


def test_switches_of_gemma(path: Path, load: Load) -> None:
    found = described(tiny_gguf(path, "gemma3", {"gemma3.attention.sliding_window": 7}), load)
    assert (found.activation, found.qk_norm, found.sandwich) == ("gelu_tanh", True, True)
    assert found.embedding_scale == float(np.float32(32**0.5))
    assert [(layer.window, layer.rope.theta) for layer in found.layers] == [(7, 10_000.0)] * 2


def test_gemma_layers_follow_the_pattern_of_the_file(path: Path, load: Load) -> None:
    changes = {"gemma3.attention.sliding_window": 7, "gemma3.attention.sliding_window_pattern": 2}
    found = described(tiny_gguf(path, "gemma3", {"gemma3.rope.freq_base": 1e6, **changes}), load)
    assert [(layer.window, layer.rope.theta) for layer in found.layers] == [(7, 10_000.0), (None, 1e6)]


def test_gemma_scales_only_its_global_layers(path: Path, load: Load) -> None:
    scaling = {"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0}
    pattern = {"gemma3.attention.sliding_window": 7, "gemma3.attention.sliding_window_pattern": 2}
    found = described(tiny_gguf(path, "gemma3", pattern | scaling), load)
    assert [layer.rope.linear for layer in found.layers] == [1.0, 8.0]


def test_switches_of_qwen(path: Path, load: Load) -> None:
    assert described(tiny_gguf(path, "qwen2"), load).qkv_bias
    assert described(tiny_gguf(path.with_name("3.gguf"), "qwen3"), load).qk_norm


def test_rope_factors_of_the_file_are_kept(path: Path, load: Load) -> None:
    factors = {"rope_freqs.weight": np.array([1, 1, 4, 8], dtype=np.float32)}
    found = described(write_gguf(path, gguf_tensors() | factors, gguf_metadata()), load)
    assert found.layers[0].rope.factors == (1.0, 1.0, 4.0, 8.0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"llama.expert_count": 8}, "mixture of experts"),
        ({"llama.rope.scaling.type": "yarn"}, "'yarn' is not supported"),
        ({"llama.rope.dimension_count": 4}, "rope.dimension_count other than the head size"),
        ({"llama.attention.value_length": 4}, "attention.value_length other than the head size"),
        ({"llama.attention.head_count_kv": 3}, "do not share"),
        ({"llama.attention.head_count": 0}, "must be above 0"),
        ({"llama.block_count": 3}, "missing tensors: blk.2"),
        ({"llama.block_count": 1}, "tensors that llama does not have: blk.1"),
        ({"llama.block_count": 1 << 31}, "block_count must be between"),
        ({"llama.block_count": "two"}, "block_count must be a whole number"),
        ({"llama.context_length": None}, "context_length is missing"),
        ({"llama.feed_forward_length": 65}, "has the shape"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "finite"),
        ({"tokenizer.ggml.model": "bert"}, "tokenizer 'bert' is not supported"),
        ({"tokenizer.ggml.tokens": TOKENS[:-1]}, "12 types for 11 tokens"),
        ({"tokenizer.ggml.tokens": [*TOKENS, "e"], "tokenizer.ggml.token_type": None}, "13 tokens, but embeddings for 12"),
        ({"tokenizer.ggml.eos_token_id": 99}, "eos_token_id is 99"),
        ({"tokenizer.ggml.merges": None}, "merges is missing"),
        ({"tokenizer.ggml.model": "llama"}, "scores is missing"),
    ],
)
def test_unusable_files_are_refused_with_the_reason(changes: dict[str, object], said: str, path: Path) -> None:
    message = refusal(tiny_gguf(path, changes=changes))
    assert said in message
    assert message.startswith(f"{path}: ")


def test_unsupported_architecture_is_named(path: Path) -> None:
    message = refusal(write_gguf(path, gguf_tensors(), gguf_metadata(), architecture="falcon"))
    assert "architecture 'falcon' is not supported: only llama, qwen2, qwen3, gemma3 are" in message


def test_softcaps_are_refused(path: Path) -> None:
    assert "final_logit_softcapping" in refusal(tiny_gguf(path, "gemma3", {"gemma3.final_logit_softcapping": 30.0}))


def test_predominant_type_of_the_layers_is_named(path: Path, load: Load) -> None:
    assert load(tiny_gguf(path)).quantization == "F32"


def test_tokenizer_of_byte_level_bpe(path: Path, load: Load) -> None:
    source = load(tiny_gguf(path)).tokenizer
    assert (source.kind, source.pre, source.tokens) == ("bpe", "smollm", tuple(TOKENS))
    assert (source.merges, source.scores) == (("a b", "ab c"), ())
    assert (source.bos_id, source.unk_id) == (1, None)


def test_tokenizer_of_sentencepiece(path: Path, load: Load) -> None:
    changes = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [-float(i) for i in range(12)]}
    source = load(tiny_gguf(path, changes=changes)).tokenizer
    assert (source.kind, source.scores[:3]) == ("sentencepiece", (0.0, -1.0, -2.0))


@pytest.mark.parametrize("flag", [True, False, None])
def test_what_the_file_says_about_bos_is_passed_on(flag: bool | None, path: Path, load: Load) -> None:
    assert load(tiny_gguf(path, changes={"tokenizer.ggml.add_bos_token": flag})).tokenizer.add_bos is flag


def test_all_end_tokens_end_an_answer(path: Path, load: Load) -> None:
    # 2 is named by the file; 3 is a control token whose text is known.
    assert load(tiny_gguf(path)).tokenizer.eos_ids == (2, 3)


def test_end_of_turn_that_the_file_names_ends_an_answer(path: Path, load: Load) -> None:
    assert load(tiny_gguf(path, changes={"tokenizer.ggml.eot_token_id": 5})).tokenizer.eos_ids == (2, 5, 3)


def test_end_tokens_that_are_plain_text_do_not_end_an_answer(path: Path, load: Load) -> None:
    types = [1] * len(TOKENS)
    assert load(tiny_gguf(path, changes={"tokenizer.ggml.token_type": types})).tokenizer.eos_ids == (2,)


def test_a_token_that_does_not_exist_is_none(path: Path, load: Load) -> None:
    assert load(tiny_gguf(path, changes={"tokenizer.ggml.bos_token_id": 0xFFFFFFFF})).tokenizer.bos_id is None


def test_chat_templates_by_name(path: Path, load: Load) -> None:
    templates = {"tokenizer.chat_template": "plain", "tokenizer.chat_template.tool_use": "with tools"}
    model = load(tiny_gguf(path, changes=templates))
    assert model.tokenizer.templates == {"default": "plain", "tool_use": "with tools"}


@settings(max_examples=150)
@given(st.data())
def test_flipped_bytes_never_raise_anything_but_a_model_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "flipped.gguf"
    if not path.exists():
        tiny_gguf(path, "gemma3", {"gemma3.attention.sliding_window": 7})
    broken = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        broken[data.draw(st.integers(0, 4096))] = data.draw(st.integers(0, 255))
    copy = path.with_name("broken.gguf")
    copy.write_bytes(broken)
    try:
        model = load_gguf(copy, name="broken")
    except ModelError:
        return
    for name in model.description.layout():
        model.weights.float32(name)
    model.close()
