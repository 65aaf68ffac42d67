"""When memory is enough for one more. Knows the pool; knows nothing of queues and budgets."""

from chairlift.cache.pool import BlockPool
from chairlift.core.types import Sequence


class Optimistic:
    """Admits whoever fits now, trusting that most answers stay short; when the trust was wrong, somebody is preempted.

    It leaves free a share `watermark` of the pool, and at least a block for each running sequence, which may need one soon.
    If nothing runs, no spare is asked for: whatever passed the door can run alone.
    """

    def __init__(self, *, watermark: float = 0.01) -> None:
        self.watermark = watermark

    def admits(self, sequence: Sequence, need: int, pool: BlockPool, running: list[Sequence]) -> bool:  # noqa: ARG002
        spare = max(self.watermark * pool.total, len(running)) if running else 0
        return pool.free - need >= spare
