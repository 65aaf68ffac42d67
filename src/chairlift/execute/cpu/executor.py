"""The executor on the CPU: fills in the numbers of a step, makes one native call, and reads off what was drawn.

Knows plans and results; the arithmetic is machine code (`kernels`), its order a program (`program`).
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chairlift.core.costs import Limits, ModelCost
from chairlift.core.errors import ConfigError
from chairlift.core.types import Plan, Result, Row, Work
from chairlift.execute.cpu import limits, native
from chairlift.execute.cpu.arena import Arena, Widths, scratch_bytes
from chairlift.execute.cpu.batch import MAX_PARTIALS, Batch, pad_blocks
from chairlift.execute.cpu.costs import packed_cost
from chairlift.execute.cpu.governor import Governor
from chairlift.execute.cpu.isa import SHAPES, Isa
from chairlift.execute.cpu.kv import KVCache
from chairlift.execute.cpu.loading import Loader
from chairlift.execute.cpu.options import Choice, CpuOptions, check_block_size, check_names, resolve
from chairlift.execute.cpu.pool import Pool, default_threads, usable_processors
from chairlift.execute.cpu.program import Program
from chairlift.execute.cpu.rotation import TurnTable
from chairlift.execute.cpu.words import BROKEN, EXCLUDED
from chairlift.execute.sampler import NOTHING_ALLOWED
from chairlift.models.description import Description, Weights

FAILURES = {BROKEN: "the model's logits are not finite numbers", EXCLUDED: NOTHING_ALLOWED}
MAX_HEAD_DIM = 512
MAX_QUERIES_A_KEY = 32


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
        isa: Isa,
        cost: ModelCost,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.isa: Isa = isa
        self.cost, self.threads = cost, pool.threads
        self.computed = (0.0, 0.0)
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
        contiguous: bool = False,
        num_host_blocks: int = 0,
    ) -> "CpuExecutor":
        """Compiles (if `cache` does not have it yet), reads all weights, starts the threads.

        `max_tokens` and `max_rows` are the tokens and the drawing rows of the largest step there will be. `on_tensor(done,
        total)` is called once everything is compiled, and follows the reading. If `contiguous`, the blocks of a row are always
        a run, and are read as one piece.
        """
        options = options or CpuOptions()
        check(description, block_size=block_size, options=options)
        host = native.Host.detect()
        choice = decide(options, host)
        code = native.load(choice.isa, host, cache=cache, on_compile=on_compile, contiguous=contiguous)
        packed = Loader(
            description,
            weights,
            shape=SHAPES[choice.isa],
            quantization=choice.quantization,
            threads=choice.threads,
            on_tensor=on_tensor,
        ).load()
        widths = Widths.of(description)
        # Who says how many threads there shall be gets them.
        governor = Governor(choice.threads) if options.threads is None else None
        pool = Pool(code, threads=choice.threads, scratch_bytes=scratch_bytes(description, widths), governor=governor)
        arena = Arena.of(description, widths, tokens=max_tokens, rows=max_rows, partials=MAX_PARTIALS)
        kv = KVCache(
            layers=len(description.layers),
            num_blocks=num_blocks + pad_blocks(max_tokens, block_size),
            block_size=block_size,
            kv_heads=description.kv_heads,
            head=widths.head,
            kind=choice.kv,
            num_host_blocks=num_host_blocks,
        )
        program = Program(
            description,
            packed,
            widths=widths,
            arena=arena,
            kv=kv,
            shape=SHAPES[choice.isa],
            state=pool.state,
            threads=choice.threads,
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
            threads=choice.threads,
            contiguous=contiguous,
        )
        cost = packed_cost(description, packed, kv)
        return cls(description, pool=pool, program=program, arena=arena, kv=kv, batch=batch, isa=choice.isa, cost=cost)

    def launch(self, plan: Plan) -> None:
        assert self._result is None, "the last plan has not been collected"
        began = self._clock()
        if plan.moves:
            self._kv.move(plan.moves)
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

    def limits(self) -> Limits:
        """What the machine can do on the threads of this executor, measured now. Nothing else may be running."""
        return limits.measure(self._pool, isa=self.isa, clock=self._clock)

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
        began = self._clock()
        self._pool.run()
        self.computed = (began, self._clock())


def decide(options: CpuOptions, host: native.Host) -> Choice:
    """What is computed with on this machine. ConfigError if that is not possible."""
    return resolve(options, host.features, threads=default_threads(affinity=usable_processors()))


def check(description: Description, *, block_size: int, options: CpuOptions) -> None:
    """ConfigError if this executor cannot run the model, or not in this way."""
    check_names(options)
    check_block_size(block_size)
    if description.head_dim > MAX_HEAD_DIM:
        raise ConfigError(f"heads of {description.head_dim} elements: the limit is {MAX_HEAD_DIM}")
    if description.heads // description.kv_heads > MAX_QUERIES_A_KEY:
        raise ConfigError(f"more than {MAX_QUERIES_A_KEY} query heads share a key head")
