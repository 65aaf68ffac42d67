"""Finds stop strings in a text that arrives in pieces. Pure: characters in, characters out; knows no tokens.

The automaton is Aho and Corasick's (Communications of the ACM 18, 1975): its state is the longest end of the text that some
stop begins with, which is exactly what must be held back.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Node:
    """A beginning of some stop, `depth` characters long. `stop` is the longest stop that ends here, if one does."""

    depth: int
    next: dict[str, "_Node"] = field(default_factory=dict[str, "_Node"])
    fallback: "_Node | None" = None
    stop: str | None = None


class StopMatcher:
    """Sends text on as soon as it cannot become a stop, and nothing from the first stop on.

    The stop that is complete first wins; of those that end at the same character, the longest. The pieces in which the text
    arrives do not matter. With `include`, the stop itself is sent.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        if "" in stops:
            raise ValueError("a stop string must not be empty")
        self.matched: str | None = None
        """The stop that was found."""
        self._include = include
        self._root = _automaton(stops)
        self._state = self._root
        self._held = ""

    def feed(self, text: str, *, armed: bool = True) -> str:
        """What may be sent now. While not `armed`, stops are passed over: one that ends in this text does not count."""
        if self.matched is not None:
            return ""
        pending = self._held + text
        for place, character in enumerate(text, start=len(self._held) + 1):
            node = self._state = self._step(self._state, character)
            if node.stop is not None and armed:
                return self._end(pending[:place], node.stop)
            if not node.next and node.fallback is not None:
                self._state = node.fallback
        kept = len(pending) - self._state.depth
        self._held = pending[kept:]
        return pending[:kept]

    def finish(self) -> str:
        """What was held back and became no stop. Nothing after a match."""
        held, self._held, self._state = self._held, "", self._root
        return held

    def _end(self, text: str, stop: str) -> str:
        self.matched = stop
        self._held = ""
        return text if self._include else text[: -len(stop)]

    def _step(self, node: _Node, character: str) -> _Node:
        while character not in node.next:
            if node.fallback is None:
                return node
            node = node.fallback
        return node.next[character]


def _automaton(stops: Sequence[str]) -> _Node:
    root = _Node(0)
    for stop in stops:
        node = root
        for character in stop:
            node = node.next.setdefault(character, _Node(node.depth + 1))
        node.stop = stop
    _link(root)
    return root


def _link(root: _Node) -> None:
    """Gives each node the longest other beginning that is its end, level by level, and the stops that end within it."""
    waiting = deque((root, character, child) for character, child in root.next.items())
    while waiting:
        parent, character, node = waiting.popleft()
        node.fallback = _suffix(parent, character, root)
        if node.stop is None:
            node.stop = node.fallback.stop
        waiting.extend((node, follower, child) for follower, child in node.next.items())


def _suffix(parent: _Node, character: str, root: _Node) -> _Node:
    node = parent.fallback
    while node is not None:
        if character in node.next:
            return node.next[character]
        node = node.fallback
    return root
