"""How many threads to compute with while other programs want the same cores.

Knows shares of time, nothing of clocks. A thread that lost its core makes all others wait where they meet, so that two threads
can be slower than one. Results do not depend on the number of threads, so it can follow what the waits tell.
"""

TAKEN = 0.3
"""With a larger share of a step spent waiting by the thread that waited most, a core is taken."""
MEMORY_S = 0.05
"""Steps of so many seconds decide together; one unlucky moment does not."""
FIRST_HOLD_S, LONGEST_HOLD_S = 0.25, 4.0
"""How long fewer threads compute before all of them are tried again. The time doubles while that was in vain."""


class Governor:
    """Told of every step, it says how many threads the next one should have.

    `full_share` is the share of all time in which all of them computed.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._full_s, self._all_s = 0.0, 0.0
        self._most = threads
        self._hold_s = FIRST_HOLD_S
        self._waiting = 0.0
        self._since_s = LONGEST_HOLD_S

    def observe(self, elapsed_s: float, waited: float) -> None:
        """`waited` is the largest share of the step's `elapsed_s` that one thread spent waiting for the others."""
        self._all_s += elapsed_s
        self._full_s += elapsed_s if self.threads == self._most else 0.0
        self._waiting += min(1.0, elapsed_s / MEMORY_S) * (waited - self._waiting)
        self._since_s += elapsed_s
        if self._waiting > TAKEN and self.threads > 1:
            if self.threads == self._most:
                in_vain = self._since_s < LONGEST_HOLD_S
                self._hold_s = min(2 * self._hold_s, LONGEST_HOLD_S) if in_vain else FIRST_HOLD_S
            self._change(self.threads - 1)
        elif self.threads < self._most and self._since_s >= self._hold_s:
            self._change(self._most)

    @property
    def full_share(self) -> float:
        return self._full_s / self._all_s if self._all_s else 1.0

    def _change(self, threads: int) -> None:
        self.threads = threads
        self._waiting = self._since_s = 0.0
