"""Who made a step fail, found by trying one at a time. Keeps suspects and doubts; computes and ends nothing.

A step that fails and names nobody puts all of its sequences under suspicion. First comes a proof: a step of one row that
belongs to nobody and must succeed if the executor is sound. Then each suspect is computed in steps of its own, up to its next
token. Whoever fails alone, and the executor still passes the proof, is guilty; the others are cleared.

       a step fails ──> proof ──> trial of a ──> trial of b ──> steps as usual
                          ^  └ fails ┐   │ fails
                          └──────────┘   └──> proof ──> a is guilty ──> trial of b ──> …
"""

from collections import deque
from collections.abc import Iterable
from enum import Enum

from chairlift.core.types import Sequence


class Kind(Enum):
    """What a step is for."""

    USUAL = "usual"
    PROOF = "proof"
    TRIAL = "trial"


class Trials:
    """The suspects of the last failed step that have not been tried yet."""

    def __init__(self) -> None:
        self.doubts = 0
        """Failures in a row that no sequence explains."""
        self._suspects: deque[Sequence] = deque()
        self._accused: Sequence | None = None
        """It has failed alone, and the executor has not passed a proof since."""
        self._to_prove = False
        self._kind = Kind.USUAL

    def begin(self) -> Kind:
        """A step is about to be planned, and this is what it must be."""
        while self._suspects and self._suspects[0].finish is not None:  # it has left meanwhile
            self._suspects.popleft()
        if self._to_prove:
            self._kind = Kind.PROOF
        else:
            self._kind = Kind.TRIAL if self._suspects else Kind.USUAL
        return self._kind

    @property
    def usual(self) -> bool:
        """The step that was planned last is for everybody."""
        return self._kind is Kind.USUAL

    @property
    def suspect(self) -> Sequence:
        """Whose trial it is."""
        return self._suspects[0]

    def failed(self, planned: Iterable[Sequence]) -> None:
        """The step has failed, and it was one of these or the executor."""
        self.doubts += 1
        self._to_prove = True
        match self._kind:
            case Kind.USUAL:
                self._suspects = deque(planned)
            case Kind.TRIAL:
                self._accused = self._suspects.popleft()
            case Kind.PROOF:
                if self._accused is not None:  # it may have been the executor then, too
                    self._suspects.appendleft(self._accused)
                    self._accused = None

    def passed(self, *, drew: bool) -> Sequence | None:
        """The step has succeeded. Returns who is guilty of an earlier failure, if that is certain now.

        With `drew` a suspect has got its token and is cleared; until then its prompt is computed chunk by chunk.
        """
        if self._kind is Kind.PROOF:
            self._to_prove = False
            guilty, self._accused = self._accused, None
            if guilty is not None:
                self.doubts = 0
            return guilty
        if self._kind is Kind.USUAL:
            self.doubts = 0
        elif drew:
            self._suspects.popleft()
        return None
