"""The routes that watch the server: /health, /ping, /version, /metrics. They answer at once, however busy the engine is."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from chairlift import __version__
from chairlift.server.service import Service, State


async def health(state: State, _request: Request) -> ASGIApp:
    """200 and empty if requests would be served; 503 while loading, draining, and once the engine has stalled or failed."""
    state.check_health()
    return Response()


async def version(_state: State, _request: Request) -> ASGIApp:
    return JSONResponse({"version": __version__})


async def metrics(service: Service, request: Request) -> ASGIApp:
    """Prometheus' text format, or OpenMetrics if the scraper asks for it."""
    body, media_type = service.metrics.render(request.headers.get("accept", ""))
    return Response(body, headers={"content-type": media_type})
