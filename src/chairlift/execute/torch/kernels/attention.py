"""Attention over blocks of keys and values, as Triton kernels: rows of one token by chunks of keys, longer ones by tiles.

Knows addresses and arithmetic; knows nothing of plans, nor of how many programs pay. Keys and values of a layer are
[num_blocks, 2, block_size, kv_heads, head_dim] without gaps, queries and outputs [tokens, heads, head_dim] likewise.
Exponentials are of base 2, with the scale given in that base; sums and maxima are float32 whatever the inputs are.
"""

import triton
import triton.language as tl

from chairlift.execute.torch.kernels.attention_tiles import AMPERE, HOPPER, JOIN, Tiles, padded
from chairlift.execute.torch.kernels.variants import Variant

# A kernel that is compiled again because a width happens to divide by 16 would hold up whoever is being served.
_VARIES = ["table_stride", "rows"]
_ALIGNED_OR_NOT = ["bounds", "contexts", "tables"]
_WHOLE, _BEFORE, _CAUSAL = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def _chunks(context, WINDOW: tl.constexpr, LEAST: tl.constexpr, MOST: tl.constexpr, TILE: tl.constexpr):
    """Where the keys of a row's last token begin, and how many keys make a chunk of them.

    The row alone decides, so that its sums are the same in any batch.
    """
    begin = context * 0
    if WINDOW > 0:
        begin = tl.maximum(context - WINDOW, 0)
    even = tl.cdiv(context - begin, MOST)
    return begin, tl.maximum(tl.cdiv(even, TILE) * TILE, LEAST)


