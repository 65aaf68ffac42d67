"""Who asks: whose share of the machine a request is charged to, how urgent it may be, and whose prompts it may find cached.

Knows keys, the addresses of proxies and what bodies claim; knows no queue and no cache.

A tenant is whoever has the API key. Without keys it is whom a trusted proxy names; and where there is neither, whom the body's
`user` names. A `user` is never looked at beside the other two: a client could have as many shares as it can think of names.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from starlette.requests import Request

from chairlift.core.errors import ConfigError
from chairlift.server.callers import digest, is_admin, owner, peer
from chairlift.server.settings import PRIORITIES, Settings

MAX_NAME_CHARS = 128
"""Longer names of tenants are kept as their digests."""
MAX_ADMIN_PRIORITY = 1_000_000
"""For the admin key there is no limit but that numbers must stay numbers: a class is worth seconds of arrival."""
NOBODY = ""
"""The tenant of all that nothing is known of."""


@dataclass(frozen=True, slots=True)
class Asker:
    """`owner` sees and cancels the request, `tenant` shares the machine; `vault` is whose cache it is, empty for everyone's."""

    owner: str
    tenant: str
    vault: str
    most_urgent: int
    last: int

    def allowed(self, priority: int) -> int:
        """The nearest class that may be had. A wish for another one is no error: it changes no answer, and clients that were
        made for servers with other classes go on working."""
        return min(max(priority, self.most_urgent), self.last)

    def salted(self, salt: str) -> str:
        """Whose cache, and the client's own part of it. The length in front keeps any two pairs apart."""
        return f"{len(self.vault)}:{self.vault}{salt}" if self.vault or salt else ""


def asker(settings: Settings, request: Request, user: str | None) -> Asker:
    """Who it is, by the key, by what a trusted proxy says, or by what it says itself."""
    vouched = _vouched(settings, request)
    by_name = not settings.api_keys and settings.tenant_header is None
    admin = is_admin(settings, request)
    return Asker(
        owner=owner(settings, request),
        tenant=named(user) if by_name and user else vouched,
        # Nobody vouches for a `user`: whoever wanted to look into its cache could take its name as well, and the users of one
        # application have the beginnings of their prompts in common.
        vault=vouched if settings.isolate_prefix_cache else NOBODY,
        most_urgent=-MAX_ADMIN_PRIORITY if admin else settings.most_urgent,
        last=MAX_ADMIN_PRIORITY if admin else PRIORITIES,
    )


def _vouched(settings: Settings, request: Request) -> str:
    if settings.api_keys:
        return _keyed(owner(settings, request))
    address = peer(request)
    if settings.tenant_header is None or address is None or not any(address in one for one in settings.trusted_proxies):
        return NOBODY
    said = request.headers.getlist(settings.tenant_header)
    # The last one is the proxy's, if it has left one there that its client had sent.
    return named(said[-1].strip()) if said else NOBODY


def _keyed(key_digest: str) -> str:
    return f"key:{key_digest}"


def named(name: str) -> str:
    """The tenant of this name. No two names have the same one, and none is that of an API key."""
    if len(name) > MAX_NAME_CHARS:
        return f"hash:{hashlib.sha256(name.encode('utf-8', 'surrogateescape')).hexdigest()}"
    return f"name:{name}" if name else NOBODY


def weights(settings: Settings, given: Iterable[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    """Weights by the names of tenants, as they are told from outside: with API keys, by the keys. ConfigError for no key."""
    if not settings.api_keys:
        return tuple((named(name), weight) for name, weight in given)
    keys = {*settings.api_keys, *(() if settings.admin_key is None else (settings.admin_key,))}
    shares = tuple(given)
    if not all(name in keys for name, _ in shares):
        raise ConfigError("with API keys a tenant_weight is for one of them, as in KEY=3; there is one that is for no key")
    return tuple((_keyed(digest(name).hex()), weight) for name, weight in shares)
