"""CPU executors over small decoders, and ways to run a text through one in pieces."""

from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.queues import Queue

from native_kernels import OBJECTS
from tiny_decoders import PLAIN, random_weights, row

from chairlift.execute.cpu.executor import CpuExecutor, CpuOptions
from chairlift.models.description import Description, Weights

CPU_BLOCK = 16
EXACT = CpuOptions(threads=1, quantization="none", kv_cache_dtype="f32")
"""Nothing is rounded to fewer bits than float32 has, unless the weights are."""


@contextmanager
def cpu_executor(
    description: Description,
    weights: Weights,
    *,
    num_blocks: int = 40,
    block_size: int = CPU_BLOCK,
    max_tokens: int = 512,
    max_rows: int = 16,
    options: CpuOptions | None = None,
    contiguous: bool = False,
    num_host_blocks: int = 0,
) -> Iterator[CpuExecutor]:
    """Exact and on one thread unless `options` say something else; closed at the end."""
    executor = CpuExecutor.load(
        description,
        weights,
        num_blocks=num_blocks,
        block_size=block_size,
        max_tokens=max_tokens,
        max_rows=max_rows,
        options=options or EXACT,
        cache=OBJECTS,
        contiguous=contiguous,
        num_host_blocks=num_host_blocks,
    )
    try:
        yield executor
    finally:
        executor.close()


def put_logits(answers: "Queue[bytes]") -> None:
    """What a process of its own does: the logits of three tokens, on two threads. A spawned one can import this module."""
    with cpu_executor(PLAIN, random_weights(PLAIN), options=CpuOptions(threads=2)) as executor:
        answers.put(executor.logits([row([1, 2, 3], [0])]).tobytes())
