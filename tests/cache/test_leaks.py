"""Pool and index through a hundred thousand random operations: nothing is lost, and nothing is handed out twice."""

import random

from chairlift.cache.check import check
from chairlift.cache.pool import BlockPool
from chairlift.cache.prefix import PrefixIndex
from chairlift.core.types import Request, Sequence, Stopping
from chairlift.schedule.memory import Paged

OPERATIONS = 100_000
CHECKED_EVERY = 211
"""A whole check walks over everything. This is a prime, so that no rhythm of the operations hides from it."""

BLOCKS, BLOCK_SIZE, LONGEST = 60, 4, 48
MOST_SEATED = 16

OPERATED = ("get_on", "write", "leave", "send_back", "distrust", "clear")
OFTEN = (6, 24, 3, 2, 0.5, 0.02)
"""How often each is done, beside the others."""
FORKS = 0.2
"""Of those that have computed all they have."""


class Crowd:
    """Sequences that get on, grow, are computed, fail, are sent back and leave, each as a scheduler would do it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.memory = Paged(BlockPool(BLOCKS), PrefixIndex(BLOCK_SIZE))
        self.seated: list[Sequence] = []
        self.away: list[Sequence] = []
        self.count = 0
        self.copies = 0
        self.done: dict[str, int] = {}

    def operate(self, name: str) -> None:
        if getattr(self, name)():
            self.done[name] = self.done.get(name, 0) + 1

    def get_on(self) -> bool:
        sequence = self.away.pop() if self.away and self.random.random() < 0.7 else self._random()
        match = self.memory.match(sequence)
        if self.memory.need(sequence, match) > self.memory.pool.free:
            self.away.append(sequence)
            del self.away[:-8]
            return False
        self.memory.seat(sequence, match)
        self.seated.append(sequence)
        return True

    def write(self) -> bool:
        """A chunk of what is missing is computed, and if that was the last, a token comes."""
        if not self.seated:
            return False
        sequence = self.random.choice(self.seated)
        count = self.random.randint(1, sequence.missing)
        lacks = self.memory.lacks(sequence, sequence.computed + count)
        if lacks > self.memory.pool.free or len(sequence.tokens) == LONGEST:
            return False
        self.memory.grow(sequence, sequence.computed + count)
        sequence.computed += count
        self.memory.enter(sequence, sequence.computed)
        if not sequence.missing:
            if self.random.random() < FORKS and len(self.seated) < MOST_SEATED:
                self._fork(sequence)
            sequence.tokens.append(self.random.randint(0, 1))
        return True

    def leave(self) -> bool:
        return self._release() is not None

    def send_back(self) -> bool:
        sequence = self._release()
        if sequence is not None:
            self.away.append(sequence)
        return sequence is not None

    def distrust(self) -> bool:
        if not self.seated:
            return False
        self.memory.distrust(self.random.choice(self.seated))
        return self.leave()

    def clear(self) -> bool:
        self.memory.index.clear()
        return True

    def check(self) -> None:
        check(self.memory.pool, self.memory.index, self.seated, BLOCK_SIZE)

    def _release(self) -> Sequence | None:
        if not self.seated:
            return None
        sequence = self.seated.pop(self.random.randrange(len(self.seated)))
        self.memory.release(sequence)
        return sequence

    def _fork(self, leader: Sequence) -> None:
        """Another one goes on from where this one is; the block that both write next is copied by whoever writes first."""
        follower = self._new(tuple(leader.tokens), leader.request.cache_salt)
        self.memory.fork(leader, follower)
        follower.tokens.append(self.random.randint(0, 1))
        self.seated.append(follower)

    def _random(self) -> Sequence:
        prompt = tuple(self.random.randint(0, 1) for _ in range(self.random.randint(1, 30)))
        return self._new(prompt, self.random.choice(("", "", "salt")))

    def _new(self, prompt: tuple[int, ...], salt: str) -> Sequence:
        self.count += 1
        return Sequence(Request(str(self.count), prompt, Stopping(8), cache_salt=salt))


def test_nothing_is_lost_in_a_hundred_thousand_operations() -> None:
    crowd = Crowd(seed=4)
    for number, name in enumerate(crowd.random.choices(OPERATED, OFTEN, k=OPERATIONS)):
        crowd.operate(name)
        if number % CHECKED_EVERY == 0:
            crowd.check()
        crowd.copies += len(crowd.memory.moves())
    assert min(crowd.done.get(name, 0) for name in OPERATED) > 10
    assert crowd.copies > 100
    while crowd.leave():
        pass
    crowd.check()
    assert crowd.memory.pool.free == BLOCKS
    assert sorted(crowd.memory.pool.take(BLOCKS)) == list(range(BLOCKS))
