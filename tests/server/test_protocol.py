"""What comes before a body is bounded, in size and in time, over real sockets."""

import asyncio
from urllib.parse import urlsplit

from tiny import Server, serving

from chairlift.server import protocol
from chairlift.server.protocol import MAX_HEAD_BYTES, LimitedProtocol

BEGINNING = b"GET /health HTTP/1.1\r\nHost: x\r\n"


async def connect(server: Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    url = urlsplit(str(server.http.base_url))
    return await asyncio.open_connection(url.hostname, url.port)


async def flood(writer: asyncio.StreamWriter, size: int) -> None:
    """Sends a header without end, as far as the server listens."""
    try:
        for _ in range(size // 8192):
            writer.write(b"a" * 8192)
            await writer.drain()
    except ConnectionError:
        return


async def test_headers_without_end_are_cut_off_and_harm_nobody() -> None:
    async with serving(real=True) as server:
        reader, writer = await connect(server)
        writer.write(BEGINNING + b"X: ")
        await flood(writer, 40 * MAX_HEAD_BYTES)
        answer = await reader.read(1000)
        assert answer.startswith(b"HTTP/1.1 431 ") or answer == b""
        writer.close()
        assert (await server.http.get("/health")).status_code == 200


async def test_headers_of_a_usual_size_are_taken() -> None:
    async with serving(real=True) as server:
        answer = await server.http.get("/health", headers={"x-long": "a" * 16_000})
        assert answer.status_code == 200


async def test_further_requests_of_a_connection_are_counted_apart() -> None:
    async with serving(real=True) as server:
        reader, writer = await connect(server)
        for _ in range(6):
            writer.write(BEGINNING + b"X: " + b"a" * (MAX_HEAD_BYTES // 3) + b"\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        writer.close()


class Clock:
    """Stands for the event loop of a protocol: keeps what is to be called later."""

    def __init__(self) -> None:
        self.delays: list[float] = []
        self.handles: list[asyncio.TimerHandle] = []

    def call_later(self, delay: float, callback: object) -> asyncio.TimerHandle:
        self.delays.append(delay)
        handle = asyncio.get_running_loop().call_later(3600, callback)  # type: ignore[arg-type]
        self.handles.append(handle)
        return handle


async def test_a_head_has_a_deadline_that_ends_with_it() -> None:
    clock = Clock()
    head = LimitedProtocol.__new__(LimitedProtocol)
    head.loop = clock  # type: ignore[assignment]
    head._begin_head()
    head._end_head()
    assert clock.delays == [protocol.HEAD_TIMEOUT_S]
    assert clock.handles[0].cancelled()
