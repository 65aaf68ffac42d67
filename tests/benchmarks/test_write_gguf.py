"""The written file is a model of the asked shape, type and vocabulary. The script runs as people run it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from model_files import TOKENS, tiny_gguf

from chairlift.models.description import Model
from chairlift.models.dummy import DEVIATION, PRESETS
from chairlift.models.gguf_model import load_gguf

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "write_gguf.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("models")
    tokenizer = tiny_gguf(folder / "tokenizer.gguf")
    done = run("tiny", "Q4_0", str(folder / "tiny.gguf"), "--tokenizer", str(tokenizer), "--embedding", "Q8_0")
    assert done.returncode == 0, done.stderr
    return load_gguf(folder / "tiny.gguf", name="tiny")


def test_it_has_the_asked_shape_and_type(written: Model) -> None:
    description, shape = written.description, PRESETS["tiny"]
    sizes = (description.hidden, description.heads, description.kv_heads, description.head_dim, description.mlp)
    assert sizes == (shape.hidden, shape.heads, shape.kv_heads, shape.head_dim, shape.mlp)
    assert (len(description.layers), description.context, description.tied) == (shape.layers, shape.context, True)
    assert description.layers[0].rope.theta == shape.theta
    assert written.quantization == "Q4_0"


def test_the_vocabulary_is_padded(written: Model) -> None:
    assert len(written.tokenizer.tokens) == written.description.vocab == PRESETS["tiny"].vocab
    assert list(written.tokenizer.tokens[: len(TOKENS)]) == TOKENS


@pytest.mark.parametrize("name", ["embed", "layers.0.q", "layers.1.down"])
def test_weights_are_random_numbers_of_the_usual_size(written: Model, name: str) -> None:
    values = written.weights.float32(name)
    assert values.std() == pytest.approx(DEVIATION, rel=0.05)
    assert np.unique(values).size > 100


def test_norms_are_ones(written: Model) -> None:
    assert (written.weights.float32("layers.1.mlp_norm") == 1).all()


def test_a_vocabulary_that_is_too_large_is_refused(tmp_path: Path) -> None:
    tokenizer = tiny_gguf(tmp_path / "large.gguf", changes={"tokenizer.ggml.tokens": [f"t{n}" for n in range(600)]})
    done = run("tiny", "F16", str(tmp_path / "out.gguf"), "--tokenizer", str(tokenizer))
    assert done.returncode == 1
    assert "600 tokens is more than the 512" in done.stderr
