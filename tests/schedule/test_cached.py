"""The queue that asks the cache; what becomes of it in an engine is in `test_orders`."""

from virtual import request

from chairlift.cache.prefix import PrefixIndex
from chairlift.core.types import Sequence
from chairlift.schedule.cached import CachedFirst


def test_who_comes_back_again_and_again_is_looked_up_once_in_each_round():
    index = PrefixIndex(4)
    queue = CachedFirst(index)
    waiting = [Sequence(request(str(number), [number] * 6, arrival=float(number)), number) for number in range(3)]
    for _ in range(20):
        for sequence in waiting:
            queue.push(sequence)
        assert queue.peek(0.0) is waiting[0]
        assert list(queue._turns.values()) == waiting
        for sequence in waiting:
            queue.remove(sequence)
    assert not queue._turns
