"""Decode steps that the device has learnt by heart: for which numbers of rows, and which steps are such.

A step of few rows takes the device less time than its launches take the host. Knows rows of one token; knows neither layers nor
how a device captures.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from chairlift.core.types import Work
from chairlift.execute.torch.batch import Batch, Batches
from chairlift.execute.torch.decoder import Decoder
from chairlift.execute.torch.device import Captured, Device, Recorder

MOST_ROWS = 512
"""Beyond them the device has so much to do that nobody waits for launches."""

_FEW = (1, 2, 4)
_STEPS = ((64, 8), (256, 16), (MOST_ROWS, 32))
"""Up to so many rows, by so many."""

_PAD = Work("", 0, array("i", [0]), array("i"), pad=True)


def sizes(max_rows: int) -> tuple[int, ...]:
    """Rows of the steps that are captured where there are never more than `max_rows`: 1, 2, 4, then 8 to 64 by 8, to 256 by 16,
    to MOST_ROWS by 32. The last one is `max_rows` itself if it is not more than MOST_ROWS.
    """
    most = min(max_rows, MOST_ROWS)
    several: list[int] = [*_FEW]
    for end, step in _STEPS:
        several += range(several[-1] // step * step + step, end + 1, step)
    return (*(size for size in several if size < most), most)


class Graphs:
    """Captured steps of `sizes` rows, from hidden states to logits. Before `capture` there are none.

    A step is padded to the next size: rows that see nothing and store nothing. Drawing is not captured: what it does depends on
    what every request asks for. Logits of all sizes lie in the same place, and are overwritten by the next step; drawing has
    read them by then, as both are asked of one stream.
    """

    def __init__(self, decoder: Decoder, batches: Batches, *, sizes: Sequence[int], longest: int, logits: Tensor) -> None:
        """No row sees more than `longest` positions. `logits` float32 [largest size, vocab] is where they go."""
        self._decoder, self._batches, self.sizes, self._longest = decoder, batches, sizes, longest
        self._logits = logits
        self._captured: dict[int, Captured] = {}

    @classmethod
    def create(
        cls, decoder: Decoder, batches: Batches, *, sizes: Sequence[int], longest: int, vocab: int, device: Device
    ) -> "Graphs":
        """With memory for the logits of the largest size."""
        logits = torch.empty((max(sizes, default=0), vocab), dtype=torch.float32, device=device.on)
        return cls(decoder, batches, sizes=sizes, longest=longest, logits=logits)

    def capture(self, recorder: Recorder, *, on_graph: Callable[[int, int], None] | None = None) -> None:
        """The largest first, so that the others find room in what it took. `on_graph(done, total)` follows it.

        Nothing may be in flight. What stands in the blocks of keys and values stays.
        """
        # What is captured is computed, too: of padding, which is also all that smaller sizes see of it.
        nothing = torch.zeros(1, dtype=torch.int64, device=self._logits.device)
        self._batches.fill((_PAD,), nothing, {}, rows=max(self.sizes))
        tell = on_graph or (lambda _done, _total: None)
        tell(0, len(self.sizes))
        for done, size in enumerate(sorted(self.sizes, reverse=True), start=1):
            self._captured[size] = recorder.capture(self._step(size))
            tell(done, len(self.sizes))

    def size(self, work: Sequence[Work]) -> int | None:
        """Rows of the captured step that computes these rows, pads among them; None if there is none."""
        if not self._captured:
            return None
        total = 0
        for row in work:
            if len(row.tokens) != 1 and not row.pad:
                return None
            total += len(row.tokens)
        at = bisect_left(self.sizes, total)
        return self.sizes[at] if at < len(self.sizes) else None

    def logits(self, batch: Batch) -> Tensor:
        """float32 [rows that draw, vocab] of a batch that was filled to a `size`. They stay until the next step."""
        rows, drawing = len(batch.counts), len(batch.last)
        self._captured[rows].replay()
        everyone = drawing == rows - batch.seen.count(0)
        return self._logits[:drawing] if everyone else self._logits[batch.last]

    def _step(self, size: int) -> Callable[[], None]:
        batch, logits = self._batches.single(size, furthest=self._longest), self._logits[:size]

        def run() -> None:
            self._decoder.logits(self._decoder.hidden(batch), out=logits)

        return run
