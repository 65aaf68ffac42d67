"""Describes the API in the terms of OpenAPI, for /docs and for generators of clients. Knows the bodies and the routes."""

from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from chairlift.core.types import Finish, Reason
from chairlift.observe.trace import Kind
from chairlift.server.openai import schema

BODIES: Mapping[str, tuple[str, type[BaseModel]]] = {
    "/v1/chat/completions": ("Answer a conversation; streamed as server-sent events with `stream`", schema.ChatBody),
    "/v1/completions": ("Continue one prompt or several; streamed as server-sent events with `stream`", schema.CompletionBody),
    "/tokenize": ("The tokens of a prompt, or of messages", schema.TokenizeBody),
    "/detokenize": ("The text of tokens", schema.DetokenizeBody),
}
READINGS: Mapping[str, str] = {
    "/v1/models": "The models that are served",
    "/v1/models/{model}": "One of them",
    "/v1/requests": "What is in flight, with state, position, tokens and blocks: everyone's own, or all with the admin key",
    "/v1/requests/{id}/trace": "What happened to a request and why it waited: in flight, and the last 1,000 for ten minutes",
    "/health": "200 if requests are taken, 503 while loading, draining, stalled or after a failure",
    "/ping": "The same",
    "/version": "The version of the server",
    "/metrics": "Prometheus metrics under vLLM's names",
}
ENDINGS: Mapping[str, str] = {"/v1/requests/{id}/cancel": "End a request in flight; its client gets what there is"}
_TRACE = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "request.trace"},
        "omitted": {"type": "integer", "description": "Choices of earlier requests of this id that are not told"},
        "data": {
            "type": "array",
            "description": "One entry for each choice of the latest requests of this id",
            "items": {
                "type": "object",
                "properties": {
                    "index": {"type": "integer"},
                    "model": {"type": "string"},
                    "created": {"type": "integer", "description": "Seconds since 1970"},
                    "ended": {"type": "boolean"},
                    "waited_s": {
                        "type": "object",
                        "description": "Seconds of waiting, by reason",
                        "propertyNames": {"enum": list(get_args(Reason))},
                        "additionalProperties": {"type": "number"},
                    },
                    "events": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["at_s", "event"],
                            "properties": {
                                "at_s": {"type": "number", "description": "Seconds since the request arrived"},
                                "event": {"enum": list(get_args(Kind))},
                                "step": {"type": "integer"},
                                "tokens": {"type": "integer"},
                                "cached": {"type": "integer"},
                                "waiting": {"type": "integer"},
                                "finish": {"enum": list(get_args(Finish))},
                                "reason": {"type": ["string", "integer"]},
                            },
                        },
                    },
                    "dropped": {"type": "integer", "description": "Events that are not there because there were too many"},
                },
            },
        },
    },
}
_REFERENCE = "#/components/schemas/{model}"
_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "integer"},
            },
        }
    },
}


def document(version: str) -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    models = [(model, "validation") for _, model in BODIES.values()]
    names, definitions = models_json_schema(models, ref_template=_REFERENCE)  # type: ignore[arg-type]
    paths: dict[str, Any] = {
        path: {"post": _operation(summary, names[model, "validation"])} for path, (summary, model) in BODIES.items()
    }
    paths |= {path: {"get": _operation(summary)} for path, summary in READINGS.items()}
    paths |= {path: {"post": _operation(summary)} for path, summary in ENDINGS.items()}
    paths["/v1/models/{model}"]["get"]["parameters"] = [_in_path("model")]
    paths["/v1/requests/{id}/cancel"]["post"]["parameters"] = [_in_path("id")]
    trace = paths["/v1/requests/{id}/trace"]["get"]
    trace["parameters"] = [_in_path("id")]
    trace["responses"]["200"]["content"] = {"application/json": {"schema": {"$ref": _REFERENCE.format(model="Trace")}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "chairlift", "version": version},
        "paths": paths,
        "components": {
            "schemas": definitions["$defs"] | {"Error": _ERROR, "Trace": _TRACE},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _in_path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _operation(summary: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    error = {
        "description": "What was wrong",
        "content": {"application/json": {"schema": {"$ref": _REFERENCE.format(model="Error")}}},
    }
    operation: dict[str, Any] = {"summary": summary, "responses": {"200": {"description": "The answer"}, "default": error}}
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return operation
