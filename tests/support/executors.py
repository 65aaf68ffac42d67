"""Executors without arithmetic, for tests. They keep a shadow of the KV store and know which tokens wrote which slot."""

import zlib
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from chairlift.core.config import MAX_DEPTH
from chairlift.core.types import PENDING, Draw, Logprobs, Move, Plan, Result, Row, Work


class Slot(NamedTuple):
    """What one KV position remembers: its token, and a running digest of everything before and including it."""

    token: int
    digest: int


def digest(before: int, token: int) -> int:
    return zlib.crc32(token.to_bytes(8, "little"), before) or 1


def solo(prompt: tuple[int, ...], next_token: Callable[[tuple[int, ...]], int], count: int) -> tuple[int, ...]:
    """What `count` tokens a request must get, computed without any engine."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tuple(tokens)))
    return tuple(tokens[len(prompt) :])


def hashed(vocab: int) -> Callable[[tuple[int, ...]], int]:
    """A next token that depends on the whole prefix, so that any slip in scheduling or caching changes the text."""

    def next_token(prefix: tuple[int, ...]) -> int:
        return zlib.crc32(array("i", prefix).tobytes()) % vocab

    return next_token


def scripted_logprobs(token: int, count: int) -> Logprobs:
    """What a scripted model says of a token: it was the second best, after the one with the next id."""
    ids = [token + 1, token, *range(token + 2, token + count)][:count]
    return Logprobs(-1.5, 2, tuple((best, -0.5 - place) for place, best in enumerate(ids)))


Histories = tuple[tuple[int, ...] | None, ...]
"""Of each draw of a row, what it looks back on."""


def histories(work: Work) -> Histories:
    return tuple(None if draw.history is None else tuple(draw.history[: work.end]) for draw in work.draws)


class ShadowExecutor:
    """Draws `next_token(prefix)`, where the prefix is read back from the shadow KV store through the row's block table.

    Every position that attention would read must have been written by this very prefix, and the history of a draw that has
    one must be that prefix as well: anything else is an AssertionError. If `contiguous`, only the table's first entry is read.

    Plans in flight are computed one after another when they are collected. Histories are read when they are launched, as an
    executor would that copies them; what is PENDING must be what the same row drew in the plan right before.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        next_token: Callable[[tuple[int, ...]], int],
        *,
        contiguous: bool = False,
        num_host_blocks: int = 0,
    ) -> None:
        self.contiguous = contiguous
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.num_host_blocks = num_host_blocks
        self.next_token = next_token
        self.plans: list[Plan] = []
        """All that were launched."""
        self.closed = False
        self.collecting = Plan(-1, ())
        """The plan whose result was last asked for."""
        self._flights: deque[tuple[Plan, dict[str, Histories]]] = deque()
        self._drawn: dict[str, int] = {}
        """By the plan that was computed last."""
        self._slots: dict[tuple[int, int], Slot] = {}
        self._host: dict[tuple[int, int], Slot] = {}
        """As the store in host memory would have them."""

    def launch(self, plan: Plan) -> None:
        assert len(self._flights) < MAX_DEPTH, "too many plans in flight"
        drawing = {work.seq_id for work in self._flights[-1][0].work if len(work.draws) == 1} if self._flights else set[str]()
        for work in plan.work:
            assert PENDING not in work.tokens[:-1], "only the last token of a row may be pending"
            pending = not work.pad and PENDING in work.tokens
            assert not pending or work.seq_id in drawing, f"nobody draws what {work.seq_id} waits for"
        self.plans.append(plan)
        self._flights.append((plan, {work.seq_id: histories(work) for work in plan.work if not work.pad}))

    def collect(self) -> Result:
        plan, told = self._flights.popleft()
        self.collecting = plan
        self._check(plan.moves)
        for move in plan.moves:
            self._move(move)
        written: set[tuple[int, int]] = set()
        rows: list[Row] = []
        for work in plan.work:
            if work.pad:
                continue
            prefix = self._compute(work, written)
            if work.draws:
                rows.append(self._row(work, prefix, told[work.seq_id]))
        self._drawn = {row.seq_id: row.tokens[0] for row in rows}
        return Result(plan.step, tuple(rows))

    @property
    def next_up(self) -> Plan:
        """The plan whose result will be asked for next."""
        return self._flights[0][0]

    def drop(self) -> None:
        """Forgets what is in flight, as after a failure."""
        self._flights.clear()

    def draw(self, draw: Draw, prefix: tuple[int, ...]) -> int:
        """Every choice writes tokens of its own."""
        token = self.next_token(prefix) + draw.choice
        while token in draw.banned:
            token += 1
        return token

    def close(self) -> None:
        self.closed = True

    def _row(self, work: Work, prefix: tuple[int, ...], told: Histories) -> Row:
        for history in told:
            if history is not None:
                assert history[:-1] == prefix[:-1], f"{work.seq_id} has the history of another prefix"
                assert history[-1] == work.tokens[-1], f"{work.seq_id} has a history that ends with another token than its row"
        tokens = tuple(self.draw(draw, prefix) for draw in work.draws)
        asked = zip(tokens, (draw.sampling.logprobs for draw in work.draws), strict=True)
        logprobs = tuple(scripted_logprobs(token, count) for token, count in asked if count is not None)
        return Row(work.seq_id, tokens, logprobs)

    def known(self, work: Work) -> Sequence[int]:
        """The tokens of a row that is computed next."""
        if PENDING not in work.tokens:
            return work.tokens
        return (*work.tokens[:-1], self._drawn[work.seq_id])

    def _place(self, work: Work, position: int) -> tuple[int, int]:
        number = position // self.block_size
        assert number < len(work.blocks)
        block = work.blocks[0] + number if self.contiguous else work.blocks[number]
        assert 0 <= block < self.num_blocks
        return block, position % self.block_size

    def _check(self, moves: tuple[Move, ...]) -> None:
        """In an order in which all moves of a kind may be done at once."""
        kinds = ("store", "copy", "load")
        assert [move.kind for move in moves] == sorted((move.kind for move in moves), key=kinds.index)
        for kind in kinds:
            targets = [move.target for move in moves if move.kind == kind]
            assert len(set(targets)) == len(targets), f"two blocks are moved to one place: {moves}"
        written = {move.target for move in moves if move.kind != "store"}
        read = [move.source for move in moves if move.kind == "copy"]
        assert written.isdisjoint(read), f"a copy may be of what another move has written: {moves}"

    def _move(self, move: Move) -> None:
        """What was never written is moved as such."""
        device, host = (self._slots, self.num_blocks), (self._host, self.num_host_blocks)
        sources, source_count = host if move.kind == "load" else device
        targets, target_count = host if move.kind == "store" else device
        assert 0 <= move.source < source_count
        assert 0 <= move.target < target_count
        for within in range(self.block_size):
            slot = sources.get((move.source, within))
            if slot is None:
                targets.pop((move.target, within), None)
            else:
                targets[move.target, within] = slot

    def _compute(self, work: Work, written: set[tuple[int, int]]) -> tuple[int, ...]:
        assert len(work.tokens) > 0, f"{work.seq_id} has a row without tokens: there would be no logits"
        before, prefix = 0, []
        for position in range(work.start):
            slot = self._slots[self._place(work, position)]
            assert slot.digest == digest(before, slot.token), f"{work.seq_id} reads position {position} of another prefix"
            before = slot.digest
            prefix.append(slot.token)
        for offset, token in enumerate(self.known(work)):
            place = self._place(work, work.start + offset)
            assert place not in written, "two rows of a step write the same slot"
            written.add(place)
            before = digest(before, token)
            self._slots[place] = Slot(token, before)
            prefix.append(token)
        return tuple(prefix)
