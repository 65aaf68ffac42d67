"""Turns a description and packed weights into the list of instructions that every step runs.

Knows the order of a decoder and the addresses of its buffers; knows nothing of requests.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chairlift.execute.cpu import words
from chairlift.execute.cpu.arena import Arena, Widths
from chairlift.execute.cpu.formats import Floats
from chairlift.execute.cpu.isa import Shape
from chairlift.execute.cpu.kv import KVCache
from chairlift.execute.cpu.memory import Words, aligned, float_word
from chairlift.execute.cpu.operations import OPERATIONS
from chairlift.execute.cpu.packing import Packed
from chairlift.models.description import Description, Layer, Rope

PIECES_A_THREAD = 8
"""Into so many pieces per thread a matrix product is cut at least, where it has as many strips."""
MAX_PIECE_BYTES = 1 << 16
"""Weights of a piece: threads that come to the end of a product at different times wait for no longer than one takes."""


@dataclass(frozen=True, slots=True)
class Product:
    """A packed matrix and where its outputs go in their row."""

    packed: Packed
    column: int
    bias: NDArray[Any] | None


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. `vectors` are norm weights by the names of the layout, padded."""

    qkv: tuple[Product, ...]
    o: tuple[Product, ...]
    gate_up: tuple[Product, ...]
    down: tuple[Product, ...]
    vectors: Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class ModelWeights:
    embed: Packed
    head: tuple[Product, ...]
    norm: NDArray[Any]
    layers: tuple[LayerWeights, ...]


