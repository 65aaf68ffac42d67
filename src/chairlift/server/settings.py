"""What an operator can set about the HTTP side. Knows no model and no engine."""

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Settings:
    """Names are those of the command line. The defaults are safe on a machine that others can reach."""

    api_keys: tuple[str, ...] = ()
    """With at least one, every route but /health and /ping needs `Authorization: Bearer KEY`."""
    allowed_origins: tuple[str, ...] = ()
    """Web origins whose pages may call the API (CORS); none by default, "*" for all."""
    request_id_headers: bool = False
    """Answer every request with an `X-Request-Id`: the client's, or a fresh one."""
    trust_request_chat_template: bool = False
    """Let requests bring their own `chat_template`: a program that this server then runs, in a sandbox."""
    max_body_bytes: int = 8 * MIB
    max_prompts: int = 128
    """Prompts of one completion request."""
    sse_keep_alive_s: float = 15.0
    """A stream that has been silent for so long gets a comment, so that proxies do not close it. 0: never."""
    shutdown_timeout_s: float = 30.0
    """How long running answers may go on after the first signal to end; then they end with an error."""
