"""Plans as bytes, for the ranks that only compute. Knows which part of a plan those need; knows neither processes nor tensors.

Nobody but the first rank draws, so of draws the others need the number, and of a sequence the name, by which its next row finds
what it drew. Numbers are those of this machine: a plan goes no further.
"""

from array import array
from collections.abc import Iterable
from typing import Literal

import msgspec

from chairlift.core.types import Draw, Move, Plan, Sampling, Work

MAX_FRAME_BYTES = 256 << 20
"""Of a plan. A prompt of a million tokens takes about 4 MiB, and as much again for its blocks if they are of one token each."""

DRAW = Draw(0, Sampling(temperature=0))
"""Stands for any draw."""

_KINDS: tuple[Literal["copy", "store", "load"], ...] = ("copy", "store", "load")
_ROW, _MOVE = 5, 3
"""Numbers of a row and of a move."""


class WireError(Exception):
    """Bytes that are no plan."""


class _Frame(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Of int32: `rows` [rows, start, tokens, blocks, draws, pad], `moves` [moves, kind, source, target]."""

    step: int
    names: list[str]
    rows: bytes
    tokens: bytes
    blocks: bytes
    moves: bytes


def encode(plan: Plan) -> bytes:
    """What of a plan has to be computed."""
    rows, tokens, blocks = array("i"), array("i"), array("i")
    for row in plan.work:
        rows.extend((row.start, len(row.tokens), len(row.blocks), len(row.draws), row.pad))
        tokens.extend(row.tokens)
        blocks.extend(row.blocks)
    moves = array("i", (number for kind, *ends in plan.moves for number in (_KINDS.index(kind), *ends)))
    packed = (numbers.tobytes() for numbers in (rows, tokens, blocks, moves))
    frame = msgspec.msgpack.encode(_Frame(plan.step, [row.seq_id for row in plan.work], *packed))
    assert len(frame) <= MAX_FRAME_BYTES, "a plan that is too long"
    return frame


class Reader:
    """Plans as they come out of a channel. The blocks of a sequence are the same object as long as they are equal, as they are
    where plans are made: who keeps something for them looks at that.
    """

    def __init__(self) -> None:
        self._decoder = msgspec.msgpack.Decoder(_Frame)
        self._blocks: dict[str, array[int]] = {}

    def read(self, data: bytes | bytearray) -> Plan:
        """WireError if that is no plan."""
        try:
            frame = self._decoder.decode(data)
            rows, moves = _table(frame.rows, _ROW), _table(frame.moves, _MOVE)
            work = self._work(frame, rows)
            return Plan(frame.step, work, moves=tuple(Move(_KINDS[kind], *ends) for kind, *ends in moves))
        except (msgspec.DecodeError, ValueError, IndexError) as error:
            raise WireError(str(error)) from None

    def _work(self, frame: _Frame, rows: list[tuple[int, ...]]) -> tuple[Work, ...]:
        tokens, blocks = _Cutter(frame.tokens), _Cutter(frame.blocks)
        work: list[Work] = []
        kept: dict[str, array[int]] = {}
        for name, (start, length, height, draws, pad) in zip(frame.names, rows, strict=True):
            own, before = blocks.take(height), self._blocks.get(name)
            kept[name] = own if before is None or own != before else before
            work.append(Work(name, start, tokens.take(length), kept[name], (DRAW,) * draws, bool(pad)))
        tokens.end()
        blocks.end()
        self._blocks = kept
        return tuple(work)


def _table(data: bytes, width: int) -> list[tuple[int, ...]]:
    numbers = array("i", data)
    if len(numbers) % width or min(numbers, default=0) < 0:
        raise ValueError("numbers that are none of a table")
    columns: Iterable[array[int]] = (numbers[at::width] for at in range(width))
    return list(zip(*columns, strict=True))


class _Cutter:
    """Gives numbers out, one piece after another."""

    def __init__(self, data: bytes) -> None:
        self._numbers = array("i", data)
        self._at = 0

    def take(self, count: int) -> "array[int]":
        first, self._at = self._at, self._at + count
        piece = self._numbers[first : self._at]
        if len(piece) != count:
            raise ValueError("too few numbers")
        return piece

    def end(self) -> None:
        if self._at != len(self._numbers):
            raise ValueError("too many numbers")
