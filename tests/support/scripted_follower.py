"""A follower without PyTorch, for tests of who starts, hears and ends them. What it does stands where others have their device.

"wait" obeys; "count" says so after every frame; "deaf" reads nothing; "exit N" and "die" end unasked, "after S die" a moment
later; "babble" says what nobody understands; "fail ERROR TEXT" ends as those do who cannot go on.
"""

import os
import signal
import sys
import time

import msgspec

from chairlift.execute.torch.parallel.channel import END, Channel, Failed, Free, Opened, Post


def main() -> None:
    post = msgspec.json.decode(sys.argv[1], type=Post)
    channel = Channel.inherited(post.channel)
    channel.tell(Free(post.rank * 100))
    _act(channel, *post.device.split())
    while (frame := channel.receive()) != END:
        if frame is None:
            sys.exit(2)
        if post.device == "count":
            channel.tell(Opened())


def _act(channel: Channel, action: str, *more: str) -> None:
    match action:
        case "exit":
            os._exit(int(more[0]))
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "after":
            time.sleep(float(more[0]))
            _act(channel, *more[1:])
        case "babble":
            channel.send(b"{}")
        case "fail":
            channel.tell(Failed(more[0], " ".join(more[1:])))
            os._exit(1)
        case "deaf":
            signal.pause()


if __name__ == "__main__":
    main()
