"""Reads server-sent events as strictly as the contract writes them."""

import json
from typing import Any


def events(text: str) -> list[Any]:
    """The JSON values of a complete stream, which must end with exactly one `[DONE]`. Comments are passed over."""
    assert text.endswith("\n\n")
    blocks = [block for block in text.removesuffix("\n\n").split("\n\n") if not block.startswith(":")]
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    payloads = [block.removeprefix("data: ") for block in blocks]
    assert payloads[-1] == "[DONE]"
    assert payloads.count("[DONE]") == 1
    return [json.loads(payload) for payload in payloads[:-1]]


def joined(chunks: list[Any]) -> dict[int, str]:
    """The text of every choice."""
    texts: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            new = choice["text"] if "text" in choice else choice["delta"].get("content", "")
            texts[choice["index"]] = texts.get(choice["index"], "") + new
    return texts


def endings(chunks: list[Any]) -> list[tuple[int, str]]:
    """All finish reasons, in order."""
    return [
        (choice["index"], choice["finish_reason"])
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["finish_reason"] is not None
    ]
