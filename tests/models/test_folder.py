"""Hugging Face folders: tensors of all types in one file or several, tokenizer, templates, defaults, broken folders."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from model_files import CONFIG, hf_folder, hf_tensors, random_tensor, safetensors_bytes, tokenizer_json

from chairlift.core.errors import ModelError
from chairlift.models.description import Model
from chairlift.models.folder import load_folder

Load = Callable[[Path], Model]
Q = "model.layers.0.self_attn.q_proj.weight"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def load() -> object:
    """Loads models and closes them after the test."""
    models: list[Model] = []

    def load(path: Path) -> Model:
        models.append(load_folder(path, name="tiny"))
        return models[-1]

    yield load
    for model in models:
        model.close()


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load_folder(folder, name="tiny")
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3", "gemma3_text"])
def test_every_tensor_of_the_layout_can_be_read_in_its_shape(model_type: str, tmp_path: Path, load: Load) -> None:
    model = load(hf_folder(tmp_path, model_type=model_type))
    layout = model.description.layout()
    assert {name: model.weights.float32(name).shape for name in layout} == layout


@pytest.mark.parametrize(("dtype", "kept_bits"), [("F32", 23), ("F16", 10), ("BF16", 7)])
def test_numbers_of_every_type(dtype: str, kept_bits: int, tmp_path: Path, load: Load) -> None:
    model = load(hf_folder(tmp_path, dtype=dtype))
    values = model.weights.float32("layers.0.q")
    assert model.quantization == dtype
    assert values.dtype == np.float32
    assert values.flags.writeable
    np.testing.assert_allclose(values, random_tensor(Q, (32, 32)), rtol=2.0**-kept_bits, atol=1e-6)


@pytest.mark.parametrize("name", ["norm", "layers.1.attn_norm", "layers.1.q_norm", "layers.1.post_mlp_norm"])
def test_norms_of_gemma_get_their_one(name: str, tmp_path: Path, load: Load) -> None:
    model = load(hf_folder(tmp_path, model_type="gemma3_text"))
    stored = model.weights.names[name]  # type: ignore[attr-defined]
    shape = model.description.layout()[name]
    np.testing.assert_array_equal(model.weights.float32(name), random_tensor(stored, shape) + np.float32(1))


def test_matrices_of_gemma_stay(tmp_path: Path, load: Load) -> None:
    model = load(hf_folder(tmp_path, model_type="gemma3_text"))
    np.testing.assert_array_equal(model.weights.float32("layers.0.q"), random_tensor(Q, (32, 32)))


def shard(folder: Path, *, second: str = "two.safetensors") -> Path:
    hf_folder(folder)
    tensors = hf_tensors(CONFIG)
    (folder / "model.safetensors").unlink()
    halves = {"one.safetensors": list(tensors)[:5], "two.safetensors": list(tensors)[5:]}
    for name, keys in halves.items():
        (folder / name).write_bytes(safetensors_bytes({key: tensors[key] for key in keys}))
    weight_map = dict.fromkeys(halves["one.safetensors"], "one.safetensors") | dict.fromkeys(halves["two.safetensors"], second)
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return folder


def test_shards_are_one_model(tmp_path: Path, load: Load) -> None:
    model = load(shard(tmp_path))
    np.testing.assert_array_equal(model.weights.float32("layers.0.q"), random_tensor(Q, (32, 32)))
    assert model.weights.float32("head").shape == (12, 32)


@pytest.mark.parametrize("name", ["../two.safetensors", "/etc/two.safetensors", "two.bin", "a\\two.safetensors"])
def test_shards_must_lie_in_the_folder(name: str, tmp_path: Path) -> None:
    assert "no safetensors file beside it" in refusal(shard(tmp_path, second=name))


def test_missing_shard_is_named(tmp_path: Path) -> None:
    assert "gone.safetensors" in refusal(shard(tmp_path, second="gone.safetensors"))


def test_missing_head_of_an_untied_model_is_an_error(tmp_path: Path) -> None:
    folder = hf_folder(tmp_path)
    tensors = hf_tensors(CONFIG)
    del tensors["lm_head.weight"]
    (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    assert "missing tensors: lm_head.weight" in refusal(folder)


def test_head_of_a_tied_model_may_be_there(tmp_path: Path, load: Load) -> None:
    folder = hf_folder(tmp_path, tie_word_embeddings=True)
    (folder / "model.safetensors").write_bytes(safetensors_bytes(hf_tensors(CONFIG)))
    assert load(folder).description.tied


def test_stored_rotary_frequencies_are_ignored(tmp_path: Path, load: Load) -> None:
    folder = hf_folder(tmp_path)
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": random_tensor("inv", (4,))}
    (folder / "model.safetensors").write_bytes(safetensors_bytes(hf_tensors(CONFIG) | extra))
    assert load(folder).description.vocab == 12


def test_unexpected_tensors_are_named(tmp_path: Path) -> None:
    folder = hf_folder(tmp_path)
    extra = {"model.layers.0.surprise": random_tensor("x", (4,))}
    (folder / "model.safetensors").write_bytes(safetensors_bytes(hf_tensors(CONFIG) | extra))
    assert "does not have: model.layers.0.surprise" in refusal(folder)


def test_wrong_shape_is_named(tmp_path: Path) -> None:
    folder = hf_folder(tmp_path)
    (folder / "model.safetensors").write_bytes(safetensors_bytes(hf_tensors(CONFIG) | {Q: random_tensor(Q, (16, 32))}))
    assert f"tensor '{Q}' has the shape (16, 32), it must be (32, 32)" in refusal(folder)


def test_other_number_types_are_refused_by_name(tmp_path: Path) -> None:
    assert "of type F64" in refusal(hf_folder(tmp_path, dtype="F64"))


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_cut_weights_are_refused(kept: int, tmp_path: Path) -> None:
    folder = hf_folder(tmp_path)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    assert "not a whole safetensors file" in refusal(folder)


def test_pickled_weights_are_not_read(tmp_path: Path) -> None:
    folder = hf_folder(tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "only safetensors are read" in refusal(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_missing_files_are_named(name: str, tmp_path: Path) -> None:
    folder = hf_folder(tmp_path)
    (folder / name).unlink()
    assert f"{name} is missing" in refusal(folder)


@pytest.mark.parametrize(
    ("content", "said"), [("{", "not valid JSON"), ("[]", "not a JSON object"), ("[" * 100_000, "not valid")]
)
def test_broken_config_is_refused(content: str, said: str, tmp_path: Path) -> None:
    assert said in refusal(hf_folder(tmp_path, files={"config.json": content}))


def test_unsupported_architecture_is_refused_before_anything_else_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    assert "architecture 'mamba' is not supported" in refusal(tmp_path)


def test_tokenizer_file_is_passed_on_whole(tmp_path: Path, load: Load) -> None:
    source = load(hf_folder(tmp_path)).tokenizer
    assert (source.kind, source.json) == ("json", tokenizer_json())
    assert (source.bos_id, source.eos_ids, source.add_bos, source.templates) == (1, (2,), None, {})


def test_special_tokens_by_text_or_as_objects(tmp_path: Path, load: Load) -> None:
    about = {
        "bos_token": {"content": "<s>"},
        "eos_token": "<|im_end|>",
        "pad_token": None,
        "unk_token": "a",
        "add_bos_token": True,
    }
    source = load(hf_folder(tmp_path, bos_token_id=9, files={"tokenizer_config.json": about})).tokenizer
    assert (source.bos_id, source.pad_id, source.unk_id, source.add_bos) == (1, None, 4, True)


def test_tokens_without_embedding_are_left_out(tmp_path: Path, load: Load) -> None:
    file = json.loads(tokenizer_json())
    file["added_tokens"].append({"id": 12, "content": "<image>", "special": True})
    source = load(
        hf_folder(tmp_path, files={"tokenizer.json": file, "tokenizer_config.json": {"pad_token": "<image>"}})
    ).tokenizer
    assert ("<image>" in source.json, source.pad_id) == (False, None)


def test_all_end_tokens_are_collected(tmp_path: Path, load: Load) -> None:
    files = {"generation_config.json": {"eos_token_id": [7, 8]}, "tokenizer_config.json": {"eos_token": "<|im_end|>"}}
    assert set(load(hf_folder(tmp_path, files=files)).tokenizer.eos_ids) == {2, 3, 7, 8}


def test_the_tokenizers_own_end_token_comes_first_as_templates_write_it(tmp_path: Path, load: Load) -> None:
    files = {"generation_config.json": {"eos_token_id": [7, 8]}, "tokenizer_config.json": {"eos_token": "<|im_end|>"}}
    assert load(hf_folder(tmp_path, files=files)).tokenizer.eos_ids == (3, 7, 8, 2)


def test_recommended_sampling_is_passed_on(tmp_path: Path, load: Load) -> None:
    recommended = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.1, "min_p": None, "do_sample": True}
    model = load(hf_folder(tmp_path, files={"generation_config.json": recommended}))
    assert model.defaults == {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.1}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", -1),
        ("top_k", -2),
        ("top_k", 1.5),
        ("top_p", 0),
        ("top_p", 1.01),
        ("min_p", -0.1),
        ("min_p", 2),
        ("repetition_penalty", 0),
    ],
)
def test_impossible_recommendations_are_refused(key: str, value: float, tmp_path: Path) -> None:
    said = refusal(hf_folder(tmp_path, files={"generation_config.json": {key: value}}))
    assert said == f"generation_config.json: {value:g} is no possible {key}"


def test_a_top_k_of_minus_one_is_none(tmp_path: Path, load: Load) -> None:
    assert load(hf_folder(tmp_path, files={"generation_config.json": {"top_k": -1}})).defaults == {"top_k": 0}


@pytest.mark.parametrize(
    ("files", "templates"),
    [
        ({"tokenizer_config.json": {"chat_template": "one"}}, {"default": "one"}),
        (
            {
                "tokenizer_config.json": {
                    "chat_template": [{"name": "default", "template": "a"}, {"name": "rag", "template": "b"}]
                }
            },
            {"default": "a", "rag": "b"},
        ),
        ({"chat_template.jinja": "file", "tokenizer_config.json": {"chat_template": "one"}}, {"default": "file"}),
        ({"chat_template.json": {"chat_template": "old"}}, {"default": "old"}),
        ({"additional_chat_templates/tool_use.jinja": "tools"}, {"tool_use": "tools"}),
    ],
)
def test_chat_templates(files: dict[str, object], templates: dict[str, str], tmp_path: Path, load: Load) -> None:
    assert load(hf_folder(tmp_path, files=files)).tokenizer.templates == templates
