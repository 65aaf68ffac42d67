"""What attention must be told of a step: `batch.Batch` and no more of it than this."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Rows(Protocol):
    """Rows of tokens and the blocks that they see; see `batch.Batch`."""

    @property
    def bounds(self) -> Tensor:
        """int32 [rows + 1]"""
        ...

    @property
    def contexts(self) -> Tensor:
        """int32 [rows]"""
        ...

    @property
    def tables(self) -> Tensor:
        """int32 [rows, most blocks]"""
        ...

    @property
    def counts(self) -> Sequence[int]:
        """On the host: tokens of each row."""
        ...

    @property
    def seen(self) -> Sequence[int]:
        """On the host: `contexts`, or what none of them will ever be larger than."""
        ...

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        ...

    @property
    def furthest(self) -> int:
        """The largest context."""
        ...
