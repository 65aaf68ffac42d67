"""How attention is cut into pieces: tiles that fit a multiprocessor's registers, and as many programs as keep them all busy.

Knows sizes of heads and of numbers, and roughly what a GPU has; knows no tensors. Nothing here was measured: the tiles are the
largest that compile without spilling a register, programs are counted by what bandwidth asks for.
"""

from dataclasses import dataclass, replace

AMPERE = (8, 0)
HOPPER = (9, 0)
"""Compute capability of the first generation that multiplies out of shared memory, which leaves registers for larger tiles."""

CHUNK = 256
"""Least keys of a row that get a program of their own: 128 KiB of 16-bit keys and values of one head of 128, which take longer
to read than a program to start, and 64 times what the program writes for one query."""
MOST_CHUNKS = 32
"""Chunks of a row, at most. A context of 8,192 and 8 key heads give 256 programs: about two a multiprocessor of an H200."""
PROGRAMS = 2112
"""How many programs there should be, rows, heads and chunks taken together: 16 for each of the 132 multiprocessors of an H200,
so that rows of different lengths even out."""
LEAST_PROGRAMS = 8
"""For every row and head, however many rows there are: one long row among many short ones must not be read by one program."""


@dataclass(frozen=True, slots=True)
class Tile:
    """What a program holds at once: `keys` keys and, where several tokens go together, `queries` queries, heads counted."""

    keys: int
    warps: int
    queries: int = 0
    stages: int = 3


JOIN = Tile(keys=0, warps=4)
"""Joins the chunks of one head; it holds no keys."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """How rows of one token (`chunks`) and longer ones (`tiles`) are cut, for one shape of heads."""

    chunks: Tile
    tiles: Tile
    chunk: int = CHUNK
    most_chunks: int = MOST_CHUNKS

    @classmethod
    def pick(cls, *, head_dim: int, itemsize: int, capability: tuple[int, int]) -> "Tiles":
        """For numbers of `itemsize` bytes and a GPU of this compute capability."""
        wide = padded(head_dim) > 128
        if itemsize > 2:
            # The numbers are multiplied exactly, outside the tensor cores: small tiles leave room for the operands.
            return cls(Tile(16, 4), Tile(16, 4, queries=16)) if wide else cls(Tile(32, 4), Tile(16, 4, queries=32))
        if wide:
            return cls(Tile(32, 4), Tile(32, 8, queries=64))
        if capability >= HOPPER or padded(head_dim) <= 64:
            return cls(Tile(64, 4), Tile(64, 8, queries=128))
        return cls(Tile(64, 4), Tile(32, 4, queries=64))

    def up_to(self, keys: int) -> "Tiles":
        """For rows of at most `keys` keys, which may need room for fewer chunks."""
        chunks = -(-keys // self.chunk)
        return replace(self, most_chunks=min(self.most_chunks, 1 << max(0, (chunks - 1).bit_length())))

    def chunk_size(self, keys: int) -> int:
        """How many of `keys` keys of a row of one token make a chunk, as the kernel has it."""
        even = -(-keys // self.most_chunks)
        return max(self.chunk, -(-even // self.chunks.keys) * self.chunks.keys)

    def programs(self, *, rows: int, kv_heads: int, keys: int) -> int:
        """Programs for every row of one token and every key head, if no row sees more than `keys` keys.

        Any number computes the same: a program takes every so many-th chunk, and nothing depends on how many take part.
        """
        chunks = -(-keys // self.chunk_size(keys))
        return max(1, min(chunks, max(LEAST_PROGRAMS, -(-PROGRAMS // (rows * kv_heads)))))

    def queries(self, group: int) -> int:
        """Queries that go together in a longer row, if `group` heads share a key head. A power of two."""
        return max(self.tiles.queries, padded(group))


def padded(size: int) -> int:
    """The next power of two: what Triton can hold, and no less than its matrix products take."""
    return max(16, 1 << (size - 1).bit_length())
