"""Both executors tell the same operations, and the bytes that they really hold."""

import math
from dataclasses import replace

from cpu_executors import cpu_executor
from native_kernels import HOST_ISAS
from tiny_decoders import PLAIN, VARIANTS, random_weights

from chairlift.core.costs import Limits
from chairlift.execute.cpu.executor import CpuOptions
from chairlift.execute.reference import ReferenceExecutor
from chairlift.models.description import Description


def reference(description: Description) -> ReferenceExecutor:
    return ReferenceExecutor.load(description, random_weights(description), num_blocks=1, block_size=4)


def test_the_reference_reads_every_number_of_the_layers_and_the_head() -> None:
    cost, layout = reference(PLAIN).cost, PLAIN.layout()
    assert cost.body_bytes + cost.head_bytes == 4 * sum(math.prod(s) for name, s in layout.items() if name != "embed")


def test_a_tied_head_is_the_embedding() -> None:
    tied = replace(PLAIN, tied=True)
    assert reference(tied).cost.head_bytes == 4 * PLAIN.vocab * PLAIN.hidden


def test_operations_do_not_depend_on_how_weights_are_kept() -> None:
    description = VARIANTS["everything"]
    expected = reference(description).cost
    for kind in ("none", "int8"):
        options = CpuOptions(threads=1, quantization=kind)
        with cpu_executor(description, random_weights(description), options=options) as executor:
            cost = executor.cost
        assert (cost.token_operations, cost.draw_operations) == (expected.token_operations, expected.draw_operations)
        assert [layer.window for layer in cost.layers] == [layer.window for layer in description.layers]


def test_packed_bytes_shrink_with_their_numbers() -> None:
    def body(kind: str, kv: str) -> tuple[int, int]:
        options = CpuOptions(threads=1, quantization=kind, kv_cache_dtype=kv)  # pyright: ignore[reportArgumentType]
        with cpu_executor(PLAIN, random_weights(PLAIN), options=options) as executor:
            return executor.cost.body_bytes, executor.cost.layers[0].position_bytes

    floats, halves = body("none", "f32"), body("int8", "f16")
    assert halves[0] < floats[0] / 2
    assert halves[1] * 2 == floats[1] == 2 * PLAIN.kv_heads * 16 * 4  # heads of 6 are padded to 16


def test_the_compiled_executor_tells_what_it_chose() -> None:
    with cpu_executor(PLAIN, random_weights(PLAIN), options=CpuOptions(threads=2)) as executor:
        assert (executor.threads, executor.isa) == (2, HOST_ISAS[0])


def test_the_reference_leaves_that_to_its_library() -> None:
    executor = reference(PLAIN)
    told: tuple[int | None, str | None, Limits | None] = (executor.threads, executor.isa, executor.limits())
    assert told == (None, None, None)
