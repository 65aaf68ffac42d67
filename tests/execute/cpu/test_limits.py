"""The probes really do what is counted: their sums are those of NumPy. And they leave the executor as it was."""

from dataclasses import dataclass

import numpy as np
import pytest
from cpu_executors import cpu_executor
from native_kernels import EMULATED, HOST_ISAS, kernels
from tiny_decoders import PLAIN, random_weights, row

from chairlift.execute.cpu.executor import CpuOptions
from chairlift.execute.cpu.isa import Isa
from chairlift.execute.cpu.limits import PIECE_BYTES, PIECES_A_THREAD, DotProbe, ReadProbe, measure
from chairlift.execute.cpu.pool import Pool

VARIANTS = [(isa, False) for isa in HOST_ISAS] + [(isa, True) for isa in EMULATED]
MIB = 1 << 20


@dataclass
class Ticking:
    """A clock on which a second goes by whenever it is looked at."""

    now: float = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def pool():
    made = Pool(kernels(HOST_ISAS[0]), threads=2, scratch_bytes=1 << 20)
    yield made
    made.close()


def test_every_byte_is_read(pool: Pool) -> None:
    probe = ReadProbe(pool, 3 * MIB + 5)
    probe.run()
    assert probe.bytes == 3 * MIB
    expected = probe.data.reshape(-1, PIECE_BYTES // 4).sum(axis=1, dtype=np.int64).astype(np.int32)
    assert np.array_equal(probe.sums, expected)


@pytest.mark.parametrize(("isa", "emulate"), VARIANTS)
@pytest.mark.parametrize("turns", [1, 3, 19])
def test_every_product_is_computed(isa: Isa, emulate: bool, turns: int) -> None:
    pool = Pool(kernels(isa, emulate=emulate), threads=1, scratch_bytes=1 << 20)
    one = DotProbe(pool, isa, 0)
    probe = DotProbe(pool, isa, turns * one.operations // PIECES_A_THREAD)
    probe.run()
    assert (probe.turns, probe.operations) == (turns, turns * one.operations)
    slabs = probe.inputs[np.arange(turns) % len(probe.inputs)].astype(np.int64)
    lanes = probe.sums.shape[-1]
    x = slabs.reshape(*slabs.shape[:3], lanes, 4)
    w = probe.weights.astype(np.int64).reshape(-1, lanes, 4)
    expected = np.einsum("trslb,wlb->wrl", x, w).astype(np.int32)
    assert np.array_equal(probe.sums, np.broadcast_to(expected, probe.sums.shape))


def test_wrapped_sums_are_those_of_32_bits(pool: Pool) -> None:
    probe = DotProbe(pool, HOST_ISAS[0], 0)
    probe.inputs[:], probe.weights[:] = 127, 15
    probe.run()
    assert (probe.sums == 8 * 4 * 127 * 15).all()


def test_rates_are_what_is_done_over_the_time_it_took(pool: Pool) -> None:
    isa = HOST_ISAS[0]
    limits = measure(pool, isa=isa, clock=Ticking(), array_bytes=2 * MIB, piece_operations=0, runs=3)
    assert limits == (2 * MIB, DotProbe(pool, isa, 0).operations)


def test_an_executor_goes_on_as_before() -> None:
    with cpu_executor(PLAIN, random_weights(PLAIN), options=CpuOptions(threads=2)) as executor:
        before = executor.logits([row([1, 2, 3], [0])])
        measure(executor._pool, isa=executor.isa, clock=Ticking(), array_bytes=MIB, piece_operations=0, runs=1)
        assert np.array_equal(executor.logits([row([1, 2, 3], [0])]), before)
