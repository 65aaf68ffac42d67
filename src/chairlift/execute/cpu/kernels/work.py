"""How instructions are read and how threads share them: operands by name, pieces of work claimed one at a time.

Knows the words of `words`; knows nothing of what the pieces are.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from chairlift.execute.cpu import words
from chairlift.execute.cpu.kernels.emit import I64, Function, Value


class Operands:
    """The words of the instruction whose address is the function's first argument; its second is that of the state.

    Every word is read where it is named, so a word that changes while other threads run must not be one of them.
    """

    def __init__(self, f: Function, kind: str) -> None:
        self._f = f
        self._names = words.OPERANDS[kind]
        self._at, self._state, self.scratch = f.arguments
        self._known: dict[str, Value] = {}
        for name in self._names:
            self._known[name] = f.load(I64, self._at + words.WORD * self._names.index(name))

    def __getattr__(self, name: str) -> Value:
        return self._known[name]

    def state(self, name: str) -> Value:
        return self._f.load(I64, self._state + words.WORD * words.STATE.index(name))


@contextmanager
def claimed(f: Function, op: Operands, total: Value) -> Iterator[Value]:
    """Runs its body for numbers from 0 to total - 1 that no other thread has taken."""
    one = f.whole(1)
    item = f.var(f.fetch_add(op.counter, one))
    with f.repeat(lambda: item.value < total):
        yield item.value
        item.value = f.fetch_add(op.counter, one)
