"""Who is asking, and whose requests they may see. Knows keys and addresses; knows no requests."""

import hashlib
import ipaddress
import secrets
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Scope

from chairlift.server.errors import forbidden
from chairlift.server.settings import Settings


class Caller(NamedTuple):
    """`owner` is a digest of the caller's key: what is kept of it beside the requests."""

    owner: str
    sees_all: bool = False

    def sees(self, owner: str) -> bool:
        return self.sees_all or self.owner == owner


def given_key(scope: Scope) -> str:
    """What stands behind `Bearer` in the header; empty if there is nothing."""
    scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def digest(key: str) -> bytes:
    """Digests are compared, so that how long it takes says nothing about a key, and kept, so that no key lies about."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def owner(settings: Settings, request: Request) -> str:
    """Whose request it is. Without keys all belong to the same nobody."""
    return digest(given_key(request.scope)).hex() if settings.api_keys else ""


def overseer(settings: Settings, request: Request) -> Caller:
    """Who wants to look at requests. Raises `ApiError` 403 for one that may see none.

    With API keys (which have been checked) everyone sees their own, and the admin key sees all. Without any key all is open to
    whoever sits at this machine.
    """
    given = digest(given_key(request.scope))
    if settings.admin_key is not None and secrets.compare_digest(given, digest(settings.admin_key)):
        return Caller("", sees_all=True)
    if settings.api_keys:
        return Caller(given.hex())
    if settings.admin_key is not None:
        raise forbidden("this needs the admin key")
    if not _is_loopback(request):
        raise forbidden("without API keys this is answered on the loopback only")
    return Caller("", sees_all=True)


def _is_loopback(request: Request) -> bool:
    try:
        return request.client is not None and ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False
