"""Executors without arithmetic, for tests. They keep a shadow of the KV store and know which tokens wrote which slot."""

import zlib
from array import array
from collections.abc import Callable
from typing import NamedTuple

from chairlift.core.types import Draw, Logprobs, Move, Plan, Result, Row, Work


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


class ShadowExecutor:
    """Draws `next_token(prefix)`, where the prefix is read back from the shadow KV store through the row's block table.

    Every position that attention would read must have been written by this very prefix, and the history of a draw that has
    one must be that prefix as well: anything else is an AssertionError. If `contiguous`, only the table's first entry is read.
    """

    def __init__(
        self, num_blocks: int, block_size: int, next_token: Callable[[tuple[int, ...]], int], *, contiguous: bool = False
    ) -> None:
        self.contiguous = contiguous
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.next_token = next_token
        self.plans: list[Plan] = []
        self.closed = False
        self._slots: dict[tuple[int, int], Slot] = {}

    def launch(self, plan: Plan) -> None:
        self.plans.append(plan)

    def collect(self) -> Result:
        plan = self.plans[-1]
        for move in plan.moves:
            self._copy(move)
        written: set[tuple[int, int]] = set()
        rows: list[Row] = []
        for work in plan.work:
            if work.pad:
                continue
            prefix = self._compute(work, written)
            if work.draws:
                rows.append(self._row(work, prefix))
        return Result(plan.step, tuple(rows))

    def draw(self, draw: Draw, prefix: tuple[int, ...]) -> int:
        """Every choice writes tokens of its own."""
        token = self.next_token(prefix) + draw.choice
        while token in draw.banned:
            token += 1
        return token

    def close(self) -> None:
        self.closed = True

    def _row(self, work: Work, prefix: tuple[int, ...]) -> Row:
        for draw in work.draws:
            if draw.history is not None:
                told = tuple(draw.history[: work.end])
                assert told == prefix, f"{work.seq_id} has the history of another prefix"
        tokens = tuple(self.draw(draw, prefix) for draw in work.draws)
        asked = zip(tokens, (draw.sampling.logprobs for draw in work.draws), strict=True)
        logprobs = tuple(scripted_logprobs(token, count) for token, count in asked if count is not None)
        return Row(work.seq_id, tokens, logprobs)

    def _place(self, work: Work, position: int) -> tuple[int, int]:
        number = position // self.block_size
        assert number < len(work.blocks)
        block = work.blocks[0] + number if self.contiguous else work.blocks[number]
        assert 0 <= block < self.num_blocks
        return block, position % self.block_size

    def _copy(self, move: Move) -> None:
        """What was never written is copied as such."""
        for within in range(self.block_size):
            slot = self._slots.get((move.source, within))
            if slot is None:
                self._slots.pop((move.target, within), None)
            else:
                self._slots[move.target, within] = slot

    def _compute(self, work: Work, written: set[tuple[int, int]]) -> tuple[int, ...]:
        assert len(work.tokens) > 0, f"{work.seq_id} has a row without tokens: there would be no logits"
        before, prefix = 0, []
        for position in range(work.start):
            slot = self._slots[self._place(work, position)]
            assert slot.digest == digest(before, slot.token), f"{work.seq_id} reads position {position} of another prefix"
            before = slot.digest
            prefix.append(slot.token)
        for offset, token in enumerate(work.tokens):
            place = self._place(work, work.start + offset)
            assert place not in written, "two rows of a step write the same slot"
            written.add(place)
            before = digest(before, token)
            self._slots[place] = Slot(token, before)
            prefix.append(token)
        return tuple(prefix)