@triton.jit
def _add_tile(
    best,
    total,
    mixed,
    queries,
    scale,
    kv,
    table,
    key,
    stop,
    positions,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    DIM_PAD: tl.constexpr,
    TILE: tl.constexpr,
    SEES: tl.constexpr,
    DOT: tl.constexpr,
):
    """Takes TILE keys from `key` on into the running softmax (Milakov and Gimelshein, 2018) of `queries` [m, DIM_PAD].

    `kv` points to the head's first key. SEES says which of the keys the queries, at `positions` [m], see: _WHOLE all of them,
    _BEFORE those before `stop`, _CAUSAL of those each its own.
    """
    dims = tl.arange(0, DIM_PAD)
    at = key + tl.arange(0, TILE)
    there = at < stop if SEES != _WHOLE else at >= 0
    blocks = tl.load(table + at // BLOCK_SIZE, mask=there, other=0).to(tl.int64)
    place = kv + blocks * (2 * BLOCK_SIZE * KV_HEADS * HEAD_DIM) + (at % BLOCK_SIZE) * (KV_HEADS * HEAD_DIM)
    # What is not there is loaded as zero: whatever lies in memory, a NaN even, must not be multiplied with a share of zero.
    keys = tl.load(place[None, :] + dims[:, None], mask=there[None, :] & (dims < HEAD_DIM)[:, None], other=0.0)
    scores = tl.dot(queries, keys.to(DOT), input_precision="ieee") * scale
    if SEES == _BEFORE:
        scores = tl.where(there[None, :], scores, float("-inf"))
    if SEES == _CAUSAL:
        seen = there[None, :] & (at[None, :] <= positions[:, None])
        if WINDOW > 0:
            seen = seen & (at[None, :] > positions[:, None] - WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
    higher = tl.maximum(best, tl.max(scores, 1))
    shift = higher
    if SEES == _CAUSAL and WINDOW > 0:
        # A query whose window has not begun yet has seen nothing: infinity less infinity would be no number.
        shift = tl.where(higher == float("-inf"), 0.0, higher)
    shares = tl.exp2(scores - shift[:, None])
    shrink = tl.exp2(best - shift)
    spot = place + BLOCK_SIZE * KV_HEADS * HEAD_DIM
    values = tl.load(spot[:, None] + dims[None, :], mask=there[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
    mixed = tl.dot(shares.to(values.dtype).to(DOT), values.to(DOT), mixed * shrink[:, None], input_precision="ieee")
    return higher, total * shrink + tl.sum(shares, 1), mixed


@triton.jit(do_not_specialize=_VARIES, do_not_specialize_on_alignment=_ALIGNED_OR_NOT)
def attend_chunks(
    queries,
    kv,
    bounds,
    contexts,
    tables,
    table_stride,
    scale,
    partials,
    weights,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    LEAST: tl.constexpr,
    MOST: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    DIM_PAD: tl.constexpr,
    TILE: tl.constexpr,
    DOT: tl.constexpr,
):
    """Grid (kv_heads, programs, rows): the chunks program, program + programs, ... of a row of one token, for one key head.

    Writes what each chunk alone would give to `partials` [rows, heads, MOST, head_dim] and the logarithm of its softmax's
    sum to `weights` [rows, heads, MOST] (Dao et al., "Flash-Decoding", 2023). Rows of more tokens are left out.
    """
    head, row = tl.program_id(0), tl.program_id(2)
    first = tl.load(bounds + row)
    if tl.load(bounds + row + 1) - first != 1:
        return
    context = tl.load(contexts + row)
    begin, size = _chunks(context, WINDOW, LEAST, MOST, TILE)
    if tl.program_id(1) >= tl.cdiv(context - begin, size):
        # A captured step has programs for the longest row that there may be.
        return
    group, dims = tl.arange(0, GROUP_PAD), tl.arange(0, DIM_PAD)
    inside = (group < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    spot = (first.to(tl.int64) * KV_HEADS + head) * GROUP + group
    own = tl.load(queries + spot[:, None] * HEAD_DIM + dims[None, :], mask=inside, other=0.0).to(DOT)
    positions = group * 0 + context - 1
    out = ((row.to(tl.int64) * KV_HEADS + head) * GROUP + group) * MOST
    keys, table = kv + head * HEAD_DIM, tables + row.to(tl.int64) * table_stride
    for chunk in range(tl.program_id(1), tl.cdiv(context - begin, size), tl.num_programs(1)):
        start = begin + chunk * size
        stop = tl.minimum(start + size, context)
        best = tl.full([GROUP_PAD], float("-inf"), tl.float32)
        total = tl.zeros([GROUP_PAD], tl.float32)
        mixed = tl.zeros([GROUP_PAD, DIM_PAD], tl.float32)
        for key in range(start, stop, TILE):
            best, total, mixed = _add_tile(
                best,
                total,
                mixed,
                own,
                scale,
                keys,
                table,
                key,
                stop,
                positions,
                KV_HEADS,
                HEAD_DIM,
                BLOCK_SIZE,
                WINDOW,
                DIM_PAD,
                TILE,
                _BEFORE,
                DOT,
            )
        tl.store(partials + (out + chunk)[:, None] * HEAD_DIM + dims[None, :], mixed / total[:, None], mask=inside)
        tl.store(weights + out + chunk, best + tl.log2(total), mask=group < GROUP)


@triton.jit(do_not_specialize_on_alignment=_ALIGNED_OR_NOT)
def join_chunks(
    partials,
    weights,
    bounds,
    contexts,
    output,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    LEAST: tl.constexpr,
    MOST: tl.constexpr,
    DIM_PAD: tl.constexpr,
    TILE: tl.constexpr,
):
    """Grid (heads, rows): weighs the chunks of a row of one token. A context of 0 gives zeros."""
    head, row = tl.program_id(0), tl.program_id(1)
    first = tl.load(bounds + row)
    if tl.load(bounds + row + 1) - first != 1:
        return
    context = tl.load(contexts + row)
    begin, size = _chunks(context, WINDOW, LEAST, MOST, TILE)
    chunks, dims = tl.arange(0, MOST), tl.arange(0, DIM_PAD)
    there, inside = chunks < tl.cdiv(context - begin, size), dims < HEAD_DIM
    spot = (row.to(tl.int64) * HEADS + head) * MOST + chunks
    sums = tl.load(weights + spot, mask=there, other=float("-inf"))
    shares = tl.exp2(sums - tl.where(context > 0, tl.max(sums, 0), 0.0))
    parts = tl.load(partials + spot[:, None] * HEAD_DIM + dims[None, :], mask=there[:, None] & inside[None, :], other=0.0)
    total = tl.where(context > 0, tl.sum(shares, 0), 1.0)
    mixed = tl.sum(parts * shares[:, None], 0) / total
    place = output + (first.to(tl.int64) * HEADS + head) * HEAD_DIM + dims
    tl.store(place, mixed.to(output.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=_VARIES, do_not_specialize_on_alignment=_ALIGNED_OR_NOT)
def attend_tiles(
    queries,
    kv,
    bounds,
    contexts,
    tables,
    table_stride,
    rows,
    scale,
    output,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    TOKENS: tl.constexpr,
    QUERIES: tl.constexpr,
    DIM_PAD: tl.constexpr,
    TILE: tl.constexpr,
    DOT: tl.constexpr,
):
    """Grid (kv_heads, tokens // TOKENS + rows): TOKENS tokens of a row of several, all heads that share a key head.

    Row r has the tiles from bounds[r] // TOKENS + r on, which leaves room for all of its tokens whatever came before, so a
    program finds its row by halving and no list is made on the host. Rows of one token are left out.
    """
    head = tl.program_id(0)
    # The last tiles of a row see the most keys: whoever works longest starts first.
    piece = tl.num_programs(1) - 1 - tl.program_id(1)
    row, after = piece * 0, rows
    while after - row > 1:
        middle = (row + after) // 2
        before = tl.load(bounds + middle) // TOKENS + middle <= piece
        row = tl.where(before, middle, row)
        after = tl.where(before, after, middle)
    first = tl.load(bounds + row)
    count = tl.load(bounds + row + 1) - first
    token = (piece - first // TOKENS - row) * TOKENS
    if (count == 1) | (token >= count):
        return
    start = tl.load(contexts + row) - count
    lanes, dims = tl.arange(0, QUERIES), tl.arange(0, DIM_PAD)
    tokens = token + lanes // GROUP
    mine = (lanes < TOKENS * GROUP) & (tokens < count)
    inside = mine[:, None] & (dims < HEAD_DIM)[None, :]
    spot = ((first + tokens).to(tl.int64) * KV_HEADS + head) * GROUP + lanes % GROUP
    own = tl.load(queries + spot[:, None] * HEAD_DIM + dims[None, :], mask=inside, other=0.0).to(DOT)
    positions = start + tokens
    stop = start + tl.minimum(token + TOKENS, count)
    begin = stop * 0
    if WINDOW > 0:
        begin = tl.maximum(start + token - WINDOW + 1, 0)
    best = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    mixed = tl.zeros([QUERIES, DIM_PAD], tl.float32)
    keys, table = kv + head * HEAD_DIM, tables + row.to(tl.int64) * table_stride
    if WINDOW == 0:
        # Most keys are seen by all queries of the tile, and no mask is spent on them.
        masked = tl.maximum(start + token + 1, 0) // TILE * TILE
        for key in range(begin, masked, TILE):
            best, total, mixed = _add_tile(
                best,
                total,
                mixed,
                own,
                scale,
                keys,
                table,
                key,
                stop,
                positions,
                KV_HEADS,
                HEAD_DIM,
                BLOCK_SIZE,
                WINDOW,
                DIM_PAD,
                TILE,
                _WHOLE,
                DOT,
            )
        begin = masked
    for key in range(begin, stop, TILE):
        best, total, mixed = _add_tile(
            best,
            total,
            mixed,
            own,
            scale,
            keys,
            table,
            key,
            stop,
            positions,
            KV_HEADS,
            HEAD_DIM,
            BLOCK_SIZE,
            WINDOW,
            DIM_PAD,
            TILE,
            _CAUSAL,
            DOT,
        )
    mixed = mixed / tl.where(total == 0, 1.0, total)[:, None]
    tl.store(output + spot[:, None] * HEAD_DIM + dims[None, :], mixed.to(output.dtype.element_ty), mask=inside)


def _variants(
    head_dim: int, dtype: str, *, group: int, capability: tuple[int, int] = HOPPER, block_size: int = 16, window: int = 0
) -> tuple[Variant, ...]:
    """The kernels as 8 key heads of this size use them."""
    pointer, tiles = f"*{dtype}", Tiles.pick(head_dim=head_dim, itemsize=_ITEMSIZES[dtype], capability=capability)
    everywhere = tiles == Tiles.pick(head_dim=head_dim, itemsize=_ITEMSIZES[dtype], capability=AMPERE)
    since = AMPERE if everywhere else capability
    told = {"bounds": "*i32", "contexts": "*i32", "tables": "*i32", "table_stride": "i32", "scale": "fp32"}
    left = {"partials": "*fp32", "weights": "*fp32"}
    padding = {"HEAD_DIM": head_dim, "WINDOW": window, "DIM_PAD": padded(head_dim)}
    shape = padding | {"KV_HEADS": 8, "GROUP": group, "BLOCK_SIZE": block_size, "DOT": _DTYPES[dtype]}
    cut = {"LEAST": tiles.chunk, "MOST": tiles.most_chunks, "TILE": tiles.chunks.keys}
    together = tiles.queries(group)
    several = {"TOKENS": together // group, "QUERIES": together, "TILE": tiles.tiles.keys}
    name = f"{head_dim} {dtype}, group {group}" + (f", window {window}" if window else "")
    return (
        Variant(
            f"attend_chunks {name}",
            attend_chunks,
            {"queries": pointer, "kv": pointer} | told | left,
            shape | cut | {"GROUP_PAD": padded(group)},
            tiles.chunks.warps,
            tiles.chunks.stages,
            since=since,
        ),
        Variant(
            f"attend_tiles {name}",
            attend_tiles,
            {"queries": pointer, "kv": pointer} | told | {"rows": "i32", "output": pointer},
            shape | several,
            tiles.tiles.warps,
            tiles.tiles.stages,
            since=since,
        ),
        Variant(
            f"join_chunks {name}",
            join_chunks,
            left | {"bounds": "*i32", "contexts": "*i32", "output": pointer},
            padding | cut | {"HEADS": 8 * group},
            JOIN.warps,
            since=since,
        ),
    )


_DTYPES = {"bf16": tl.bfloat16, "fp16": tl.float16, "fp32": tl.float32}
_ITEMSIZES = {"bf16": 2, "fp16": 2, "fp32": 4}

VARIANTS = (
    *_variants(128, "bf16", group=4),
    *_variants(128, "bf16", group=4, capability=AMPERE),
    *_variants(64, "fp16", group=1, window=4096),
    *_variants(80, "bf16", group=7, capability=AMPERE, window=1024, block_size=32),
    *_variants(256, "bf16", group=8, window=512),
    *_variants(128, "fp32", group=4),
    *_variants(256, "fp32", group=2, window=512),
)
"""Those for AMPERE are for all GPUs, those for HOPPER with heads of 65 to 128 numbers for the newer ones only."""
