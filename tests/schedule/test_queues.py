"""Queues within queues: who is first, whatever came and went before."""

from collections.abc import Callable, Iterator

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from virtual import request

from chairlift.core.types import Sequence
from chairlift.schedule.orders import Seniority, arrival
from chairlift.schedule.queues import Classes, Fair, Queue, Sorted
from chairlift.schedule.shares import Ledger

AGED = Seniority(10.0)


def sequence(number: int, at: float = 0.0, *, priority: int = 0, tenant: str = "", started: bool = False) -> Sequence:
    made = Sequence(request(f"r{number}", [1], arrival=at, priority=priority, tenant=tenant), number)
    made.started = started
    return made


def drained(queue: Queue, *sequences: Sequence) -> list[int]:
    """The numbers, in the order in which they get on."""
    for one in sequences:
        queue.push(one)
    order: list[int] = []
    while (first := queue.peek(0.0)) is not None:
        queue.remove(first)
        order.append(first.number)
    return order


def fair() -> Fair:
    return Fair(Ledger(), lambda: Sorted(arrival))


def classes(inner: Callable[[], Queue] = lambda: Sorted(arrival)) -> Classes:
    return Classes(AGED, inner)


def test_by_key():
    assert drained(Sorted(arrival), sequence(1, 5.0), sequence(2, 3.0), sequence(3, 4.0)) == [2, 3, 1]


def test_equal_keys_keep_the_order_in_which_they_came():
    assert drained(Sorted(arrival), sequence(3), sequence(1), sequence(2)) == [1, 2, 3]


def test_whoever_has_run_before_goes_before_all_who_have_not():
    assert drained(Sorted(arrival), sequence(1, 5.0, started=True), sequence(2, 3.0)) == [1, 2]


def test_a_new_key_moves_a_waiting_one():
    queue = Sorted(arrival)
    moving = sequence(2, 3.0)
    queue.push(moving)
    queue.put(moving, 9.0)
    assert drained(queue, sequence(1, 5.0)) == [1, 2]


def test_the_higher_class_goes_first():
    assert drained(classes(), sequence(1, 0.0, priority=1), sequence(2, 5.0)) == [2, 1]


def test_age_makes_up_for_class():
    assert drained(classes(), sequence(1, 0.0, priority=1), sequence(2, 11.0)) == [1, 2]


def test_within_a_class_the_class_says_who_is_first():
    backwards = classes(lambda: Sorted(lambda one: -arrival(one)))
    assert drained(backwards, sequence(1, 0.0), sequence(2, 5.0), sequence(3, 0.0, priority=1)) == [2, 1, 3]


def test_whoever_was_served_less_goes_first():
    ledger = Ledger()
    queue = Fair(ledger, lambda: Sorted(arrival))
    queue.push(sequence(1, 0.0, tenant="a"))
    queue.push(sequence(2, 1.0, tenant="b"))
    ledger.charge("a", prompt=10)
    assert drained(queue) == [2, 1]


def test_of_tenants_that_were_served_alike_the_one_goes_first_that_came_first():
    assert drained(fair(), sequence(1, tenant="z"), sequence(2, tenant="a"), sequence(3, tenant="m")) == [1, 2, 3]


def test_a_change_of_shares_is_seen_at_once():
    ledger = Ledger()
    queue = Fair(ledger, lambda: Sorted(arrival))
    for number, tenant in enumerate("aab"):
        queue.push(sequence(number, tenant=tenant))
    seen: list[int] = []
    for tenant in "abb":
        first = queue.peek(0.0)
        assert first is not None
        seen.append(first.number)
        ledger.charge(tenant, prompt=10)
    assert seen == [0, 2, 0]


def test_tenants_that_come_and_go_leave_nothing_behind():
    queue = fair()
    queue.push(sequence(0, tenant="first"))
    for number in range(1, 500):
        passing = sequence(number, tenant=f"t{number}")
        queue.push(passing)
        queue.remove(passing)
    assert (len(queue), len(queue._queues), len(queue._heap) < 50) == (1, 1, True)


def test_all_who_wait_are_listed_tenant_by_tenant_in_turn():
    queue = fair()
    for number, tenant in enumerate("aaab"):
        queue.push(sequence(number, tenant=tenant))
    assert [one.number for one in queue] == [0, 3, 1, 2]


class Listed(Sorted):
    """Counts the times that it is asked for the next one."""

    asked = 0

    def __iter__(self) -> Iterator[Sequence]:
        for one in super().__iter__():
            self.asked += 1
            yield one
        self.asked += 1


def test_whose_queue_is_at_its_end_is_not_asked_again_for_each_of_a_longer_one():
    queues: list[Listed] = []

    def inner() -> Listed:
        queues.append(Listed(arrival))
        return queues[-1]

    queue = Fair(Ledger(), inner)
    for number in range(300):
        queue.push(sequence(number, tenant="much" if number < 200 else f"t{number}"))
    assert [one.number for one in queue][-1] == 199
    assert sum(one.asked for one in queues) == 300 + 101


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 3), st.sampled_from("ab")), max_size=20))
def test_everybody_is_listed_once(asked: list[tuple[float, int, str]]):
    queue = Classes(AGED, fair)
    for number, (at, priority, tenant) in enumerate(asked):
        queue.push(sequence(number, at, priority=priority, tenant=tenant))
    assert sorted(one.number for one in queue) == list(range(len(asked))) == list(range(len(queue)))


class QueueMachine(RuleBasedStateMachine):
    """Classes of tenants' queues beside a plain list that is searched for the first each time."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.queue = Classes(AGED, lambda: Fair(self.ledger, lambda: Sorted(arrival)))
        self.waiting: list[Sequence] = []
        self.count = 0

    @rule(at=st.integers(0, 60), priority=st.integers(0, 3), tenant=st.sampled_from("abc"), started=st.booleans())
    def push(self, at: int, priority: int, tenant: str, started: bool) -> None:
        one = sequence(self.count, float(at), priority=priority, tenant=tenant, started=started)
        self.count += 1
        self.queue.push(one)
        self.waiting.append(one)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        one = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        self.queue.remove(one)

    @rule(tenant=st.sampled_from("abc"), tokens=st.integers(1, 30))
    def charge(self, tenant: str, tokens: int) -> None:
        self.ledger.charge(tenant, prompt=tokens)

    @invariant()
    def the_first_is_the_first(self) -> None:
        first = self.queue.peek(0.0)
        assert len(self.queue) == len(self.waiting)
        if not self.waiting:
            assert first is None
            return
        assert first is not None
        proposed = [one.queue.peek(0.0) for one in self.queue._classes.values()]
        assert [bound for bound, _ in self.queue._bounds] == sorted(
            min(AGED(one) for one in self.waiting if one.request.priority == priority) for priority in self.queue._classes
        )
        assert AGED(first) == min(AGED(one) for one in proposed if one is not None)
        peers = [one for one in self.waiting if one.request.priority == first.request.priority]
        least = min(self.ledger.counter(one.request.tenant) for one in peers)
        assert self.ledger.counter(first.request.tenant) == least
        own = [one for one in peers if one.request.tenant == first.request.tenant]
        assert first is min(own, key=lambda one: (not one.started, arrival(one), one.number))


TestQueues = QueueMachine.TestCase
