"""What each tenant was given: virtual token counters. Knows who was served how much; knows no queue.

Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024), there called VTC: whoever comes back after a pause
begins with the least counter of those who wait, so that nobody saves up service, and nobody is made to pay for what was
given to him while nobody else wanted it. Other than there, it is no pause while requests of the tenant run, and a short one
changes little: see `Ledger`.
"""

from collections import Counter
from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from chairlift.core.types import MAX_TENANTS, Request, Sequence
from chairlift.schedule.policy import Past

PROMPT_TOKEN = 1.0
ANSWER_TOKEN = 2.0
"""What tokens count, as in the paper. Tokens out of the prefix cache and tokens that are computed again count nothing."""

RELUCTANCE = 2.0
"""Of whom a place is taken for a tenant that has some, has so many times as many left, where all is computed again."""

IDLE_S = 600.0
"""A tenant without requests is remembered for so long, by the arrivals of the others."""


class _Pause(NamedTuple):
    """Of a tenant without requests: when it began, and the counter of the most served of those who waited then."""

    since: float
    most: float


class Ledger:
    """A counter per tenant, in weighted tokens divided by the tenant's weight (1 unless stated).

    Of tenants without requests those are forgotten first that have had least: their counters tell the least.

    A tenant whose last waiting request has got on, and that sends another while some run, has saved up nothing, but has had
    less than its share meanwhile, which it keeps: so much as `credit` weighted tokens behind the most served of those who
    wait. If that is no more than what counters of those who wait differ by in any case, bounds stay what they are. One without
    requests loses of that what others are served meanwhile: its pause adds nothing to it, and a long one leaves nothing of it.

    A tenant has a claim to as many places as it needs, up to its share of them; and to more, as long as it would still have had
    less than another when all that runs of it has got what it may get. `reluctant`, where whoever is displaced must be computed
    again, it has no claim to more, and with a place already waits for the next end if others would not have `RELUCTANCE` times
    as many left.
    """

    def __init__(self, weights: Mapping[str, float] | None = None, *, credit: float = 0.0, reluctant: bool = False) -> None:
        self._weights = dict(weights or {})
        self._credit = credit
        self._reluctant = reluctant
        self._counters: dict[str, float] = {}
        self._turns: dict[str, int] = {}
        """When a tenant was last charged, counted in charges; or when it first came, if it never was."""
        self._turn = 0
        self._waiting: Counter[str] = Counter()
        self._in_flight: Counter[str] = Counter()
        self._last_left = 0.0
        """The counter of the tenant that last left nobody behind in the queue, as it stood then."""
        self._pauses: dict[str, _Pause] = {}
        """Of those without requests, in the order in which they have become so."""
        self._latest = 0.0
        """When the last request came that is known of: what the time is, as far as it matters here."""

    def counter(self, tenant: str) -> float:
        return self._counters.get(tenant, 0.0)

    def standing(self, tenant: str) -> tuple[float, int]:
        """The smaller, the earlier it goes on: of those that were served as much, whoever was served the longest ago."""
        return self.counter(tenant), self._turns.get(tenant, 0)

    @property
    def tenants(self) -> int:
        """How many are remembered."""
        return len(self._counters)

    def wait(self, sequence: Sequence) -> None:
        """It joins the queue. A tenant that had nobody there is lifted to the others, unless the sequence was preempted."""
        tenant = sequence.request.tenant
        if sequence.choice == 0 and not sequence.started:  # with all other choices of its request
            self._expire(sequence.request.arrival)
            self._in_flight[tenant] += sequence.request.samples
            pause = self._pauses.pop(tenant, None)
            self._turns.setdefault(tenant, self._turn)
            if not self._waiting[tenant]:
                self._counters[tenant] = max(self.counter(tenant), self._floor(sequence.request, pause))
        self._waiting[tenant] += 1

    def leave(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant
        self._waiting[tenant] -= 1
        if not self._waiting[tenant]:
            del self._waiting[tenant]
            self._last_left = self.counter(tenant)

    def charge(self, tenant: str, *, prompt: int = 0, answer: int = 0) -> None:
        self._turn += 1
        self._turns[tenant] = self._turn
        cost = prompt * PROMPT_TOKEN + answer * ANSWER_TOKEN
        self._counters[tenant] = self.counter(tenant) + cost / self._weight(tenant)

    def surplus(self, waiting: Sequence, running: list[Sequence]) -> dict[str, float]:
        """How many places, above 0, each tenant has to spare for the waiting one's: it was served more, and keeps its share.

        That is, by weights, as many as the other one has then. One that will have had more even when the other one's requests
        that run have got all they may get keeps a single place.
        """
        tenant, places = waiting.request.tenant, Counter([one.request.tenant for one in running])
        for leader in running:
            if leader.followers:
                places[leader.request.tenant] += len(leader.followers)
        had = places.pop(tenant, 0)
        share = (RELUCTANCE if had and self._reluctant else 1.0) * (had + waiting.places) / self._weight(tenant)
        standing = self.standing(tenant)
        ahead = [other for other in places if self.standing(other) > standing]
        if not ahead:
            return {}
        level = inf if self._reluctant else self._counter_when_served(waiting, running)
        kept = {other: share * self._weight(other) if self.counter(other) <= level else 1.0 for other in ahead}
        return {other: places[other] - max(1.0, kept[other]) for other in ahead if places[other] > max(1.0, kept[other])}

    def _counter_when_served(self, waiting: Sequence, running: list[Sequence]) -> float:
        """Of the waiting one's tenant, when it and those of the tenant that run have got all that they may still get."""
        tenant = waiting.request.tenant
        own = [one for one in running if one.request.tenant == tenant]
        owed = ANSWER_TOKEN * sum(one.places * (one.most + 1 - len(one.tokens)) for one in (*own, waiting))
        owed += 0 if waiting.started else PROMPT_TOKEN * waiting.prompt_len
        return self.counter(tenant) + owed / self._weight(tenant)

    def observe(self, past: Past) -> None:
        for sequence in past.finished:
            tenant = sequence.request.tenant
            self._in_flight[tenant] -= 1
            if not self._in_flight[tenant]:
                del self._in_flight[tenant]
                self._pauses[tenant] = _Pause(self._latest, max(self._others()))
        if past.finished:
            self._forget()

    def _weight(self, tenant: str) -> float:
        return self._weights.get(tenant, 1.0)

    def _floor(self, request: Request, pause: _Pause | None) -> float:
        """The least counter with which a tenant comes back to the queue that has left it."""
        counters, credit = self._others(), self._credit / self._weight(request.tenant)
        most = max(counters)
        if self._in_flight[request.tenant] > request.samples:
            return min(*counters, most - credit)
        if pause is None:
            return min(counters)
        behind = pause.most - self.counter(request.tenant)
        served = most - pause.most
        return min(*counters, most - max(0.0, min(credit, behind - served)))

    def _others(self) -> list[float]:
        """Counters of tenants with somebody in the queue. Where there is none, that of the last who had."""
        return [self.counter(tenant) for tenant, count in self._waiting.items() if count] or [self._last_left]

    def _expire(self, now: float) -> None:
        self._latest = max(self._latest, now)
        while self._pauses:
            tenant, pause = next(iter(self._pauses.items()))
            if pause.since + IDLE_S >= self._latest:
                return
            del self._pauses[tenant]
            self._counters.pop(tenant, None)
            self._turns.pop(tenant, None)

    def _forget(self) -> None:
        surplus = len(self._counters) - MAX_TENANTS
        if surplus > 0:
            idle = sorted((tenant for tenant in self._counters if tenant not in self._in_flight), key=self.counter)
            for tenant in idle[:surplus]:
                del self._counters[tenant]
                self._turns.pop(tenant, None)
                self._pauses.pop(tenant, None)
