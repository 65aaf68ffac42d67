"""The executor in PyTorch: asks the device for a step, and reads off what was drawn when the device has got there.

Knows plans and results; the arithmetic is the decoder's, drawing the sampler's.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.core.costs import ModelCost
from chairlift.core.errors import ConfigError
from chairlift.core.types import PENDING, Logprobs, Move, Plan, Result, Row, Work
from chairlift.execute.costs import model_cost
from chairlift.execute.sampler import NOTHING_ALLOWED
from chairlift.execute.torch import warming
from chairlift.execute.torch.attention.backends import Attention
from chairlift.execute.torch.attention.backends import build as build_attention
from chairlift.execute.torch.attention.heads import Heads
from chairlift.execute.torch.batch import Batch, Batches
from chairlift.execute.torch.decoder import Decoder, turns
from chairlift.execute.torch.device import Device, Mark, Recorder, lacking
from chairlift.execute.torch.draws import Telling, Wanted, logprobs, write
from chairlift.execute.torch.graphs import Graphs
from chairlift.execute.torch.ops import Ops, TorchOps
from chairlift.execute.torch.options import Choice
from chairlift.execute.torch.parallel.group import ALONE, Group
from chairlift.execute.torch.parallel.shards import Share
from chairlift.execute.torch.sampler import BROKEN, EXCLUDED, Drawn, Sampler, TorchSampler
from chairlift.execute.torch.swap import HostStore
from chairlift.execute.torch.weights import ModelWeights, read
from chairlift.models.description import Description, Weights

DEPTH = 2
"""Steps that may be in flight at once."""

_FEW_TOKENS = 32
"""For fewer of them a loop is faster than NumPy."""

FAILURES = {BROKEN: "the model's logits are not finite numbers", EXCLUDED: NOTHING_ALLOWED}


class _Answers(NamedTuple):
    """What the rows that draw got, in order of their draws; on the machine once the mark of its flight has passed."""

    work: tuple[Work, ...]
    tokens: Tensor
    failed: Tensor
    telling: Telling | None
    told: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class _Flight:
    """A plan that was launched."""

    step: int
    began: float
    mark: Mark
    foreign: tuple[tuple[str, str], ...]
    answers: _Answers | None


class TorchExecutor:
    """Computes plans on a device. `launch` asks for a step and returns, `collect` waits for the oldest one.

    Two plans may be in flight. A row of the later one may then end with the token PENDING: the one that the same sequence
    draws in the plan before. If anything raises, all that was launched is dropped, and the next plan begins anew.

    A row with tokens that the model does not have, whose logits are not finite numbers, or that may draw nothing, is reported
    as failed; the others are not touched by it.

    Of a group every rank must be given the same plans in the same order. Rank 0 draws, so the sampling settings of the other
    ranks' plans mean nothing, and log probabilities are in its results only. What raises in one rank, and not in all, leaves
    the others waiting for it: the group is of no use any more.
    """

    def __init__(
        self,
        description: Description,
        *,
        device: Device,
        decoder: Decoder,
        batches: Batches,
        graphs: Graphs,
        sampler: Sampler,
        kv: Tensor,
        host: HostStore,
        cost: ModelCost,
        group: Group = ALONE,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.cost = cost
        self.computed = (0.0, 0.0)
        self._description, self._device, self._decoder, self._batches = description, device, decoder, batches
        self._graphs, self._sampler, self._kv, self._host = graphs, sampler, kv, host
        self._group, self._clock = group, clock
        self._flights: deque[_Flight] = deque()
        self._drawn = torch.zeros(1, dtype=torch.int64, device=device.on)
        self._drawn_by: dict[str, int] = {}
        """Where in `_drawn`, the tokens of the last plan, those are that rows drew for their own sequences."""

    @classmethod
    def load(
        cls,
        description: Description,
        weights: Weights,
        *,
        choice: Choice,
        num_blocks: int,
        block_size: int,
        max_tokens: int,
        max_rows: int,
        max_model_len: int | None = None,
        num_host_blocks: int = 0,
        attention: Attention | None = None,
        group: Group = ALONE,
        on_tensor: Callable[[int, int], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> "TorchExecutor":
        """Reads all weights. `max_tokens` and `max_rows` are the tokens and rows of the largest step there will be.

        No row is longer than `max_model_len`, which is as much as fits into all blocks unless it is given. `attention` is that
        of the choice unless it is given. `on_tensor(done, total)` follows the reading. Of a `group` this is one rank: it reads
        its share of the weights, and has the keys and values of its own heads. ConfigError if the model cannot be cut for so
        many, and if there is too little memory.
        """
        with _enough_memory(), choice.device.active(), torch.inference_mode():
            share = Share(description, group.rank, group.size)
            held = read(share, weights, device=choice.device, dtype=choice.dtype, on_tensor=on_tensor)
        return cls.build(
            description,
            held,
            choice=choice,
            num_blocks=num_blocks,
            block_size=block_size,
            max_tokens=max_tokens,
            max_rows=max_rows,
            max_model_len=max_model_len,
            num_host_blocks=num_host_blocks,
            attention=attention,
            group=group,
            clock=clock,
        )

    @classmethod
    def build(
        cls,
        description: Description,
        weights: ModelWeights,
        *,
        choice: Choice,
        num_blocks: int,
        block_size: int,
        max_tokens: int,
        max_rows: int,
        max_model_len: int | None = None,
        num_host_blocks: int = 0,
        attention: Attention | None = None,
        group: Group = ALONE,
        clock: Callable[[], float] = time.perf_counter,
    ) -> "TorchExecutor":
        """As `load`, of weights (this rank's share of them) that are on the device already, in the type that is chosen."""
        device, dtype = choice.device, choice.dtype
        ops, sampler = _fused() if choice.fused else (TorchOps(), TorchSampler())
        longest = max_model_len or num_blocks * block_size
        share = Share(description, group.rank, group.size)
        own = share.description
        with _enough_memory(), device.active(), torch.inference_mode():
            shape = (len(own.layers), num_blocks, 2, block_size, own.kv_heads, own.head_dim)
            # Left unwritten on purpose: nobody reads what nobody has written.
            kv = torch.empty(shape, dtype=dtype, device=device.on)
            decoder = Decoder(
                share,
                weights,
                turns=turns(own, positions=longest, device=device),
                kv=kv,
                ops=ops,
                attention=attention
                or build_attention(
                    choice.attention,
                    heads=Heads.of(own, block_size=block_size, dtype=dtype),
                    device=device,
                    max_rows=max_rows + 1,
                    longest=longest,
                ),
                group=group,
            )
            batches = Batches(
                device,
                max_tokens=max_tokens,
                max_rows=max_rows,
                num_blocks=num_blocks,
                block_size=block_size,
                most_blocks=-(-longest // block_size),
                flights=DEPTH,
            )
            return cls(
                own,
                device=device,
                decoder=decoder,
                batches=batches,
                graphs=Graphs.create(
                    decoder,
                    batches,
                    sizes=choice.captured(min(max_rows, max_tokens)),
                    longest=longest,
                    vocab=description.vocab,
                    device=device,
                ),
                sampler=sampler,
                kv=kv,
                host=HostStore(device, kv, num_blocks=num_host_blocks),
                cost=_cost(own, weights, kv),
                group=group,
                clock=clock,
            )

    def prepare(
        self, choice: Choice, *, on_compile: Callable[[], None], on_graph: Callable[[int, int], None] | None = None
    ) -> None:
        """Compiles and captures all that requests would have to wait for."""
        if choice.fused:
            on_compile()
            self.warm_up()
        self.capture(on_graph=on_graph)

    def warm_up(self) -> None:
        """Computes a step of every sort and forgets it, so that nobody's request waits for kernels to be compiled.

        It comes before all plans, as it writes to the first blocks.
        """
        sizes = {"block_size": self._kv.shape[3], "max_tokens": self._batches.max_tokens}
        for plan in warming.plans(vocab=self._description.vocab, **sizes):
            self.launch(plan)
            self.collect()
        self.computed = (0.0, 0.0)

    def capture(self, recorder: Recorder | None = None, *, on_graph: Callable[[int, int], None] | None = None) -> None:
        """Captures the steps that its choice wants to be captured, from now on launched as a whole.

        `recorder` is the device's unless it is given. `on_graph(done, total)` follows it. Nothing may be in flight.
        """
        assert not self._flights, "a plan is in flight"
        if self._graphs.sizes:
            with self._device.active(), torch.inference_mode():
                self._graphs.capture(recorder or self._device.recorder(), on_graph=on_graph)

    def launch(self, plan: Plan) -> None:
        assert len(self._flights) < DEPTH, "too many plans have not been collected"
        try:
            with self._device.active(), torch.inference_mode():
                self._flights.append(self._start(plan))
        except BaseException:
            self._drop()
            raise

    def collect(self) -> Result:
        assert self._flights, "nothing was launched"
        flight = self._flights[0]
        try:
            with self._device.active():
                flight.mark.wait()
        except BaseException:
            self._drop()
            raise
        self._flights.popleft()
        ended = self._clock()
        # The device takes one plan after another: this one began when the one before it was done.
        self.computed = (max(flight.began, self.computed[1]), ended)
        rows, failed = _told(flight.answers)
        return Result(flight.step, rows, (*flight.foreign, *failed), ended - self.computed[0])

    @property
    def done(self) -> bool:
        """Whether `collect` would return at once."""
        return self._flights[0].mark.passed

    @property
    def threads(self) -> None:
        """PyTorch chooses them."""

    @property
    def isa(self) -> None:
        """PyTorch chooses it."""

    def limits(self) -> None:
        """There is no measurement of a device yet."""

    def close(self) -> None:
        """Waits for what is in flight. Memory goes with the object."""
        self._drop()

    def logits(self, work: Sequence[Work]) -> NDArray[np.float32]:
        """Computes rows and stores their keys and values. Logits [rows that draw, vocab] of the last positions."""
        assert not self._flights, "a plan is in flight"
        if not work:
            return np.empty((0, self._description.vocab), dtype=np.float32)
        with self._device.active(), torch.inference_mode():
            assert all(self._known(row) for row in work), "a token id outside the vocabulary"
            logits = self._device.fetch(self._logits(work, {})[1])
            self._device.mark().wait()
            return logits.numpy()

    def _start(self, plan: Plan) -> _Flight:
        began = self._clock()
        self._move(plan.moves)
        known: list[Work] = []
        foreign: list[Work] = []
        for row in plan.work:
            (known if self._known(row) else foreign).append(row)
        answers = self._compute(known) if known else None
        told = f"a token is none of the model's {self._description.vocab}"
        return _Flight(plan.step, began, self._device.mark(), tuple((row.seq_id, told) for row in foreign), answers)

    def _move(self, moves: Sequence[Move]) -> None:
        for kind, alike in groupby(moves, key=lambda move: move.kind):
            match kind:
                case "store":
                    self._host.store(list(alike))
                case "load":
                    self._host.load(list(alike))
                case "copy":
                    for move in alike:
                        self._kv[:, move.target] = self._kv[:, move.source]

    def _compute(self, work: Sequence[Work]) -> _Answers | None:
        batch, logits = self._logits(work, self._drawn_by)
        drawing = tuple(row for row in work if row.draws and not row.pad)
        if not drawing:
            self._drawn_by = {}
            return None
        drawn, telling = self._draw(logits, drawing, batch.pending)
        self._drawn, self._drawn_by = drawn.tokens, _first_draws(drawing)
        fetch = self._device.fetch
        told = () if drawn.told is None else tuple(fetch(part) for part in drawn.told)
        return _Answers(drawing, fetch(drawn.tokens), fetch(drawn.failed), telling, told)

    def _draw(self, logits: Tensor, drawing: Sequence[Work], pending: Tensor | None) -> tuple[Drawn, Telling | None]:
        """What rank 0 draws; the others need it for the tokens that are pending in their next step."""
        if self._group.rank:
            told = torch.empty(2, sum(len(row.draws) for row in drawing), dtype=torch.int64, device=logits.device)
            tokens, failed = self._group.broadcast(told)
            return Drawn(tokens, failed), None
        wanted = [Wanted(draw, at, row.end) for at, row in enumerate(drawing) for draw in row.draws]
        draws = write(wanted, rows=len(drawing), vocab=self._description.vocab, put=self._device.put)
        drawn = self._sampler.draw(logits, draws, pending)
        if self._group.size > 1:
            self._group.broadcast(torch.stack((drawn.tokens, drawn.failed.long())))
        return drawn, draws.telling

    def _logits(self, work: Sequence[Work], drawn_by: Mapping[str, int]) -> tuple[Batch, Tensor]:
        """float32 [rows that draw, vocab], by a captured step if there is one. They stay until the next step."""
        size = self._graphs.size(work)
        batch = self._batches.fill(work, self._drawn, drawn_by, rows=size)
        if size is not None:
            return batch, self._graphs.logits(batch)
        hidden = self._decoder.hidden(batch)
        if not len(batch.last):
            return batch, torch.empty((0, self._description.vocab), dtype=torch.float32, device=self._device.on)
        return batch, self._decoder.logits(hidden)

    def _known(self, row: Work) -> bool:
        """Whether the model has all tokens of a row. One that is pending will be its own; those of pads do not matter."""
        if row.pad:
            return True
        tokens = row.tokens
        if tokens and tokens[-1] == PENDING and row.seq_id in self._drawn_by:
            tokens = tokens[:-1]
        if len(tokens) < _FEW_TOKENS:
            return min(tokens, default=0) >= 0 and max(tokens, default=0) < self._description.vocab
        # Read as unsigned numbers, so that negative ones are too large.
        return int(np.frombuffer(tokens, dtype=np.uint32).max()) < self._description.vocab

    def _drop(self) -> None:
        """Whatever is in flight is nobody's any more, and its buffers are free."""
        self._flights.clear()
        self._drawn_by = {}
        self._device.settle()


@contextmanager
def _enough_memory() -> Iterator[None]:
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        lacks = lacking(error)
        if lacks is None:
            raise
        raise ConfigError(f"there is too little memory for the weights and the KV cache: {lacks}") from None


def _fused() -> tuple[Ops, Sampler]:
    from chairlift.execute.torch.kernels.ops import TritonOps
    from chairlift.execute.torch.kernels.sampler import TritonSampler

    return TritonOps(), TritonSampler()


def _told(answers: _Answers | None) -> tuple[tuple[Row, ...], tuple[tuple[str, str], ...]]:
    """Rows that were drawn, and those that failed with what went wrong."""
    if answers is None:
        return (), ()
    tokens, codes = answers.tokens.tolist(), answers.failed.tolist()
    told: tuple[Logprobs | None, ...] = (None,) * len(tokens)
    if answers.telling is not None:
        told = logprobs(answers.telling, *(part.numpy() for part in answers.told), count=len(tokens))
    rows: list[Row] = []
    failed: list[tuple[str, str]] = []
    first = 0
    for work in answers.work:
        end = first + len(work.draws)
        code = max(codes[first:end])
        if code:
            failed.append((work.seq_id, FAILURES[code]))
        else:
            said = tuple(one for one in told[first:end] if one is not None)
            rows.append(Row(work.seq_id, tuple(tokens[first:end]), said))
        first = end
    return tuple(rows), tuple(failed)


def _first_draws(drawing: Sequence[Work]) -> dict[str, int]:
    """A row draws for its own sequence first."""
    firsts: dict[str, int] = {}
    first = 0
    for row in drawing:
        firsts[row.seq_id] = first
        first += len(row.draws)
    return firsts


def _cost(description: Description, weights: ModelWeights, kv: Tensor) -> ModelCost:
    """Of this rank. A token of the next step is looked up by each of them."""
    layers, blocks, _, block_size = kv.shape[:4]
    return model_cost(
        replace(description, vocab=len(weights.head)),
        body_bytes=weights.norm.nbytes + sum(layer.nbytes for layer in weights.layers),
        head_bytes=weights.head.nbytes,
        token_bytes=weights.embed.nbytes // len(weights.embed),
        position_bytes=kv.nbytes // (layers * blocks * block_size),
    )
