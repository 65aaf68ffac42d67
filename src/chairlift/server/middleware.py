"""What happens to every request before its route: API keys, names of requests. Plain ASGI, so that streams pass untouched."""

import secrets
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chairlift.server.callers import digest, given_key
from chairlift.server.errors import unauthorized
from chairlift.server.openai.schema import REQUEST_ID
from chairlift.server.service import World

OPEN_PATHS = frozenset({"/health", "/ping"})
REQUEST_ID_HEADER = "x-request-id"
_NAME = "request_name"


class ApiKeys:
    """Lets through what has one of the keys, the paths that probes use, and preflight requests."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [digest(key) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._may_pass(scope):
            await self._app(scope, receive, send)
        else:
            await unauthorized().response()(scope, receive, send)

    def _may_pass(self, scope: Scope) -> bool:
        if scope["path"] in OPEN_PATHS or scope["method"] == "OPTIONS":
            return True
        key = given_key(scope)
        given = digest(key)
        # All keys are compared, each in constant time: how long it takes says nothing about any of them.
        matches = [secrets.compare_digest(given, known) for known in self._digests]
        return bool(key) and any(matches)


class RequestIds:
    """Gives every request a name: what the client says in `X-Request-Id` if that is fit for a header, or a new one.

    Routes find it by `request_name`. With `answer` it is sent back in the same header.
    """

    def __init__(self, app: ASGIApp, world: World, *, answer: bool) -> None:
        self._app = app
        self._world = world
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        name = given if REQUEST_ID.fullmatch(given) else self._world.token()
        scope.setdefault("state", {})[_NAME] = name

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(raw=message["headers"])[REQUEST_ID_HEADER] = name
            await send(message)

        await self._app(scope, receive, send_named if self._answer else send)


def request_name(request: Request) -> str:
    """The name that `RequestIds` gave it."""
    return request.scope["state"][_NAME]
