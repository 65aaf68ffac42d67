"""The web application: a table of routes, and what surrounds them. Knows who answers what; knows no engine and no text."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chairlift import __version__
from chairlift.core.errors import ChairliftError
from chairlift.server import health, openapi, oversight
from chairlift.server.errors import ApiError, from_domain, from_status, internal
from chairlift.server.middleware import ApiKeys, RequestIds
from chairlift.server.openai.chat import chat_completions
from chairlift.server.openai.completions import completions
from chairlift.server.openai.models import list_models, show_model
from chairlift.server.openai.tokens import detokenize, tokenize
from chairlift.server.service import Service, State, World
from chairlift.server.settings import Settings

log = logging.getLogger(__name__)

Needs = Literal["nothing", "model", "engine"]
"""What a route cannot do without: it answers 503 while there is no model, or while the engine takes no requests."""

StateHandler = Callable[[State, Request], Awaitable[ASGIApp]]
ServiceHandler = Callable[[Service, Request], Awaitable[ASGIApp]]

WATCHING: tuple[tuple[str, StateHandler], ...] = (
    ("/health", health.health),
    ("/ping", health.health),
    ("/version", health.version),
)
READING: tuple[tuple[str, ServiceHandler], ...] = (
    ("/metrics", health.metrics),
    ("/v1/models", list_models),
    ("/v1/models/{model:path}", show_model),
    ("/v1/requests", oversight.list_requests),
    ("/v1/requests/{id}/trace", oversight.trace_request),
)
ENDING: tuple[tuple[str, ServiceHandler], ...] = (("/v1/requests/{id}/cancel", oversight.cancel_request),)
"""They are answered while the server drains as well."""
ASKING: tuple[tuple[str, ServiceHandler], ...] = (
    ("/v1/chat/completions", chat_completions),
    ("/v1/completions", completions),
    ("/tokenize", tokenize),
    ("/detokenize", detokenize),
)


def create_app(state: State, *, world: World | None = None) -> FastAPI:
    """The application for a state that may still be loading.

    FastAPI serves the description of the API. It does not read the bodies: how strictly they are taken, and how errors look,
    is told in `body` and `openai.schema`.
    """
    app = FastAPI(
        title="chairlift",
        version=__version__,
        redoc_url=None,
        routes=[
            *(Route(path, _Endpoint(_watch(state, handler)), methods=["GET"]) for path, handler in WATCHING),
            *(Route(path, _Endpoint(_read(state, handler)), methods=["GET"]) for path, handler in READING),
            *(Route(path, _Endpoint(_read(state, handler)), methods=["POST"]) for path, handler in ENDING),
            *(Route(path, _Endpoint(_ask(state, handler)), methods=["POST"]) for path, handler in ASKING),
        ],
        middleware=_middleware(state.settings, world or World()),
        exception_handlers={HTTPException: _router_said},
    )
    app.openapi = lambda: openapi.document(__version__)
    return app


Handler = Callable[[Request], Awaitable[ASGIApp]]


def _watch(state: State, handler: StateHandler) -> Handler:
    return lambda request: handler(state, request)


def _read(state: State, handler: ServiceHandler) -> Handler:
    async def handle(request: Request) -> ASGIApp:
        return await handler(state.service, request)

    return handle


def _ask(state: State, handler: ServiceHandler) -> Handler:
    async def handle(request: Request) -> ASGIApp:
        return await handler(state.accepting, request)

    return handle


def _middleware(settings: Settings, world: World) -> list[Middleware]:
    """Outermost first. CORS is outside of the keys: browsers must be able to read a 401."""
    layers = [Middleware(RequestIds, world=world, answer=settings.request_id_headers)]
    if settings.allowed_origins:
        layers.append(
            Middleware(CORSMiddleware, allow_origins=settings.allowed_origins, allow_methods=["*"], allow_headers=["*"])
        )
    if settings.api_keys:
        admin = () if settings.admin_key is None else (settings.admin_key,)
        layers.append(Middleware(ApiKeys, keys=(*settings.api_keys, *admin)))
    return layers


async def _router_said(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return from_status(error.status_code, error.headers).response()


class _Endpoint:
    """The edge: turns a handler into an ASGI application, and whatever it raises into an answer."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = False

        async def watched_send(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        try:
            answer: Any = await self._handler(Request(scope, receive))
            await answer(scope, receive, watched_send)
        except ClientDisconnect:
            return  # in the midst of its own body: nobody is there to be answered
        except ApiError as error:
            await error.response()(scope, receive, watched_send)
        except ChairliftError as error:
            await from_domain(error).response()(scope, receive, watched_send)
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            if not began:
                await internal().response()(scope, receive, watched_send)
