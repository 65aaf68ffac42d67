"""Which requests are being answered, by the names that clients know, and whose they are. Knows no engine and no HTTP."""

from collections import Counter, OrderedDict
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from chairlift.core.types import MAX_TENANTS

OTHERS = "others"
"""The last of MAX_TENANTS, which all share who come while the others are being served."""
MAX_ENDED = 1000
"""So many are still known after their end, for whoever asks what became of them."""


class Flight(NamedTuple):
    """One choice of a request in flight. `id` is what its client was told; the engine has another name for every choice.

    `tenant` is who it is counted to.
    """

    id: str
    choice: int
    owner: str
    model: str
    created: int
    tenant: str = ""


class Flights:
    """All of them, by the engine's names. Belongs to the event loop."""

    def __init__(self) -> None:
        self._flights: dict[str, Flight] = {}
        self._ended: OrderedDict[str, Flight] = OrderedDict()
        self._tenants: Counter[str] = Counter()

    @contextmanager
    def entered(self, flights: Mapping[str, Flight]) -> Generator[None]:
        """They are in flight until the block is left."""
        self._flights |= flights
        self._tenants.update(flight.tenant for flight in flights.values())
        try:
            yield
        finally:
            for name, flight in flights.items():
                self._ended[name] = self._flights.pop(name)
                self._tenants[flight.tenant] -= 1
                if not self._tenants[flight.tenant]:
                    del self._tenants[flight.tenant]
            while len(self._ended) > MAX_ENDED:
                self._ended.popitem(last=False)

    def seat(self, tenant: str) -> str:
        """Who the next request of a tenant is to be counted to: to itself, unless too many others are being served."""
        apart = len(self._tenants) - (OTHERS in self._tenants)
        return tenant if tenant in self._tenants or apart < MAX_TENANTS - 1 else OTHERS

    def get(self, name: str) -> Flight | None:
        return self._flights.get(name)

    def named(self, request_id: str) -> Iterable[tuple[str, Flight]]:
        """Those that a client knows by this id; two requests may have chosen the same."""
        return [(name, flight) for name, flight in self._flights.items() if flight.id == request_id]

    def remembered(self, request_id: str) -> Iterable[tuple[str, Flight]]:
        """The same, and before them those that have ended lately."""
        ended = [(name, flight) for name, flight in self._ended.items() if flight.id == request_id]
        return [*ended, *self.named(request_id)]
