"""Who is asking, and whose requests they may see. Knows keys and addresses; knows no requests."""

import hashlib
import ipaddress
import secrets
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Scope

from chairlift.server.errors import forbidden
from chairlift.server.settings import Settings

FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")
"""By these headers a proxy says that a request is not its own."""


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


def is_admin(settings: Settings, request: Request) -> bool:
    """The request has the admin key."""
    given = digest(given_key(request.scope))
    return settings.admin_key is not None and secrets.compare_digest(given, digest(settings.admin_key))


def peer(request: Request) -> IPv4Address | IPv6Address | None:
    """Who is at the other end of the connection: the client, or the last proxy before us. None if that has no address.

    What a header says of addresses before that does not count: anybody can write one.
    """
    try:
        address = ipaddress.ip_address("" if request.client is None else request.client.host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def overseer(settings: Settings, request: Request) -> Caller:
    """Who wants to look at requests. Raises `ApiError` 403 for one that may see none.

    With API keys (which have been checked) everyone sees their own, and the admin key sees all. Without any key all is open to
    whoever sits at this machine.
    """
    if is_admin(settings, request):
        return Caller("", sees_all=True)
    if settings.api_keys:
        return Caller(owner(settings, request))
    if settings.admin_key is not None:
        raise forbidden("this needs the admin key")
    if not _is_loopback(request):
        raise forbidden("without API keys this is answered on the loopback only")
    return Caller("", sees_all=True)


def _is_loopback(request: Request) -> bool:
    """What a proxy on this machine passes on comes from elsewhere."""
    address = peer(request)
    return address is not None and address.is_loopback and not any(name in request.headers for name in FORWARDED)
