"""What the whole engine does: its scheduler over the executor, one step at a time and with two in flight.

As `chairlift bench engine` measures it: prompts first, then the steps in which everyone gets a next token.
"""

import statistics
import time
from collections import defaultdict
from dataclasses import replace

from chairlift.bench.engine import Run, Subject, Workload, settings
from chairlift.bench.engine import measure as run_batches
from chairlift.core.config import EngineConfig
from gpu_check.records import Figure
from gpu_check.setting import Setting
from gpu_check.shapes import BLOCK_SIZE, Sizes, executor, random_weights, served

DEPTHS = (1, 2)


def measure(setting: Setting) -> None:
    sizes, device = setting.sizes, setting.device
    choice = served(sizes.description, device)
    weights = random_weights(sizes.description, device=device, dtype=device.dtype("auto"))
    workload = Workload(sizes.crowds, sizes.input_len, sizes.output_len)
    config = configured(sizes, workload)
    subject = executor(
        sizes, weights, choice, rows=config.max_num_seqs, longest=config.max_model_len, num_blocks=config.num_blocks
    )
    found: defaultdict[tuple[int, int], list[Run]] = defaultdict(list)
    began = time.monotonic()
    for number in range(sizes.runs):
        for depth in DEPTHS:
            over = Subject(replace(config, depth=depth), subject, subject, sizes.description.vocab)
            for run in run_batches(over, replace(workload, seed=number), clock=time.perf_counter):
                found[run.batch, depth].append(run)
        for (batch, depth), runs in sorted(found.items()):
            setting.record.figure(_figure(f"batch {batch}, depth {depth}", runs))
        spent = time.monotonic() - began
        if began + spent * (number + 2) / (number + 1) > setting.until:
            break
    subject.close()


def configured(sizes: Sizes, workload: Workload) -> EngineConfig:
    """An engine in which the largest batch of a workload fits."""
    start = EngineConfig(
        max_model_len=workload.context,
        num_blocks=1,
        block_size=BLOCK_SIZE,
        max_num_seqs=1,
        max_num_batched_tokens=sizes.most_tokens,
    )
    return settings(start, workload)


def _figure(case: str, runs: list[Run]) -> Figure:
    """Of the decode phase."""
    rates = tuple(run.decode.tokens_per_s for run in runs)
    steps = [one for run in runs for one in run.decode.step_s]
    # What was launched before its predecessor ended leaves none; less than none is what measuring takes between two steps.
    gaps = [max(0.0, one) for run in runs for one in run.decode.handover_s] or [0.0]
    costs = [cost for run in runs for cost in run.decode.costs]
    return Figure(
        case,
        "tokens/s",
        statistics.median(rates),
        rates,
        step_ms=statistics.median(steps) * 1e3,
        gap_ms=statistics.median(gaps) * 1e3,
        bytes_per_step=round(statistics.fmean(cost.bytes for cost in costs)),
        operations_per_step=round(statistics.fmean(cost.operations for cost in costs)),
    )
