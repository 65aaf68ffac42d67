"""Work for a client that may hang up. Knows ASGI's `receive`, and nothing of what is being answered."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Runs `work` to its end, or cancels it as soon as the client has left. The request's body must have been read."""
    worker = asyncio.create_task(work)
    watcher = asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait((worker, watcher), return_when=asyncio.FIRST_COMPLETED)
    finally:
        left = not worker.done()
        await _end(watcher)
        await _end(worker)
    if not left:
        worker.result()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(task: asyncio.Task[None]) -> None:
    """Cancels a task and waits until its cleaning up is done."""
    task.cancel()
    await asyncio.wait((task,))
