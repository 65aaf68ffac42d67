"""Rotary embedding in Triton, with the norms of queries and keys before it and the store into the KV blocks after it."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from chairlift.execute.torch.kernels.launching import launch
from chairlift.execute.torch.kernels.variants import Variant
from chairlift.execute.torch.ops import QKNorm

_ELEMENTS = 1024
"""Pairs that a program turns: so many heads of one token as make about that many."""


@triton.jit
def _rotate_and_store(
    qkv,
    positions,
    cos,
    sin,
    slots,
    kv,
    query_weight,
    key_weight,
    queries,
    heads,
    kv_heads,
    block_size,
    token_stride,
    kv_block_stride,
    kv_part_stride,
    kv_offset_stride,
    kv_head_stride,
    eps,
    HALF: tl.constexpr,
    NORMED: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    # Heads in their order in qkv: queries, keys, values.
    head = tl.expand_dims(tl.program_id(1) * HEADS + tl.arange(0, HEADS), 1)
    pair = tl.expand_dims(tl.arange(0, BLOCK), 0)
    inside = (head < heads + 2 * kv_heads) & (pair < HALF)
    source = qkv + token * token_stride + head * (2 * HALF) + pair
    first = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=inside, other=0.0).to(tl.float32)
    turned = inside & (head < heads + kv_heads)
    if NORMED:
        mean = tl.expand_dims(tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1), 1) / (2 * HALF)
        scale = tl.rsqrt(mean + eps)
        of_query, of_key = turned & (head < heads), turned & (head >= heads)
        # Of the two loads of a weight only one is not masked.
        weight = tl.load(query_weight + pair + head * 0, mask=of_query, other=0.0).to(tl.float32)
        weight += tl.load(key_weight + pair + head * 0, mask=of_key, other=0.0).to(tl.float32)
        other = tl.load(query_weight + HALF + pair + head * 0, mask=of_query, other=0.0).to(tl.float32)
        other += tl.load(key_weight + HALF + pair + head * 0, mask=of_key, other=0.0).to(tl.float32)
        dtype = qkv.dtype.element_ty
        first = tl.where(turned, (first * scale * weight).to(dtype).to(tl.float32), first)
        second = tl.where(turned, (second * scale * other).to(dtype).to(tl.float32), second)
    angle = tl.load(positions + token) * HALF + pair
    cosine = tl.load(cos + angle, mask=pair < HALF, other=1.0)
    sine = tl.load(sin + angle, mask=pair < HALF, other=0.0)
    # Values keep what they are.
    cosine = tl.where(turned, cosine, 1.0)
    sine = tl.where(turned, sine, 0.0)
    left = (first * cosine - second * sine).to(queries.dtype.element_ty)
    right = (second * cosine + first * sine).to(queries.dtype.element_ty)
    is_query = inside & (head < heads)
    target = queries + (token * heads + head) * (2 * HALF) + pair
    tl.store(target, left, mask=is_query)
    tl.store(target + HALF, right, mask=is_query)
    slot = tl.load(slots + token)
    if slot >= 0:
        stored = inside & (head >= heads)
        part = (head - heads) // kv_heads
        kv_head = (head - heads) % kv_heads
        place = kv + (slot // block_size) * kv_block_stride + (slot % block_size) * kv_offset_stride
        place += part.to(tl.int64) * kv_part_stride + kv_head.to(tl.int64) * kv_head_stride + pair
        tl.store(place, left.to(kv.dtype.element_ty), mask=stored)
        tl.store(place + HALF, right.to(kv.dtype.element_ty), mask=stored)


def rotate_store(
    qkv: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    kv: Tensor,
    heads: int,
    kv_heads: int,
    *,
    norms: QKNorm | None = None,
) -> Tensor:
    """See `ops.Ops`. Rows of `qkv` may lie apart, and blocks, parts, offsets and heads of `kv`; elements of a head may not."""
    tokens, head_dim = qkv.shape[0], kv.shape[4]
    assert qkv.stride(1) == kv.stride(4) == 1, "elements of a head that lie apart"
    assert cos.is_contiguous(), "cosines that lie apart"
    assert sin.is_contiguous(), "sines that lie apart"
    queries = torch.empty((tokens, heads, head_dim), dtype=qkv.dtype, device=qkv.device)
    if tokens == 0:
        return queries
    block = triton.next_power_of_2(head_dim // 2)
    together = _heads(heads + 2 * kv_heads, block)
    launch(
        _rotate_and_store,
        (tokens, triton.cdiv(heads + 2 * kv_heads, together)),
        qkv,
        positions,
        cos,
        sin,
        slots,
        kv,
        qkv if norms is None else norms.query,
        qkv if norms is None else norms.key,
        queries,
        heads,
        kv_heads,
        kv.shape[2],
        qkv.stride(0),
        kv.stride(0),
        kv.stride(1),
        kv.stride(2),
        kv.stride(3),
        0.0 if norms is None else norms.eps,
        HALF=head_dim // 2,
        NORMED=norms is not None,
        HEADS=together,
        BLOCK=block,
        warps=4,
        fusion=True,
    )
    return queries


def _heads(heads: int, block: int) -> int:
    return min(triton.next_power_of_2(heads), max(1, _ELEMENTS // block))


def _variant(heads: int, kv_heads: int, head_dim: int, dtype: str, *, normed: bool) -> Variant:
    block = triton.next_power_of_2(head_dim // 2)
    tensors = dict.fromkeys(("qkv", "kv", "query_weight", "key_weight", "queries"), f"*{dtype}")
    tables = {"positions": "*i64", "cos": "*fp32", "sin": "*fp32", "slots": "*i64"}
    numbers = ("heads", "kv_heads", "block_size", "token_stride", "kv_block_stride", "kv_part_stride")
    numbers = dict.fromkeys((*numbers, "kv_offset_stride", "kv_head_stride"), "i32")
    constants = {"HALF": head_dim // 2, "NORMED": normed, "HEADS": _heads(heads + 2 * kv_heads, block), "BLOCK": block}
    name = f"rotate_store {heads}/{kv_heads}x{head_dim} {dtype}{' qk-norm' if normed else ''}"
    return Variant(name, _rotate_and_store, {**tensors, **tables, **numbers, "eps": "fp32"}, constants)


VARIANTS = (
    _variant(32, 8, 128, "bf16", normed=False),
    _variant(32, 8, 128, "bf16", normed=True),
    _variant(32, 32, 96, "fp16", normed=False),
    _variant(4, 1, 256, "fp32", normed=True),
)
