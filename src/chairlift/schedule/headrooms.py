"""When memory is enough for one more. Knows the pool; knows nothing of queues and budgets."""

from chairlift.cache.pool import BlockPool
from chairlift.core.types import Sequence


class Optimistic:
    """Admits whoever fits now, trusting that most answers stay short; when the trust was wrong, somebody is preempted.

    It leaves free a share `watermark` of the pool, and at least a block for each running sequence, which may need one soon.
    Every preemption doubles what the same sequence must find free to come back, so that it is not thrown out over and over.
    If nothing runs, no spare is asked for: whatever passed the door can run alone.
    """

    def __init__(self, *, watermark: float = 0.01) -> None:
        self.watermark = watermark

    def admits(self, sequence: Sequence, need: int, pool: BlockPool, running: list[Sequence]) -> bool:
        spare = max(self.watermark * pool.total, len(running)) * 2**sequence.preemptions if running else 0
        return pool.free - need >= spare
