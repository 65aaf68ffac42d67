"""The server's tests on a real executor: what a script wants to be drawn is drawn by PyTorch, out of the very same plans."""

import os
from array import array
from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from masks import mask_of
from tiny_decoders import PLAIN, random_weights

from chairlift.core.config import EngineConfig
from chairlift.core.ports import Executor
from chairlift.core.types import Plan, Result, Row, Work

KIND = "CHAIRLIFT_TEST_EXECUTOR"
"""The environment variable that, if it is "torch", puts an executor in PyTorch beside the scripted one of every server."""
VOCAB = 512
"""More than the tokens that any script draws."""


def mirrored(scripted: Executor, config: EngineConfig, environ: Mapping[str, str] = os.environ) -> Executor:
    """The executor itself, unless the environment asks for a real one beside it."""
    return Mirrored(scripted, config) if environ.get(KIND) == "torch" else scripted


class Mirrored:
    """Computes every plan twice. The real executor may draw only what the script wants: what differs is a fault of either."""

    def __init__(self, scripted: Executor, config: EngineConfig) -> None:
        from torch_executors import one_thread, torch_executor

        one_thread()
        description = replace(PLAIN, vocab=VOCAB)
        self._scripted = scripted
        self._real = torch_executor(
            description,
            random_weights(description),
            num_blocks=config.num_blocks,
            block_size=config.block_size,
            max_tokens=config.max_num_batched_tokens,
            max_rows=config.max_num_seqs,
        )
        self._plans: deque[Plan] = deque()

    def launch(self, plan: Plan) -> None:
        self._plans.append(plan)
        try:
            self._scripted.launch(plan)
        except BaseException:
            self._plans.clear()
            raise

    def collect(self) -> Result:
        try:
            result = self._scripted.collect()
        except BaseException:
            self._plans.clear()
            raise
        plan = self._plans.popleft()
        rows = {row.seq_id: row for row in result.rows}
        self._real.launch(plan._replace(work=tuple(_told(work, rows) for work in plan.work)))
        real = self._real.collect()
        assert (real.step, real.failed) == (result.step, ())
        assert [(row.seq_id, row.tokens, len(row.logprobs)) for row in real.rows] == [
            (row.seq_id, row.tokens, len(row.logprobs)) for row in result.rows
        ]
        return result

    def close(self) -> None:
        self._scripted.close()
        self._real.close()


def _told(work: Work, rows: Mapping[str, Row]) -> Work:
    """The row, which may draw but what the script has drawn for it."""
    if work.pad or not work.draws:
        return work
    tokens = rows[work.seq_id].tokens
    draws = [draw._replace(mask=_only(token), banned=frozenset()) for draw, token in zip(work.draws, tokens, strict=True)]
    return work._replace(draws=tuple(draws))


def _only(token: int) -> "array[int]":
    return mask_of([token], VOCAB)