class Program:
    """The instructions, as words in memory. `turns` tells it where the table of a rotary variant lies at present."""

    def __init__(
        self,
        description: Description,
        weights: ModelWeights,
        *,
        widths: Widths,
        arena: Arena,
        kv: KVCache,
        shape: Shape,
        state: Words,
        threads: int,
    ) -> None:
        self._description, self._weights = description, weights
        self._widths, self._arena, self._kv, self._shape = widths, arena, kv, shape
        self._state, self._threads = state, threads
        self._rows: list[dict[str, int]] = []
        self._kinds: list[str] = []
        self._turns: dict[Rope, list[int]] = {}
        self._build()
        self._code, self._counters = self._encode()
        state.set(partials=_address(arena.partials), program=self._code.ctypes.data, instructions=len(self._rows))

    @property
    def ropes(self) -> tuple[Rope, ...]:
        return tuple(self._turns)

    def set_turns(self, rope: Rope, address: int) -> None:
        place = words.OPERANDS["rotary"].index("turns")
        for number in self._turns[rope]:
            self._code[number, place] = address

    def _build(self) -> None:
        description, arena, weights = self._description, self._arena, self._weights
        self._emit(
            "embed",
            weights.embed.format.name,
            weights=weights.embed.address,
            groups=weights.embed.groups,
            out=_address(arena.stream),
            stride=self._widths.stream,
            scale=float_word(description.embedding_scale),
        )
        before: NDArray[Any] | None = None
        for index, layer in enumerate(description.layers):
            self._layer(index, layer, weights.layers[index], before)
            before = weights.layers[index].vectors.get("post_mlp_norm")
        self._norm(weights.norm, weights.head, add=bool(description.layers), add_norm=before, last=True)
        self._multiply(weights.head, _address(arena.logits), self._widths.logits, self._widths.hidden, count="drawing")
        self._emit(
            "sample", count="drawing", logits=_address(arena.logits), stride=self._widths.logits, vocab=description.vocab
        )

    def _layer(self, index: int, layer: Layer, weights: LayerWeights, before: NDArray[Any] | None) -> None:
        arena, widths, vectors = self._arena, self._widths, weights.vectors
        self._norm(vectors["attn_norm"], weights.qkv, add=index > 0, add_norm=before)
        self._multiply(weights.qkv, _address(arena.qkv), widths.qkv, widths.hidden)
        self._rotary(index, layer, vectors)
        self._attend(index, layer)
        if not _all_floats(weights.o):
            self._emit(
                "quantise",
                input=_address(arena.mixed),
                stride=widths.mixed,
                width=widths.mixed,
                blocks=_address(arena.blocks),
            )
        self._multiply(weights.o, _address(arena.out), widths.stream, widths.mixed, floats=_address(arena.mixed))
        self._norm(vectors["mlp_norm"], weights.gate_up, add=True, add_norm=vectors.get("post_attn_norm"))
        self._multiply(weights.gate_up, _address(arena.wide), widths.wide, widths.hidden)
        floats = _all_floats(weights.down)
        self._emit(
            "activate",
            self._description.activation,
            gate=_address(arena.wide),
            up=_address(arena.wide) + 4 * widths.up_at,
            stride=widths.wide,
            width=widths.mlp,
            blocks=0 if floats else _address(arena.blocks),
            floats=_address(arena.floats) if floats else 0,
            floats_stride=widths.mlp,
        )
        self._multiply(weights.down, _address(arena.out), widths.stream, widths.mlp)

    def _norm(
        self,
        weight: NDArray[Any],
        readers: tuple[Product, ...],
        *,
        add: bool,
        add_norm: NDArray[Any] | None,
        last: bool = False,
    ) -> None:
        arena, widths, description = self._arena, self._widths, self._description
        self._emit(
            "norm",
            count="drawing" if last else "tokens",
            x=_address(arena.stream),
            stride=widths.stream,
            width=description.hidden,
            padded=widths.hidden,
            epsilon=float_word(description.norm_eps),
            add=_address(arena.out) if add else 0,
            add_stride=widths.stream,
            add_norm=0 if add_norm is None else _address(add_norm),
            weight=_address(weight),
            select=self._state.at("last") if last else 0,
            blocks=0 if _all_floats(readers) else _address(arena.blocks),
            floats=_address(arena.floats) if _any_floats(readers) else 0,
            floats_stride=widths.hidden,
        )

    def _multiply(
        self,
        products: tuple[Product, ...],
        out: int,
        stride: int,
        inputs: int,
        *,
        floats: int | None = None,
        count: str = "tokens",
    ) -> None:
        """Products of the same input: nobody waits between them."""
        arena = self._arena
        for number, product in enumerate(products):
            packed = product.packed
            assert packed.inputs == inputs, "a matrix that does not fit its input"
            strips = packed.outputs // self._shape.strip
            source = (_address(arena.floats) if floats is None else floats) if _is_floats(product) else _address(arena.blocks)
            self._emit(
                "gemm",
                packed.format.name,
                count=count,
                barrier=number == len(products) - 1,
                input=source,
                weights=packed.address,
                groups=packed.groups,
                strips=strips,
                chunk=self._strips_a_piece(packed, strips),
                out=out + 4 * product.column,
                stride=stride,
                bias=0 if product.bias is None else _address(product.bias),
            )

    def _strips_a_piece(self, packed: Packed, strips: int) -> int:
        by_bytes = MAX_PIECE_BYTES * strips // packed.data.nbytes
        return max(1, min(by_bytes, strips // (self._threads * PIECES_A_THREAD)))

    def _rotary(self, index: int, layer: Layer, vectors: Mapping[str, NDArray[Any]]) -> None:
        description, widths = self._description, self._widths
        self._turns.setdefault(layer.rope, []).append(len(self._rows))
        self._emit(
            "rotary",
            self._kv.kind,
            qkv=_address(self._arena.qkv),
            stride=widths.qkv,
            key_at=widths.key_at,
            value_at=widths.value_at,
            heads=description.heads,
            kv_heads=description.kv_heads,
            head_dim=description.head_dim,
            padded=widths.head,
            scale=float_word(description.attention_scale),
            epsilon=float_word(description.norm_eps),
            query_norm=_address(vectors["q_norm"]) if description.qk_norm else 0,
            key_norm=_address(vectors["k_norm"]) if description.qk_norm else 0,
            keys=self._kv.keys(index),
            values=self._kv.values(index),
            key_scales=self._kv.key_steps(index),
            value_scales=self._kv.value_steps(index),
        )

    def _attend(self, index: int, layer: Layer) -> None:
        description, widths = self._description, self._widths
        self._emit(
            "attend",
            self._kv.kind,
            count="items",
            queries=_address(self._arena.qkv),
            stride=widths.qkv,
            heads=description.heads,
            kv_heads=description.kv_heads,
            queries_a_key=description.heads // description.kv_heads,
            padded=widths.head,
            keys=self._kv.keys(index),
            values=self._kv.values(index),
            key_scales=self._kv.key_steps(index),
            value_scales=self._kv.value_steps(index),
            window=layer.window or 0,
            out=_address(self._arena.mixed),
            out_stride=widths.mixed,
            block_size=self._kv.block_size,
        )

    def _emit(self, kind: str, variant: str = "", *, count: str = "tokens", barrier: bool = True, **operands: int) -> None:
        name = f"{kind}_{variant}" if variant else kind
        head = {"opcode": OPERATIONS.index(name), "barrier": int(barrier), "count": self._state.at(count)}
        self._kinds.append(kind)
        self._rows.append(head | operands)

    def _encode(self) -> tuple[NDArray[Any], NDArray[Any]]:
        code = aligned(len(self._rows) * words.INSTRUCTION_WORDS, np.int64).reshape(len(self._rows), words.INSTRUCTION_WORDS)
        counters = aligned(len(self._rows) * words.LINE, np.uint8)
        for number, (kind, row) in enumerate(zip(self._kinds, self._rows, strict=True)):
            names = words.OPERANDS[kind]
            row["counter"] = counters.ctypes.data + number * words.LINE
            for name, value in row.items():
                code[number, names.index(name)] = value
        return code, counters


def _address(array: NDArray[Any]) -> int:
    return array.ctypes.data


def _is_floats(product: Product) -> bool:
    return isinstance(product.packed.format, Floats)


def _all_floats(products: tuple[Product, ...]) -> bool:
    return all(_is_floats(product) for product in products)


def _any_floats(products: tuple[Product, ...]) -> bool:
    return any(_is_floats(product) for product in products)
