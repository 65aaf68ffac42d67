"""How long those who wait will have to: measured, not guessed. Knows endings and moments; knows no requests."""

MEMORY = 128
"""About so many endings are remembered: enough that long and short answers even out, few enough to follow a change of load."""
FIRST_S = 1.0
"""What the time between two endings is taken for before any was seen."""


class Backlog:
    """The rate at which places become free while somebody waits for one.

    Time and endings are summed apart and forgotten at the same rate, so that answers that end together count as what they are.
    Time in which nobody waits says nothing: then places are free because nobody wants them.
    """

    def __init__(self) -> None:
        self._endings = 1.0
        self._time_s = FIRST_S
        self._since: float | None = None
        """When the last ending was, if somebody has been waiting since."""

    def ended(self, now: float, *, waiting: int) -> None:
        """A request has ended, and so many wait. `now` is in seconds and never goes back."""
        if self._since is not None:
            self._endings += 1.0 - self._endings / MEMORY
            self._time_s += now - self._since - self._time_s / MEMORY
        self._since = now if waiting else None

    def wait_s(self, now: float, *, waiting: int) -> float:
        """Until all who wait now have got on. An ending that is overdue counts as if it came now."""
        interval_s = self._time_s / self._endings
        if self._since is not None:
            interval_s = max(interval_s, (self._time_s + now - self._since) / (self._endings + 1))
        return waiting * interval_s
