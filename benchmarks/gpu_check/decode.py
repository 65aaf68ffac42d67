"""How fast next tokens are computed: rows of the same context, one token of each a step, two steps in flight.

The executor alone, without a scheduler. Rows have blocks of their own, which hold copies of one prompt's keys and values.
"""

import gc
import statistics
import time
from array import array
from collections.abc import Iterator, Sequence

import torch

from chairlift.core.types import PENDING, Draw, Move, Plan, Sampling, Work
from chairlift.execute.torch.executor import TorchExecutor
from gpu_check.records import Figure
from gpu_check.setting import Setting
from gpu_check.shapes import BLOCK_SIZE, GRAPHS, Sizes, executor, random_weights, served, ways

GREEDY = (Draw(0, Sampling(temperature=0.0)),)
WARM_STEPS = 2
"""Before the clock runs: until then nothing is in flight."""


def measure(setting: Setting) -> None:
    sizes, device = setting.sizes, setting.device
    description = sizes.description
    if why := served(description, device).eager:
        setting.record.fact(GRAPHS, f"none: {why}")
    weights = random_weights(description, device=device, dtype=device.dtype("auto"))
    longest = sizes.context + WARM_STEPS + sizes.steps
    found = ways(description, device)
    left = len(found) * len(sizes.batches)
    for name, choice in found.items():
        setting.record.fact(f"kernels, {name}", choice.kernels(max(sizes.batches)))
        subject = executor(sizes, weights, choice, rows=max(sizes.batches), longest=longest)
        tables = _tables(max(sizes.batches), longest)
        _fill(subject, sizes, tables)
        for batch in sizes.batches:
            _batch(setting, subject, tables[:batch], name, share=1 / left)
            left -= 1
        subject.close()
        del subject
        gc.collect()  # before the next one needs the memory


def _batch(setting: Setting, subject: TorchExecutor, tables: "Sequence[array[int]]", way: str, *, share: float) -> None:
    sizes = setting.sizes
    runs = setting.repeated(lambda: _run(subject, sizes, tables), share=share)
    step_s = statistics.median(runs)
    cost = subject.cost.of(_rows(tables, sizes.context + WARM_STEPS + sizes.steps // 2, PENDING))
    rates = tuple(len(tables) / one for one in runs)
    setting.record.figure(
        Figure(
            f"batch {len(tables)}, {way}",
            "tokens/s",
            len(tables) / step_s,
            rates,
            step_ms=step_s * 1e3,
            bytes_per_step=cost.bytes,
            operations_per_step=cost.operations,
        )
    )


def _run(subject: TorchExecutor, sizes: Sizes, tables: "Sequence[array[int]]") -> float:
    """Seconds a step. The next one is always asked for before the last one is waited for."""
    subject.launch(Plan(0, _rows(tables, sizes.context, 1)))
    began = 0.0
    for step in range(1, WARM_STEPS + sizes.steps):
        subject.launch(Plan(step, _rows(tables, sizes.context + step, PENDING)))
        assert not subject.collect().failed
        if step == WARM_STEPS:
            began = time.perf_counter()
    subject.collect()
    return (time.perf_counter() - began) / sizes.steps


def _rows(tables: "Sequence[array[int]]", start: int, token: int) -> tuple[Work, ...]:
    return tuple(Work(str(number), start, array("i", [token]), blocks, GREEDY) for number, blocks in enumerate(tables))


def _tables(rows: int, longest: int) -> "list[array[int]]":
    each = -(-longest // BLOCK_SIZE)
    return [array("i", range(number * each, (number + 1) * each)) for number in range(rows)]


def _fill(subject: TorchExecutor, sizes: Sizes, tables: "Sequence[array[int]]") -> None:
    """Computes one prompt and gives every row a copy of its keys and values."""
    numbers = torch.randint(sizes.description.vocab, (sizes.context,), generator=torch.Generator().manual_seed(1)).tolist()
    prompt = array("i", numbers)
    for start in range(0, sizes.context, sizes.most_tokens):
        subject.launch(Plan(0, (Work("0", start, prompt[start : start + sizes.most_tokens], tables[0], ()),)))
        subject.collect()
    for moves in _copies(tables):
        subject.launch(Plan(0, (), moves=moves))
        subject.collect()


def _copies(tables: "Sequence[array[int]]") -> Iterator[tuple[Move, ...]]:
    for blocks in tables[1:]:
        yield tuple(Move("copy", source, target) for source, target in zip(tables[0], blocks, strict=True))
