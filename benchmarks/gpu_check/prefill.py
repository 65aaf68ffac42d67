"""How fast prompts are computed: whole ones, one step each, with the draw of their first token. The executor alone."""

import statistics
import time
from array import array

import torch

from chairlift.core.types import Plan, Work
from gpu_check.decode import GREEDY
from gpu_check.records import Figure
from gpu_check.setting import Setting
from gpu_check.shapes import BLOCK_SIZE, executor, random_weights, served


def measure(setting: Setting) -> None:
    sizes, device = setting.sizes, setting.device
    choice = served(sizes.description, device)
    weights = random_weights(sizes.description, device=device, dtype=device.dtype("auto"))
    most_rows, longest = max(rows for rows, _ in sizes.prefills), max(tokens for _, tokens in sizes.prefills)
    subject = executor(sizes, weights, choice, rows=most_rows, longest=longest)

    for number, (rows, tokens) in enumerate(sizes.prefills):
        plan = Plan(0, _prompts(rows, tokens, vocab=sizes.description.vocab))

        def once(plan: Plan = plan) -> float:
            began = time.perf_counter()
            subject.launch(plan)
            assert not subject.collect().failed
            return time.perf_counter() - began

        runs = setting.repeated(once, share=1 / (len(sizes.prefills) - number))
        step_s, cost = statistics.median(runs), subject.cost.of(plan.work)
        setting.record.figure(
            Figure(
                f"{rows} x {tokens}",
                "tokens/s",
                plan.tokens / step_s,
                tuple(plan.tokens / one for one in runs),
                step_ms=step_s * 1e3,
                operations_per_step=cost.operations,
            )
        )
    subject.close()


def _prompts(rows: int, tokens: int, *, vocab: int) -> tuple[Work, ...]:
    chance = torch.Generator().manual_seed(1)
    each = -(-tokens // BLOCK_SIZE)
    return tuple(
        Work(
            str(row),
            0,
            array("i", torch.randint(vocab, (tokens,), generator=chance).tolist()),
            array("i", range(row * each, (row + 1) * each)),
            GREEDY,
        )
        for row in range(rows)
    )
