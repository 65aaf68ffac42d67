"""GET /v1/requests and POST /v1/requests/{id}/cancel: what is in flight, and the end of it. Everyone sees only their own."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp

from chairlift.core.types import Standing
from chairlift.server.callers import overseer
from chairlift.server.errors import unknown_request
from chairlift.server.flights import Flight
from chairlift.server.service import Service


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
        "expected_start_s": None if place is None else round(service.client.wait_s(place + 1), 3),
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
