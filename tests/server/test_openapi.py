"""The description of the API: it names every route, and its references lead somewhere."""

import json

import pytest
from tiny import serving

from chairlift.server.app import ASKING, ENDING, READING, WATCHING
from chairlift.server.openapi import document


def test_every_route_is_described():
    described = set(document("1")["paths"])
    assert described == {path.replace(":path", "") for path, _ in (*ASKING, *ENDING, *READING, *WATCHING)}


def test_references_lead_somewhere():
    whole = document("1")
    names = {part.split('"')[0] for part in json.dumps(whole).split("#/components/schemas/")[1:]}
    assert names <= set(whole["components"]["schemas"])


async def test_it_is_served():
    async with serving() as server:
        answer = await server.http.get("/openapi.json")
        page = await server.http.get("/docs")
    assert (answer.status_code, page.status_code) == (200, 200)
    assert "/v1/chat/completions" in answer.json()["paths"]


@pytest.mark.parametrize(
    "field", ["priority", "deadline_ms", "slo_class", "timeout_s", "queue_timeout_s", "stall_timeout_s", "user"]
)
def test_what_decides_who_goes_first_is_explained(field: str) -> None:
    body = document("1")["components"]["schemas"]["ChatBody"]["properties"][field]
    assert len(json.dumps(body)) > len('{"description": ""}') + 40
