"""What is chosen where the user leaves it open."""

import pytest

from chairlift.core.errors import ConfigError
from chairlift.execute.cpu.options import AUTO, Choice, CpuOptions, check_block_size, resolve

AVX2 = {"avx2": True, "fma": True, "f16c": True}


def test_everything_can_be_left_open() -> None:
    assert resolve(CpuOptions(), AVX2, threads=3) == Choice(3, "avx2", AUTO, "f16")


def test_without_conversions_of_halves_keys_are_kept_whole() -> None:
    assert resolve(CpuOptions(), {}, threads=1).kv == "f32"


def test_what_is_asked_for_is_taken() -> None:
    options = CpuOptions(threads=2, isa="portable", quantization="int4", kv_cache_dtype="bf16")
    assert resolve(options, AVX2, threads=3) == Choice(2, "portable", "int4", "bf16")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (CpuOptions(threads=0), "threads must be from 1"),
        (CpuOptions(threads=1025), "to 1024, not 1025"),
        (CpuOptions(isa="sse9"), "it may be auto, avx512-vnni, avx2-vnni, avx2, portable"),
        (CpuOptions(isa="avx512-vnni"), "needs a processor with it"),
        (CpuOptions(quantization="int2"), "it may be auto, int8, int4, none"),
        (CpuOptions(kv_cache_dtype="f8"), "it may be auto, f32, f16, bf16"),
    ],
)
def test_what_cannot_be_is_refused(options: CpuOptions, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        resolve(options, AVX2, threads=1)


@pytest.mark.parametrize("size", [0, 1, 8, 24])
def test_blocks_hold_whole_vectors_of_positions(size: int) -> None:
    with pytest.raises(ConfigError, match="multiple of 16"):
        check_block_size(size)
