"""The choice of an instruction set."""

import pytest

from chairlift.core.errors import ConfigError
from chairlift.execute.cpu.isa import SHAPES, available, choose
from chairlift.execute.cpu.packing import ROW_PAD

AVX2 = {"avx2": True, "fma": True, "f16c": True}
VNNI = AVX2 | {"avx512f": True, "avx512bw": True, "avx512vl": True, "avx512vnni": True}


def test_the_fastest_is_chosen() -> None:
    assert choose(VNNI) == "avx512-vnni"


def test_a_processor_with_nothing_runs_portable_code() -> None:
    assert choose({}) == "portable"


def test_features_that_are_reported_as_missing_do_not_count() -> None:
    assert choose(AVX2 | {"fma": False}) == "portable"


def test_another_one_can_be_asked_for() -> None:
    assert choose(VNNI, "avx2") == "avx2"


def test_one_that_the_processor_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match="this one has avx2, portable"):
        choose(AVX2, "avx512-vnni")


def test_an_unknown_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown"):
        choose(AVX2, "sse9")


def test_dot_products_of_256_bits_need_their_own_feature() -> None:
    assert available(AVX2 | {"avxvnni": True})[0] == "avx2-vnni"


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_strips_divide_the_padding_of_rows(shape) -> None:
    assert ROW_PAD % shape.strip == 0
