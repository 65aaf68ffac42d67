"""GET /v1/models: which names this server answers to."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp

from chairlift.server.errors import unknown_model
from chairlift.server.service import Service


async def list_models(service: Service, _request: Request) -> ASGIApp:
    """All names, the model's own first."""
    return JSONResponse({"object": "list", "data": [_card(service, name) for name in service.names]})


async def show_model(service: Service, request: Request) -> ASGIApp:
    """One of them."""
    name = request.path_params["model"]
    if name not in service.names:
        raise unknown_model(service.names)
    return JSONResponse(_card(service, name))


def _card(service: Service, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "chairlift",
        "root": service.names[0],
        "parent": None,
        "max_model_len": service.client.longest,
        "permission": [],
    }
