"""The stages of gpu-check on the CPU, with a tiny model: each finds what it is there for. Only where PyTorch is installed."""

import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import flashinfer_double  # noqa: E402
from gpu_check import conformance, decode, engine, environment, prefill, rivals  # noqa: E402
from gpu_check.records import Figure, Found, Record, read  # noqa: E402
from gpu_check.setting import Setting  # noqa: E402
from gpu_check.shapes import LLAMA_8B, TINY, random_weights, ways  # noqa: E402

from chairlift.execute.torch.device import Device  # noqa: E402
from chairlift.execute.torch.weights import ModelWeights  # noqa: E402

CPU = Device.pick("cpu")
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def setting(folder: Path, *, seconds: float = 60) -> Setting:
    now = time.monotonic()
    return Setting(CPU, TINY, Record(folder / "found", stage="a stage", began=now), now + seconds)


def found(folder: Path) -> Found:
    return read(folder / "found")


def cases(figures: list[Figure]) -> list[str]:
    return [figure.case for figure in figures]


def test_the_environment_has_limits_and_versions(tmp_path: Path) -> None:
    environment.measure(setting(tmp_path))
    assert cases(found(tmp_path).figures) == ["copy", "matrix product"]
    assert found(tmp_path).facts["torch"] == torch.__version__
    assert found(tmp_path).facts["device"] == "cpu"


def test_decode_has_every_batch_and_what_a_step_reads(tmp_path: Path) -> None:
    decode.measure(setting(tmp_path))
    figures = found(tmp_path).figures
    assert cases(figures) == ["batch 1, eager", "batch 3, eager"]
    first, last = (figure.bytes_per_step or 0 for figure in figures)
    # Two rows more read their keys and values, and their rows of the embedding: the weights are read once.
    description, middle = TINY.description, TINY.context + decode.WARM_STEPS + TINY.steps // 2
    position = len(description.layers) * 2 * description.kv_heads * description.head_dim * 4
    assert last - first == 2 * ((middle + 2) * position + description.hidden * 4)


def test_prefill_has_every_shape(tmp_path: Path) -> None:
    prefill.measure(setting(tmp_path))
    assert cases(found(tmp_path).figures) == ["1 x 32", "2 x 16"]


def test_the_engine_has_both_depths_and_the_gaps_between_steps(tmp_path: Path) -> None:
    engine.measure(setting(tmp_path))
    figures = found(tmp_path).figures
    assert cases(figures) == [f"batch {batch}, depth {depth}" for batch in (2, 4) for depth in (1, 2)]
    assert all(figure.gap_ms is not None and figure.gap_ms >= 0 for figure in figures)
    assert {len(figure.runs) for figure in figures} == {TINY.runs}


def test_when_time_is_short_everything_is_run_once(tmp_path: Path) -> None:
    engine.measure(setting(tmp_path, seconds=0))
    assert {len(figure.runs) for figure in found(tmp_path).figures} == {1}


def test_the_first_measurement_does_not_count(tmp_path: Path) -> None:
    values = iter(range(100))
    assert setting(tmp_path).repeated(lambda: next(values)) == (1, 2, 3)
    assert setting(tmp_path, seconds=-1).repeated(lambda: next(values)) == (5,)


def test_random_weights_are_laid_out_as_those_that_are_read() -> None:
    from dataclasses import fields

    from chairlift.execute.torch.parallel.shards import Share
    from chairlift.execute.torch.weights import read as read_weights
    from chairlift.models.dummy import DummyWeights

    description = TINY.description
    made = random_weights(description, device=CPU, dtype=torch.float32)
    loaded = read_weights(Share(description), DummyWeights(description.layout()), device=CPU, dtype=torch.float32)

    def shapes(weights: ModelWeights) -> list[object]:
        layers = [getattr(layer, field.name) for layer in weights.layers for field in fields(layer)]
        return [None if one is None else (one.shape, one.dtype) for one in (weights.embed, weights.norm, weights.head, *layers)]

    assert shapes(made) == shapes(loaded)


@pytest.mark.parity
@pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")
def test_transformers_answers_the_same_with_the_same_tensors(tmp_path: Path) -> None:
    with torch.no_grad():
        rivals.measure(setting(tmp_path, seconds=0))
    assert cases(found(tmp_path).figures) == ["batch 4, chairlift", "batch 4, transformers"]
    assert found(tmp_path).facts["answers that begin alike"] == "4 of 4"
    assert found(tmp_path).failures == []


def test_a_bare_machine_has_all_that_the_stages_import() -> None:
    """Nothing but PyTorch, Triton, NumPy and what those need: no test framework, no dependency of the server."""
    others = ("fastapi", "gguf", "hypothesis", "jinja2", "llvmlite", "msgspec", "pydantic", "pytest", "rich", "safetensors")
    script = f"""
import sys
sys.modules.update(dict.fromkeys({others!r}))
import device_checks
from gpu_check import conformance, decode, engine, environment, prefill, rivals, stage
"""
    paths = ":".join(str(ROOT / folder) for folder in ("src", "benchmarks", "tests/support"))
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"},
    )
    assert done.returncode == 0, done.stderr


def test_checks_stop_when_their_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAIRLIFT_TEST_DEVICE", "cpu")
    monkeypatch.setattr(conformance, "NEEDED", ("a_test_framework_that_is_not_there",))
    conformance.measure(setting(tmp_path, seconds=-1))
    assert found(tmp_path).failures == ["its time was over before all checks were done"]
    assert found(tmp_path).facts == {
        "run": "without pytest: a_test_framework_that_is_not_there not installed",
        "checks": "0 passed, 0 failed",
    }


@pytest.mark.parametrize(
    ("flashinfer", "expected"),
    [(False, ["eager", "CUDA graphs"]), (True, ["eager", "eager, flashinfer", "CUDA graphs"])],
)
def test_a_gpu_has_eager_steps_and_captured_ones(
    flashinfer: bool, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch believes that there is a GPU, as long as nobody computes on it."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    if flashinfer:
        flashinfer_double.install(monkeypatch)
    found = ways(LLAMA_8B.description, Device.pick("cuda"))
    assert list(found) == expected
    assert [choice.eager is None for choice in found.values()] == [name == "CUDA graphs" for name in expected]
    assert {choice.dtype for choice in found.values()} == {torch.bfloat16}
