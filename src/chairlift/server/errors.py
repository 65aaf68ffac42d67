"""Errors on the wire, in OpenAI's shape, and which of them answers which error of the layers below.

Knows statuses and wording; does not know where anything went wrong.
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from pydantic import ValidationError
from starlette.responses import Response

from chairlift.core.errors import ChairliftError, QueueFull, Refused, TemplateError, Unavailable
from chairlift.server.generate import Aborted, Failed, TimedOut
from chairlift.text.surrogates import well_formed

SHOWN_PROBLEMS = 3
"""Problems of one body that its answer names; the others are only counted, so that the answer stays small."""
SHOWN_CHARS = 400
"""Longest message that is quoted from elsewhere (a template, an executor) in an answer."""

WORDING: Mapping[str, str] = {
    "missing": "is missing",
    "model_type": "should be an object",
    "too_short": "must not be empty",
}
"""Kinds of problems that pydantic words for programmers."""

BAD_REQUEST = "BadRequestError"
MALFORMED = "Bad Request"
INTERNAL = "InternalServerError"
UNAVAILABLE = "ServiceUnavailableError"


class ApiError(Exception):
    """An answer that is not the one asked for. `status` is also the `code` of the body; `param` names the field at fault."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = BAD_REQUEST,  # noqa: A002 (the name on the wire)
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = well_formed(message)
        self.type = type
        self.param = param
        self.headers: Mapping[str, str] = headers or {}

    def body(self) -> dict[str, Any]:
        """The JSON value that clients read: `{"error": {"message", "type", "param", "code"}}`."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.status}}

    def response(self) -> Response:
        return Response(
            msgspec.json.encode(self.body()), self.status, headers=dict(self.headers), media_type="application/json"
        )


def bad_request(message: str, *, param: str | None = None) -> ApiError:
    """A value that cannot be served (400)."""
    return ApiError(400, message, param=param)


def malformed(message: str, *, param: str | None = None) -> ApiError:
    """A body that is not JSON, or a field of the wrong type (400)."""
    return ApiError(400, message, type=MALFORMED, param=param)


def internal(message: str = "the server failed to answer this request") -> ApiError:
    return ApiError(500, message, type=INTERNAL)


def unavailable(message: str) -> ApiError:
    return ApiError(503, message, type=UNAVAILABLE)


def unknown_model(names: Sequence[str]) -> ApiError:
    """No such model (404). The name that was asked for is not repeated; those that exist are."""
    return ApiError(404, f"this model is not served here; served: {', '.join(names)}", type="NotFoundError", param="model")


def unknown_request(where: str = "in flight") -> ApiError:
    """No such request (404), or none that the caller may see: that is not told apart."""
    return ApiError(404, f"there is no such request {where}", type="NotFoundError", param="id")


def forbidden(message: str) -> ApiError:
    return ApiError(403, message, type="PermissionDeniedError")


def too_late(message: str, *, headers: Mapping[str, str] | None = None) -> ApiError:
    """Time was over (408). Clients that would try again by themselves are told not to: it would only add to the load."""
    return ApiError(408, message, type="Request Timeout", headers={"x-should-retry": "false"} | dict(headers or {}))


def unauthorized() -> ApiError:
    return ApiError(
        401,
        "a valid API key is needed: send the header `Authorization: Bearer KEY`",
        type="Unauthorized",
        headers={"WWW-Authenticate": "Bearer"},
    )


def from_status(status: int, headers: Mapping[str, str] | None = None) -> ApiError:
    """What the router says by itself: no such route, or not with this method."""
    phrase = HTTPStatus(status).phrase
    return ApiError(status, phrase.lower(), type=phrase, headers=headers)


def from_domain(error: ChairliftError) -> ApiError:
    """The answer to a request that the engine or the template turned down, or that ended badly."""
    message = str(error)[:SHOWN_CHARS]
    match error:
        case QueueFull():
            return ApiError(429, message, type="RateLimitError", headers={"Retry-After": str(max(1, error.retry_after_s))})
        case TimedOut():
            return too_late(message)
        case Unavailable() | Aborted():
            return unavailable(message)
        case TemplateError():
            return bad_request(message, param="messages")
        case Refused():
            return bad_request(message)
        case Failed():
            return internal(message)
        case _:
            return internal()


def from_validation(error: ValidationError) -> ApiError:
    """The first few problems of a body, each with the path of its field, and never the input itself."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [_problem(problem["loc"], problem["type"], problem["msg"]) for problem in problems[:SHOWN_PROBLEMS]]
    more = len(problems) - len(shown)
    if more:
        shown.append(f"and {more} more")
    return malformed("; ".join(shown), param=_path(problems[0]["loc"]))


def _problem(location: tuple[int | str, ...], kind: str, message: str) -> str:
    path, said = _path(location), WORDING.get(kind, message).removeprefix("Value error, ").removeprefix("Input ")
    return f"`{path}` {said}" if path else said


def _path(location: tuple[int | str, ...]) -> str | None:
    return ".".join(str(step) for step in location) or None
