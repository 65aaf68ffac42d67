"""What rank 0 and a follower say to each other before plans flow and when something fails, and the socket it goes through.

Knows messages and frames; knows neither processes nor tensors. Both ends are of this program and of this machine.
"""

import socket
import struct
from typing import TypedDict

import msgspec

from chairlift.execute.torch.parallel.wire import MAX_FRAME_BYTES

_LENGTH = struct.Struct("<I")
END = b""
"""The last frame for a follower: it does what it was asked for before, and ends."""


class Post(msgspec.Struct, forbid_unknown_fields=True):
    """Where a follower stands: what it is told when its process begins."""

    rank: int
    size: int
    device: str
    channel: int
    """The number of the file that is its end of the channel."""


class Sizes(TypedDict):
    """What a plan can be at most, and what is kept: as `TorchExecutor.load` takes it."""

    num_blocks: int
    block_size: int
    max_tokens: int
    max_rows: int
    max_model_len: int
    num_host_blocks: int


class Order(msgspec.Struct, forbid_unknown_fields=True):
    """What a follower is to compute, with nothing left open."""

    reference: bytes
    """As `registry.reopen` takes it, encoded as the system has it: names of files may be no text."""
    dtype: str
    attention: str
    sizes: Sizes
    port: int
    """Where the ranks find each other."""
    timeout_s: float


class Free(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """The follower has its device. Bytes that are free there; None if its memory is that of the machine."""

    bytes: int | None


class Opened(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """It has understood the order, and now joins the other ranks."""


class Ready(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """It has read its share of the model, and waits for plans. The first ones may be those that compile its kernels."""


class Failed(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """It cannot go on, and ends. `error` is the name of an exception; `trace` is for whoever looks for the reason."""

    error: str
    text: str
    trace: str = ""


Message = Free | Opened | Ready | Failed


class Broken(Exception):
    """The other end has sent what it never would."""


class Channel:
    """One end. Frames of any bytes; one thread may send while another one receives."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    @classmethod
    def pair(cls) -> tuple["Channel", "Channel"]:
        ours, theirs = socket.socketpair()
        return cls(ours), cls(theirs)

    @classmethod
    def inherited(cls, number: int) -> "Channel":
        return cls(socket.socket(fileno=number))

    def limit(self, timeout_s: float) -> None:
        """TimeoutError for whatever takes longer from now on."""
        self._end.settimeout(timeout_s)

    def send(self, frame: bytes) -> None:
        """OSError if nobody is there any more."""
        self._end.sendall(_LENGTH.pack(len(frame)) + frame)

    def receive(self) -> bytes | None:
        """The next frame; None at the end of them. Broken for one that is too long, or cut."""
        head = self._exactly(_LENGTH.size)
        if not head:
            return None
        (length,) = _LENGTH.unpack(head)
        if length > MAX_FRAME_BYTES:
            raise Broken(f"a frame of {length:,} bytes")
        frame = self._exactly(length)
        if len(frame) < length:
            raise Broken("a frame that was cut")
        return frame

    def tell(self, message: Message) -> None:
        self.send(msgspec.json.encode(message))

    def hear(self) -> Message | None:
        """As `receive`, of what `tell` has sent."""
        frame = self.receive()
        if frame is None:
            return None
        try:
            return _MESSAGES.decode(frame)
        except msgspec.DecodeError as error:
            raise Broken(str(error)) from None

    def fileno(self) -> int:
        return self._end.fileno()

    def close(self) -> None:
        self._end.close()

    def _exactly(self, count: int) -> bytes:
        """Fewer only at the end."""
        parts = bytearray()
        while len(parts) < count:
            part = self._more(count - len(parts))
            if not part:
                if parts:
                    raise Broken("a frame that was cut")
                break
            parts += part
        return bytes(parts)

    def _more(self, count: int) -> bytes:
        try:
            return self._end.recv(count)
        except ConnectionResetError:  # the other end has gone and has not read everything
            return b""


_MESSAGES: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)
