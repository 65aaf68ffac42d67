"""Reads a request's body and makes a JSON object of it, within limits. Knows nothing of what the fields mean.

JSON is taken strictly: UTF-8, no NaN or Infinity, no number that overflows, no unpaired surrogate, no deep nesting. The
content type is not looked at: a body without one, or with `text/plain`, is read as JSON like any other.
"""

import asyncio
import json
import math
import re
from typing import Any, NoReturn, cast

from starlette.requests import Request

from chairlift.server.errors import ApiError, malformed, too_late

MAX_JSON_DEPTH = 64
"""Objects and arrays inside one another. Chat requests need about five; a tool's schema may need a dozen more."""
BODY_TIMEOUT_S = 60.0
"""A client that sends slower than this has gone, or keeps a place for nothing."""
INLINE_BYTES = 64 * 1024
"""Bodies up to here are parsed on the event loop (under a millisecond); larger ones in a worker thread."""

SURROGATE = re.compile("[\ud800-\udfff]")
SHOWN_PATH = 200


async def read_object(request: Request, *, max_bytes: int) -> dict[str, Any]:
    """The body as a JSON object. Raises `ApiError` 413 once it is known to be longer than `max_bytes`, 400 if it is not one,
    408 if it does not come."""
    raw = await _read(request, max_bytes)
    if len(raw) <= INLINE_BYTES:
        return parse_object(raw)
    return await asyncio.to_thread(parse_object, raw)


async def _read(request: Request, max_bytes: int) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > max_bytes:
        raise _too_large(max_bytes)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for part in request.stream():
                size += len(part)
                if size > max_bytes:
                    raise _too_large(max_bytes)
                parts.append(part)
    except TimeoutError:
        raise _too_slow() from None
    return b"".join(parts)


def _too_large(max_bytes: int) -> ApiError:
    # The connection stays open, and uvicorn throws the rest of the body away: a client that is still sending would otherwise
    # see a reset and not this answer.
    return ApiError(413, f"the body is larger than {max_bytes} bytes", type="Payload Too Large")


def _too_slow() -> ApiError:
    message = f"the body did not arrive within {BODY_TIMEOUT_S:g} s"
    return too_late(message, headers={"Connection": "close"})


def parse_object(raw: bytes) -> dict[str, Any]:
    """Parses and checks a body. Raises `ApiError` 400; the message tells where, and never quotes the input."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise malformed(f"the body is not UTF-8: invalid byte at {error.start}") from None
    try:
        value: Any = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise malformed(f"the body is not valid JSON: {error.msg.lower()} at character {error.pos}") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        # Ours (`_no_constant`, `_finite`), or Python's refusal of an integer of thousands of digits.
        own = str(error) if isinstance(error, _NotJson) else "a number is too long"
        raise malformed(f"the body is not valid JSON: {own}") from None
    if not isinstance(value, dict):
        raise malformed("the body must be a JSON object")
    body = cast("dict[str, Any]", value)
    if raw.count(b"[") + raw.count(b"{") > MAX_JSON_DEPTH:
        _check_depth(body)
    if b"\\ud" in raw or b"\\uD" in raw:
        _check_surrogates(body)
    return body


class _NotJson(ValueError):
    pass


def _no_constant(name: str) -> NoReturn:
    raise _NotJson(f"{name} is not a JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _NotJson("a number is out of range")
    return value


def _too_deep() -> ApiError:
    return malformed(f"the body is nested more than {MAX_JSON_DEPTH} levels deep")


def _check_depth(body: dict[str, Any]) -> None:
    level: list[Any] = [body]
    for _ in range(MAX_JSON_DEPTH):
        level = [child for value in level for child in _children(value) if isinstance(child, dict | list)]
        if not level:
            return
    raise _too_deep()


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(cast("dict[str, Any]", value).values())
    return cast("list[Any]", value)


def _check_surrogates(body: dict[str, Any]) -> None:
    """JSON can spell half of a surrogate pair, which is no character: it could neither be tokenised nor sent back."""
    todo: list[tuple[str, Any]] = [("", body)]
    while todo:
        path, value = todo.pop()
        if isinstance(value, str):
            if _is_broken(value):
                field = path[1:SHOWN_PATH]
                raise malformed(f"`{field}` has an unpaired surrogate escape, which is no character", param=field)
        elif isinstance(value, list):
            todo += [(f"{path}.{index}", child) for index, child in enumerate(cast("list[Any]", value))]
        elif isinstance(value, dict):
            for key, child in cast("dict[str, Any]", value).items():
                if _is_broken(key):
                    raise malformed("a field name has an unpaired surrogate escape, which is no character")
                todo.append((f"{path}.{key[:64]}", child))


def _is_broken(text: str) -> bool:
    return SURROGATE.search(text) is not None
