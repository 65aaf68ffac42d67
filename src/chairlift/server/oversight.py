"""What is in flight (GET /v1/requests), the end of it (POST /v1/requests/{id}/cancel), and what became of it and why it waited
(GET /v1/requests/{id}/trace). Everyone sees only their own.
"""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp

from chairlift.core.types import Standing
from chairlift.observe.trace import Event, Trace
from chairlift.server.callers import overseer
from chairlift.server.errors import unknown_request
from chairlift.server.flights import Flight
from chairlift.server.service import Service

DIGITS = 6
"""Of times: microseconds."""


MAX_TOLD = 32
"""Stories in one answer, the latest: clients may give many requests the same id, and telling them holds up everybody else."""


async def list_requests(service: Service, request: Request) -> ASGIApp:
    """Every choice in flight that the caller may see: first those that run, then those that wait, in order."""
    caller = overseer(service.settings, request)
    standings = await service.client.standings()
    known = ((standing, service.flights.get(standing.id)) for standing in standings)
    data = [_entry(service, standing, flight) for standing, flight in known if flight is not None and caller.sees(flight.owner)]
    return JSONResponse({"object": "list", "data": data})


def _entry(service: Service, standing: Standing, flight: Flight) -> dict[str, Any]:
    """`position` counts from 0, of all who wait; `expected_start_s` is from now."""
    place = standing.position
    return {
        "id": flight.id,
        "object": "request",
        "index": flight.choice,
        "model": flight.model,
        "created": flight.created,
        "state": standing.state,
        "position": place,
        "expected_start_s": None if place is None else round(service.client.wait_s(standing.ahead), 3),
        "prompt_tokens": standing.prompt_tokens,
        "tokens": standing.tokens,
        "computed_tokens": standing.computed,
        "blocks": standing.blocks,
    }


async def cancel_request(service: Service, request: Request) -> ASGIApp:
    """Ends all choices of a request. Its client gets what there is until now, with finish reason `abort`."""
    caller = overseer(service.settings, request)
    request_id = request.path_params["id"]
    names = [name for name, flight in service.flights.named(request_id) if caller.sees(flight.owner)]
    if not names:
        raise unknown_request()
    for name in names:
        service.client.cancel(name)
    return JSONResponse({"id": request_id, "object": "request", "cancelled": True})


async def trace_request(service: Service, request: Request) -> ASGIApp:
    """The story of every choice of a request, in flight or ended lately. It is told without asking the engine."""
    caller = overseer(service.settings, request)
    request_id, now = request.path_params["id"], service.client.now()
    flights = [(name, flight) for name, flight in service.flights.remembered(request_id) if caller.sees(flight.owner)]
    traces = [(flight, service.traces.read(name, now)) for name, flight in flights[-MAX_TOLD:]]
    data = [_told(flight, trace) for flight, trace in traces if trace is not None]
    if not data:
        raise unknown_request("in flight, or ended lately")
    return JSONResponse({"id": request_id, "object": "request.trace", "data": data, "omitted": max(0, len(flights) - MAX_TOLD)})


def _told(flight: Flight, trace: Trace) -> dict[str, Any]:
    """Times are in seconds since arrival."""
    return {
        "index": flight.choice,
        "model": flight.model,
        "created": flight.created,
        "ended": trace.ended,
        "waited_s": {reason: round(lasted_s, DIGITS) for reason, lasted_s in trace.waited_s.items()},
        "events": [_event(event) for event in trace.events],
        "dropped": trace.dropped,
    }


def _event(event: Event) -> dict[str, Any]:
    told = {name: value for name, value in event._asdict().items() if value is not None}
    return {"at_s": round(told.pop("at_s"), DIGITS), "event": told.pop("kind"), **told}
