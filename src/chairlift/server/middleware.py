"""What happens to every request before its route: API keys, request ids. Plain ASGI, so that streams pass untouched."""

import hashlib
import secrets
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chairlift.server.errors import unauthorized
from chairlift.server.openai.schema import REQUEST_ID
from chairlift.server.service import World

OPEN_PATHS = frozenset({"/health", "/ping"})
REQUEST_ID_HEADER = "x-request-id"


class ApiKeys:
    """Lets through what has one of the keys, the paths that probes use, and preflight requests."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [_digest(key) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._may_pass(scope):
            await self._app(scope, receive, send)
        else:
            await unauthorized().response()(scope, receive, send)

    def _may_pass(self, scope: Scope) -> bool:
        if scope["path"] in OPEN_PATHS or scope["method"] == "OPTIONS":
            return True
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        given = _digest(key.strip())
        # All keys are compared, each in constant time: how long it takes says nothing about any of them.
        matches = [secrets.compare_digest(given, digest) for digest in self._digests]
        return scheme.lower() == "bearer" and any(matches)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


class RequestIds:
    """Sends every answer with the request's `X-Request-Id`: the client's own if it is fit for a header, or a new one."""

    def __init__(self, app: ASGIApp, world: World) -> None:
        self._app = app
        self._world = world

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = MutableHeaders(scope=scope)
        name = headers.get(REQUEST_ID_HEADER, "")
        if not REQUEST_ID.fullmatch(name):
            name = self._world.token()
            headers[REQUEST_ID_HEADER] = name

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(raw=message["headers"])[REQUEST_ID_HEADER] = name
            await send(message)

        await self._app(scope, receive, send_named)
