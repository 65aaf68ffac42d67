"""Draws tokens from logits inside the step, by the rules of `execute.sampler`, without sorting the vocabulary.

Knows one row of logits at a time; knows nothing of requests.
"""

from chairlift.execute.cpu.kernels.emit import F32, I32, I64, Function, Module, Value, Variable, vector
from chairlift.execute.cpu.kernels.work import Operands, claimed
from chairlift.execute.cpu.words import DRAW

LANES = 16
_V, _W = vector(F32, LANES), vector(I32, LANES)
BROKEN = -1
"""The answer of a row whose logits are not finite numbers."""


class _Draw:
    """The words of one draw."""

    def __init__(self, f: Function, at: Value) -> None:
        self._f, self._at = f, at

    def __getattr__(self, name: str) -> Value:
        return self._f.load(I64, self._at + 8 * DRAW.index(name))


def add_sample(module: Module) -> str:
    f = module.function("sample", [I64, I64, I64], public=True)
    op = Operands(f, "sample")
    with claimed(f, op, f.load(I64, op.count)) as row:
        logits = op.logits + row * (op.stride * 4)
        bounds = op.state("row_draws") + row * 16
        broken = _broken(f, logits, op.vocab)
        with f.loop(f.load(I64, bounds), f.load(I64, bounds + 8)) as number:
            draw = _Draw(f, op.state("draws") + number * (8 * len(DRAW)))
            answer = f.var(f.whole(BROKEN))
            with f.when(broken.equals(0)):
                _hide(f, draw, logits)
                answer.value = _largest(f, logits, op.vocab)
                _show(f, draw, logits)
            f.store(answer.value, op.state("answers") + number * 8)
    f.ret()
    return "sample"


def _broken(f: Function, logits: Value, vocab: Value) -> Value:
    """1 if any logit is not a finite number. Rows are padded to whole vectors with finite numbers."""
    largest = f.var(f.number(_W, 0))
    with f.loop(0, vocab, LANES) as i:
        largest.value = f.unsigned_max(largest.value, f.load(_W, logits + i * 4) & 0x7FFFFFFF)
    return (f.fold(largest.value, f.unsigned_max) >= 0x7F800000).unsigned_to(I64)


def _hide(f: Function, draw: _Draw, logits: Value) -> None:
    """Banned ids get minus infinity; what stood there is kept behind the list of them."""
    banned, count = draw.banned, draw.banned_count
    with f.loop(0, count) as i:
        at = logits + f.load(I64, banned + i * 8) * 4
        f.store(f.load(I32, at).to(I64), banned + (count + i) * 8)
        f.store(f.number(I32, -8388608), at)


def _show(f: Function, draw: _Draw, logits: Value) -> None:
    banned, count = draw.banned, draw.banned_count
    with f.loop(0, count) as i:
        f.store(f.load(I64, banned + (count + i) * 8).to(I32), logits + f.load(I64, banned + i * 8) * 4)


def _largest(f: Function, logits: Value, vocab: Value) -> Value:
    """The id of the largest logit, the lowest among equals."""
    best, where = _start(f, logits)
    with f.loop(1, vocab) as i:
        logit = f.load(F32, logits + i * 4)
        with f.when(logit > best.value):
            best.value = logit
            where.value = i
    return where.value


def _start(f: Function, logits: Value) -> tuple[Variable, Variable]:
    return f.var(f.load(F32, logits)), f.var(f.whole(0))
