"""The executor on the CPU: fills in the numbers of a step, makes one native call, and reads off what was drawn.

Knows plans and results; the arithmetic is machine code (`kernels`), its order a program (`program`).
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chairlift.core.errors import ConfigError
from chairlift.core.types import Plan, Result, Row, Work
from chairlift.execute.cpu import native
from chairlift.execute.cpu.arena import Arena, Widths, scratch_bytes
from chairlift.execute.cpu.batch import MAX_PARTIALS, Batch, pad_blocks
from chairlift.execute.cpu.isa import SHAPES, choose
from chairlift.execute.cpu.kv import PLACE, KVCache
from chairlift.execute.cpu.loading import Loader, Quantization
from chairlift.execute.cpu.operations import KV_KINDS
from chairlift.execute.cpu.pool import Pool, default_threads
from chairlift.execute.cpu.program import Program
from chairlift.execute.cpu.rotation import TurnTable
from chairlift.execute.cpu.words import BROKEN, EXCLUDED
from chairlift.execute.sampler import NOTHING_ALLOWED
from chairlift.models.description import Description, Weights

FAILURES = {BROKEN: "the model's logits are not finite numbers", EXCLUDED: NOTHING_ALLOWED}
MAX_HEAD_DIM = 512
MAX_QUERIES_A_KEY = 32


@dataclass(frozen=True, slots=True)
class CpuOptions:
    """How to compute. None: work it out from the machine."""

    threads: int | None = None
    isa: str | None = None
    quantization: Quantization = "auto"
    kv_cache_dtype: str = "f32"


class CpuExecutor:
    """Computes plans in machine code. `launch` does the work, `collect` hands over what came of it.

    The logits of a row are the same, to the last bit, whatever else is in the batch, however its prompt was cut, and on any
    number of threads. A row whose logits are not finite numbers, or that may draw nothing, is reported as failed; the others
    are not touched by it.
    """

    def __init__(
        self,
        description: Description,
        *,
        pool: Pool,
        program: Program,
        arena: Arena,
        kv: KVCache,
        batch: Batch,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._description = description
        self._pool, self._program, self._arena, self._kv, self._batch = pool, program, arena, kv, batch
        self._turns = {rope: TurnTable(rope, description.head_dim) for rope in program.ropes}
        self._clock = clock
        self._result: Result | None = None

    @classmethod
    def load(
        cls,
        description: Description,
        weights: Weights,
        *,
        num_blocks: int,
        block_size: int,
        max_tokens: int,
        max_rows: int,
        options: CpuOptions | None = None,
        cache: Path | None = None,
        on_compile: Callable[[], None] | None = None,
        on_tensor: Callable[[int, int], None] | None = None,
    ) -> "CpuExecutor":
        """Compiles (if `cache` does not have it yet), reads all weights, starts the threads.

        `max_tokens` and `max_rows` are the tokens and the drawing rows of the largest step there will be.
        """
        options = options or CpuOptions()
        check(description, block_size=block_size, options=options)
        host = native.Host.detect()
        isa = choose(host.features, options.isa)
        code = native.load(isa, host, cache=cache, on_compile=on_compile)
        loader = Loader(description, weights, shape=SHAPES[isa], quantization=options.quantization, on_tensor=on_tensor)
        packed = loader.load()
        threads = options.threads or default_threads(affinity=len(os.sched_getaffinity(0)))
        pool = Pool(code, threads=threads, scratch_bytes=scratch_bytes(description.vocab))
        widths = Widths.of(description)
        arena = Arena.of(description, widths, tokens=max_tokens, rows=max_rows, partials=MAX_PARTIALS)
        kv = KVCache(
            layers=len(description.layers),
            num_blocks=num_blocks + pad_blocks(max_tokens, block_size),
            block_size=block_size,
            kv_heads=description.kv_heads,
            head=widths.head,
            kind=options.kv_cache_dtype,
        )
        program = Program(
            description,
            packed,
            widths=widths,
            arena=arena,
            kv=kv,
            shape=SHAPES[isa],
            state=pool.state,
            threads=threads,
        )
        batch = Batch(
            pool.state,
            max_tokens=max_tokens,
            max_rows=max_rows,
            vocab=description.vocab,
            num_blocks=num_blocks,
            block_size=block_size,
            heads=description.heads,
            kv_heads=description.kv_heads,
            threads=threads,
        )
        return cls(description, pool=pool, program=program, arena=arena, kv=kv, batch=batch)

    def launch(self, plan: Plan) -> None:
        assert self._result is None, "the last plan has not been collected"
        began = self._clock()
        self._compute(plan.work)
        draws, first = self._batch.draws, 0
        answers = draws.answers.tolist()
        rows: list[Row] = []
        failed: list[tuple[str, str]] = []
        for work in plan.work:
            if not work.draws or work.pad:
                continue
            count = len(work.draws)
            tokens = tuple(answers[first : first + count])
            if min(tokens) < 0:
                failed.append((work.seq_id, FAILURES[min(tokens)]))
            else:
                rows.append(Row(work.seq_id, tokens, draws.logprobs(first, count)))
            first += count
        self._result = Result(plan.step, tuple(rows), tuple(failed), self._clock() - began)

    def collect(self) -> Result:
        result = self._result
        assert result is not None, "nothing was launched"
        self._result = None
        return result

    def logits(self, work: Sequence[Work]) -> NDArray[np.float32]:
        """Computes rows and stores their keys and values. Logits [rows that draw, vocab] of the last positions."""
        self._compute(work)
        drawing = sum(bool(row.draws) and not row.pad for row in work)
        return self._arena.logits[:drawing, : self._description.vocab].copy()

    def close(self) -> None:
        """Ends the threads. Nothing may be running."""
        self._pool.close()

    def _compute(self, work: Sequence[Work]) -> None:
        if not work:
            return
        highest = self._batch.fill(work)
        for rope, table in self._turns.items():
            if table.reach(highest):
                self._program.set_turns(rope, table.address)
        self._pool.run()


def check(description: Description, *, block_size: int, options: CpuOptions) -> None:
    """ConfigError if this executor cannot run the model, or not in this way."""
    if block_size % PLACE:
        raise ConfigError(f"block_size must be a multiple of {PLACE} on the CPU, not {block_size}")
    if options.kv_cache_dtype not in KV_KINDS:
        raise ConfigError(f"kv_cache_dtype {options.kv_cache_dtype!r:.20} is unknown: it may be {', '.join(KV_KINDS)}")
    if options.threads is not None and options.threads < 1:
        raise ConfigError(f"threads must be at least 1, not {options.threads}")
    if description.head_dim > MAX_HEAD_DIM:
        raise ConfigError(f"heads of {description.head_dim} elements: the limit is {MAX_HEAD_DIM}")
    if description.heads // description.kv_heads > MAX_QUERIES_A_KEY:
        raise ConfigError(f"more than {MAX_QUERIES_A_KEY} query heads share a key head")
