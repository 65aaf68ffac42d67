"""From tensors to packed weights: forms, sizes, and that the order of the work does not matter."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from cpu_executors import CPU_BLOCK, EXACT, cpu_executor
from model_files import gguf_metadata, gguf_tensors, hf_folder, write_gguf
from numpy.typing import NDArray
from stored_weights import FLOATS, QUANTISED, StoredTensors
from tiny_decoders import PLAIN, VARIANTS, ArrayWeights, random_tokens, random_weights, row

from chairlift.core.errors import ModelError
from chairlift.execute.cpu.formats import BF16, F16, F32, Q4_MIN_F16, Q4_ZERO_F16, Q8_F16, Q8_F32, Q8_F32_16, Q8_MIN_F16, Format
from chairlift.execute.cpu.isa import SHAPES
from chairlift.execute.cpu.kv import KVCache
from chairlift.execute.cpu.loading import Loader
from chairlift.execute.cpu.operations import KV_KINDS
from chairlift.execute.cpu.options import QUANTIZATIONS, Choice, CpuOptions, Quantization
from chairlift.execute.cpu.outline import Outline, computed_as
from chairlift.execute.cpu.packing import Matrix, Packed, floats, rounded_to_4_bits, rounded_to_8_bits
from chairlift.execute.cpu.program import ModelWeights, Product
from chairlift.execute.cpu.sizing import footprint, kv_bytes
from chairlift.execute.reference import ReferenceExecutor
from chairlift.models.description import Description, Model, Weights
from chairlift.models.folder import load_folder
from chairlift.models.gguf_model import load_gguf

SHAPE = SHAPES["portable"]
WIDE = replace(PLAIN, vocab=70, hidden=256, heads=4, kv_heads=2, head_dim=64, mlp=256, layers=PLAIN.layers[:1])
"""Whole super-blocks of the K types everywhere."""
NARROW_HEADS = replace(WIDE, heads=8, kv_heads=4, head_dim=40, mlp=320)
MIXED: Mapping[str, str] = {"v": "Q6_K", "down": "Q6_K", "embed": "Q8_0"}


def loaded(description: Description, weights: Weights, quantization: Quantization, **more: Any) -> ModelWeights:
    return Loader(description, weights, shape=SHAPE, quantization=quantization, **more).load()


def products(weights: ModelWeights) -> Iterator[Product]:
    yield from weights.head
    for layer in weights.layers:
        yield from (*layer.qkv, *layer.o, *layer.gate_up, *layer.down)


def matrices(weights: ModelWeights) -> list[Packed]:
    """Each once, though a tied head is the embedding."""
    found = [weights.embed, *(product.packed for product in products(weights))]
    return list({packed.address: packed for packed in found}.values())


def allocated(weights: ModelWeights) -> int:
    vectors = [weights.norm, *(vector for layer in weights.layers for vector in layer.vectors.values())]
    biases = [product.bias for product in products(weights) if product.bias is not None]
    return sum(part.nbytes for part in (*(packed.data for packed in matrices(weights)), *vectors, *biases))


def image(weights: ModelWeights) -> bytes:
    return b"".join(packed.data.tobytes() for packed in matrices(weights))


def forms(weights: ModelWeights) -> set[Format]:
    return {packed.format for packed in matrices(weights)}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("auto", (Q4_ZERO_F16, Q4_MIN_F16, Q8_F16, Q8_F32_16, Q8_F32)),
        ("int8", (Q8_F16, Q8_MIN_F16, Q8_F16, Q8_F32_16, Q8_F32)),
        ("int4", (Q4_ZERO_F16, Q4_MIN_F16, Q4_MIN_F16, Q4_MIN_F16, Q4_MIN_F16)),
        ("none", (F32, F32, F32, F32, BF16)),
    ],
)
def test_the_form_follows_from_that_of_the_file(kind: Quantization, expected: tuple[Format, ...]) -> None:
    stored = (Q4_ZERO_F16, Q4_MIN_F16, Q8_F16, Q8_F32_16, BF16)
    assert tuple(computed_as(form, kind) for form in stored) == expected


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
class TestSizes:
    """What is told before anything is read is what is allocated, to the byte."""

    @pytest.mark.parametrize("kind", [*QUANTISED, *FLOATS])
    def test_of_every_type(self, quantization: Quantization, kind: str) -> None:
        self.check(WIDE, StoredTensors(WIDE, kind, {}), quantization)

    def test_of_mixed_types(self, quantization: Quantization) -> None:
        self.check(WIDE, StoredTensors(WIDE, "Q4_K", MIXED), quantization)

    @pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "BF16"])
    def test_of_heads_that_are_padded(self, quantization: Quantization, kind: str) -> None:
        self.check(NARROW_HEADS, StoredTensors(NARROW_HEADS, kind, {}), quantization)

    @pytest.mark.parametrize("description", VARIANTS.values(), ids=VARIANTS.keys())
    def test_of_every_architecture(self, quantization: Quantization, description: Description) -> None:
        self.check(description, random_weights(description), quantization)

    def check(self, description: Description, weights: Weights, quantization: Quantization) -> None:
        predicted = Outline(description, weights, quantization).bytes
        assert predicted == allocated(loaded(description, weights, quantization))


@pytest.mark.parametrize("kind", KV_KINDS)
@pytest.mark.parametrize("description", [PLAIN, WIDE, NARROW_HEADS], ids=["6", "64", "40"])
def test_the_size_of_keys_and_values_is_told_beforehand(description: Description, kind: str) -> None:
    cache = KVCache(
        layers=len(description.layers),
        num_blocks=3,
        block_size=CPU_BLOCK,
        kv_heads=description.kv_heads,
        head=Outline(description, random_weights(description), "auto").widths.head,
        kind=kind,
    )
    assert cache.nbytes == 3 * CPU_BLOCK * kv_bytes(description, kind)


def test_keys_and_values_in_8_bits_have_a_scale_for_each_head() -> None:
    assert kv_bytes(WIDE, "int8") == 2 * 2 * (64 + 4)


def test_a_step_works_in_no_more_than_is_told() -> None:
    weights = random_weights(PLAIN)
    with cpu_executor(PLAIN, weights, num_blocks=2, max_tokens=48, max_rows=3) as executor:
        executor.logits([row(random_tokens(20), [0, 1])])
        arena = executor._arena
        arrays = [getattr(arena, name) for name in arena.__slots__]
        tables = [table._table for table in executor._turns.values()]
        scratch = executor._pool._scratch
        pads = executor._kv.nbytes - 2 * CPU_BLOCK * kv_bytes(PLAIN, "f32")
        used = pads + sum(array.nbytes for array in (*arrays, *tables, *scratch))
    told = footprint(PLAIN, weights, Choice(1, "portable", "none", "f32"), block_size=CPU_BLOCK, max_tokens=48, max_rows=3)
    assert used <= told.work_bytes


class TestForms:
    def test_auto_keeps_what_the_file_holds(self) -> None:
        assert forms(loaded(WIDE, StoredTensors(WIDE, "Q4_1", {"embed": "Q8_0"}), "auto")) == {Q4_MIN_F16, Q8_F16}

    @pytest.mark.parametrize("kind", FLOATS)
    def test_auto_rounds_floats_to_8_bits(self, kind: str) -> None:
        assert forms(loaded(WIDE, StoredTensors(WIDE, kind, {}), "auto")) == {Q8_F32}

    @pytest.mark.parametrize(("kind", "form"), [("F32", F32), ("F16", F16), ("BF16", BF16), ("Q4_K", F32)])
    def test_none_keeps_floats_as_they_are(self, kind: str, form: Format) -> None:
        assert forms(loaded(WIDE, StoredTensors(WIDE, kind, {}), "none")) == {form}

    def test_matrices_of_one_form_are_one_product(self) -> None:
        (layer,) = loaded(WIDE, StoredTensors(WIDE, "Q4_K", MIXED), "auto").layers
        assert (len(layer.qkv), len(layer.gate_up)) == (3, 1)


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
@pytest.mark.parametrize(
    "weights",
    [StoredTensors(WIDE, "Q4_K", MIXED), StoredTensors(NARROW_HEADS, "Q4_1", {}), random_weights(NARROW_HEADS)],
    ids=["mixed", "padded", "floats"],
)
def test_the_weights_do_not_depend_on_threads_nor_on_pieces(
    weights: StoredTensors | ArrayWeights, quantization: Quantization
) -> None:
    description = weights.description if isinstance(weights, StoredTensors) else NARROW_HEADS
    whole = image(loaded(description, weights, quantization))
    assert image(loaded(description, weights, quantization, threads=3, piece=64)) == whole


@pytest.mark.parametrize("threads", [1, 3])
def test_progress_goes_from_nothing_to_all_and_never_back(threads: int) -> None:
    seen: list[tuple[int, int]] = []
    weights = StoredTensors(WIDE, "Q4_1", {})
    loaded(WIDE, weights, "auto", threads=threads, piece=64, on_tensor=lambda done, total: seen.append((done, total)))
    done = [now for now, _ in seen]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, sum(math.prod(shape) for shape in WIDE.layout().values() if len(shape) == 2))
    assert {total for _, total in seen} == {done[-1]}


def test_a_tensor_of_another_shape_is_named() -> None:
    weights = random_weights(PLAIN)
    weights.tensors["layers.1.up"] = np.zeros((3, 3), dtype=np.float32)  # pyright: ignore[reportIndexIssue]
    with pytest.raises(ModelError, match=r"layers\.1\.up has shape \(3, 3\)"):
        loaded(PLAIN, weights, "auto", threads=2)


def logits(model: Description, weights: Weights, options: CpuOptions) -> NDArray[np.float32]:
    with cpu_executor(model, weights, options=options) as executor:
        return executor.logits([row(TOKENS, [0, 1])])[0]


def expected(model: Description, weights: Weights) -> NDArray[np.float32]:
    executor = ReferenceExecutor.load(model, weights, num_blocks=2, block_size=CPU_BLOCK)
    return executor.logits([row(TOKENS, [0, 1])])[0]


TOKENS = random_tokens(20, vocab=12)


class TestAgainstTheReference:
    """On the same weights, as floats where nothing else is said."""

    @pytest.mark.parametrize("stored", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
    def test_gguf_files_as_floats(self, stored: str, tmp_path: Path) -> None:
        kind = gguf.GGMLQuantizationType[stored]
        with_model = load_gguf(write_gguf(tmp_path / "m.gguf", gguf_tensors(), gguf_metadata(), stored=kind), name="m")
        self.close(with_model)

    @pytest.mark.parametrize("dtype", FLOATS)
    def test_folders_as_floats(self, dtype: str, tmp_path: Path) -> None:
        self.close(load_folder(hf_folder(tmp_path / "m", dtype=dtype), name="m"))

    def close(self, model: Model) -> None:
        got, wanted = logits(model.description, model.weights, EXACT), expected(model.description, model.weights)
        model.close()
        np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-4)

    @pytest.mark.parametrize("quantization", ["auto", "int8", "int4"])
    @pytest.mark.parametrize("description", [WIDE, NARROW_HEADS], ids=["wide", "padded"])
    def test_integers_of_4_bits_are_computed_as_they_are(self, quantization: str, description: Description) -> None:
        """All that is rounded are activations, and what has to be cut into other groups."""
        weights = StoredTensors(description, "Q4_1", {})
        got = logits(description, weights, replace(EXACT, quantization=quantization))
        wanted = expected(description, weights)
        assert np.std(got - wanted) < 0.08 * np.std(wanted)

    @pytest.mark.parametrize(("quantization", "rounded"), [("int8", rounded_to_8_bits), ("int4", rounded_to_4_bits)])
    def test_floats_are_computed_as_they_are_rounded(
        self, quantization: str, rounded: Callable[[NDArray[np.float32]], Matrix]
    ) -> None:
        """All that is rounded beside them are activations."""
        weights = random_weights(WIDE)
        meant = {name: floats(rounded(t)) if t.ndim == 2 else t for name, t in weights.tensors.items()}
        got, wanted = logits(WIDE, weights, replace(EXACT, quantization=quantization)), expected(WIDE, ArrayWeights(meant))
        assert np.std(got - wanted) < 0.05 * np.std(wanted)
