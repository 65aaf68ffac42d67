"""What every stage is given, and how it repeats a measurement within its time."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from chairlift.execute.torch.device import Device
from gpu_check.records import Record
from gpu_check.shapes import Sizes


@dataclass(frozen=True, slots=True)
class Setting:
    """A device, what is measured on it, where it is written down, and the moment (`time.monotonic`) by which to be done."""

    device: Device
    sizes: Sizes
    record: Record
    until: float

    def repeated(self, measure: Callable[[], float], *, share: float = 1.0) -> tuple[float, ...]:
        """What `measure` returns, `sizes.runs` times, or less often if that would take more than a share of the time left.

        It is called once before, which does not count: kernels are compiled and caches filled then.
        """
        now = time.monotonic()
        ends = now + share * (self.until - now)
        measure()
        found: list[float] = []
        while len(found) < self.sizes.runs:
            before = time.monotonic()
            found.append(measure())
            if 2 * time.monotonic() - before > ends:
                break
        return tuple(found)
