"""What an operator can set about the HTTP side. Knows no model and no engine."""

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network

from chairlift.core.errors import ConfigError

MIB = 1024 * 1024

PRIORITIES = 100
"""The last class, for batch jobs, is so many behind the usual one, and clients may be let so many ahead of it."""


@dataclass(frozen=True, slots=True)
class SloClass:
    """A kind of requests: how soon the first token is wanted, and how long the next ones may take (None: no matter)."""

    name: str
    ttft_s: float
    itl_s: float | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """Names are those of the command line. The defaults are safe on a machine that others can reach."""

    api_keys: tuple[str, ...] = ()
    """With at least one, every route but /health and /ping needs `Authorization: Bearer KEY`."""
    admin_key: str | None = None
    """Passes as an API key does, and sees and cancels everyone's requests."""
    allowed_origins: tuple[str, ...] = ()
    """Web origins whose pages may call the API (CORS); none by default, "*" for all."""
    request_id_headers: bool = False
    """Answer every request with an `X-Request-Id`: the client's, or a fresh one."""
    trust_request_chat_template: bool = False
    """Let requests bring their own `chat_template`: a program that this server then runs, in a sandbox."""
    max_body_bytes: int = 8 * MIB
    max_prompts: int = 128
    """Prompts of one completion request."""
    default_max_tokens: int | None = None
    """Longest answer of requests that say nothing. None: what OpenAI's API says, 16 for completions and what fits for chats."""
    max_output_tokens: int | None = None
    """Longest answer that anyone may ask for. None: what the context has room for."""
    sse_keep_alive_s: float = 15.0
    """A stream that has been silent for so long gets a comment, so that proxies do not close it. 0: never."""
    queue_timeout_s: float = 0.0
    """A request that has waited for so long without getting on is answered with 408. 0: never."""
    request_timeout_s: float = 0.0
    """A request that has taken so long in all ends with what it has. 0: never."""
    stall_timeout_s: float = 0.0
    """An answer that has begun and gets no token for so long ends with what it has. 0: never."""
    shutdown_timeout_s: float = 30.0
    """How long running answers may go on after the first signal to end; then they end with an error."""
    max_priority: int | None = None
    """How many classes ahead of the usual one clients may go. None: PRIORITIES among the operator's own, otherwise none."""
    tenant_header: str | None = None
    """The header in which `trusted_proxies` say whose request it is. With API keys it is not looked at: they say it."""
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()
    slo_classes: tuple[SloClass, ...] = ()
    """What the body field `slo_class` may name."""
    isolate_prefix_cache: bool = True
    """Tenants that a key or a trusted proxy vouches for do not find each other's prompts in the cache."""

    def __post_init__(self) -> None:
        if self.admin_key == "":
            raise ConfigError("admin_key must not be empty: everyone would have it")
        default, most = self.default_max_tokens, self.max_output_tokens
        if default is not None and most is not None and default > most:
            raise ConfigError(f"default_max_tokens ({default}) must not be more than max_output_tokens ({most})")
        if self.max_priority is not None and not 0 <= self.max_priority <= PRIORITIES:
            raise ConfigError(f"max_priority must be from 0 to {PRIORITIES}, not {self.max_priority}")
        if (self.tenant_header is None) != (not self.trusted_proxies):
            raise ConfigError("tenant_header and trusted_proxy need each other: who else could say whose a request is?")
        names = [one.name for one in self.slo_classes]
        if len(set(names)) < len(names):
            raise ConfigError("an slo_class is named twice")

    @property
    def most_urgent(self) -> int:
        """The first class that clients may ask for. Where they are strangers to each other, nobody goes before the usual one:
        whoever could would take from the others' shares."""
        strangers = bool(self.api_keys) or self.tenant_header is not None
        return -((0 if strangers else PRIORITIES) if self.max_priority is None else self.max_priority)
