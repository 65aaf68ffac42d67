"""The process of a rank that is not the first: opens the same model, reads its share, and computes every plan that it is sent.

Knows a channel and an executor; knows no requests. It ends when rank 0 says so or has gone, and at no signal that is meant for
rank 0: that one drains, and still needs it.
"""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import NoReturn

import msgspec

from chairlift.core.errors import ChairliftError
from chairlift.execute.torch.device import Device, lacking
from chairlift.execute.torch.executor import DEPTH, TorchExecutor
from chairlift.execute.torch.options import Choice, resolve
from chairlift.execute.torch.parallel.channel import END, Broken, Channel, Failed, Free, Opened, Order, Post, Ready
from chairlift.execute.torch.parallel.group import Ranks, find
from chairlift.execute.torch.parallel.wire import Reader
from chairlift.models import registry
from chairlift.models.description import Model

FAILED, ORPHANED = 1, 2

Frames = SimpleQueue[bytes]


def main(arguments: Sequence[str]) -> NoReturn:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    post = msgspec.json.decode(arguments[0], type=Post)
    channel, frames = Channel.inherited(post.channel), Frames()
    threading.Thread(target=_listen, args=(channel, frames), name="listen", daemon=True).start()
    try:
        _follow(post, channel, frames)
    except Exception as error:  # noqa: BLE001  (told to rank 0)
        with suppress(OSError):
            channel.tell(_failed(error))
        _leave(FAILED)
    _leave(0)


def _follow(post: Post, channel: Channel, frames: Frames) -> None:
    device = Device.pick(post.device)
    device.share(post.size)
    channel.tell(Free(device.free_bytes()))
    frame = frames.get()
    if frame == END:
        return
    order = msgspec.json.decode(frame, type=Order)
    model = registry.reopen(os.fsdecode(order.reference))
    choice = resolve(post.device, order.dtype, order.attention, head_dim=model.description.head_dim, ranks=post.size)
    executor = _loaded(post, order, model, choice, channel)
    channel.tell(Ready())
    _compute(executor, frames)
    executor.close()


def _loaded(post: Post, order: Order, model: Model, choice: Choice, channel: Channel) -> TorchExecutor:
    store = find(order.port, timeout_s=order.timeout_s)
    channel.tell(Opened())
    return TorchExecutor.load(
        model.description,
        model.weights,
        choice=choice,
        group=Ranks.join(post.rank, post.size, choice.device, store=store, timeout_s=order.timeout_s),
        **order.sizes,
    )


def _compute(executor: TorchExecutor, frames: Frames) -> None:
    """Rank 0 has seen the oldest result by the time it asks for one more than there may be in flight."""
    reader, flights = Reader(), 0
    while (frame := frames.get()) != END:
        plan = reader.read(frame)
        if flights == DEPTH:
            executor.collect()
            flights -= 1
        executor.launch(plan)
        flights += 1


def _listen(channel: Channel, frames: Frames) -> None:
    """Ends the process, whatever it is at, when there is nobody any more to compute for."""
    try:
        while (frame := channel.receive()) is not None:
            frames.put(frame)
    except (Broken, OSError):
        pass
    _leave(ORPHANED)


def _failed(error: Exception) -> Failed:
    lacks = lacking(error)
    said = str(error) if lacks is None else f"too little memory: {lacks}"
    explained = isinstance(error, ChairliftError) or lacks is not None
    return Failed(type(error).__name__, _text(said), "" if explained else _text(traceback.format_exc()))


def _text(words: str) -> str:
    """What can be sent: the name of a file may stand in it, and may be no text."""
    return words.encode(errors="backslashreplace").decode()


def _leave(code: int) -> NoReturn:
    """An interpreter that ends would wait for a device that waits for another rank."""
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
