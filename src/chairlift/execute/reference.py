"""The oracle: a decoder in plain NumPy float32, written to be read. It knows rows of tokens and blocks of keys and values.

All tokens of a step go through the linear layers together; attention runs row by row. As the matrix library may add up in
another order for another number of rows, logits can differ in their last bits from batch to batch. Later executors are
compared with this one within a tolerance, and tokens where the best logit leads by more than that.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chairlift.core.costs import ModelCost
from chairlift.core.errors import NothingAllowed
from chairlift.core.types import Plan, Result, Row, Work
from chairlift.execute import rotary, sampler
from chairlift.execute.costs import model_cost
from chairlift.execute.kv import KVStore
from chairlift.execute.parameters import Parameters
from chairlift.models.description import Description, Layer, Rope, Weights

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Batch:
    """The tokens of all rows one after another. `bounds` holds where each row begins and ends.

    Tokens `stored` go to `slots` of the KV store: those of all rows but pads.
    """

    work: tuple[Work, ...]
    bounds: tuple[tuple[int, int], ...]
    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    stored: NDArray[np.int64]
    slots: NDArray[np.int64]


class ReferenceExecutor:
    """Computes plans in float32. `launch` does the work, `collect` hands over what came of it.

    A row with tokens that the model does not have, whose logits are not finite numbers, or that may draw nothing, is reported
    as failed; the others are not touched by it.
    """

    def __init__(
        self,
        description: Description,
        parameters: Parameters,
        *,
        num_blocks: int,
        block_size: int,
        contiguous: bool = False,
        num_host_blocks: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """If `contiguous`, the blocks of a row are always neighbours, and are read as one piece."""
        self._description = description
        self._tensors = parameters.tensors
        self._layers = tuple(parameters.layer(index) for index in range(len(description.layers)))
        self._head = parameters.tensors["embed" if description.tied else "head"]
        self._kv = KVStore(
            layers=len(description.layers),
            num_blocks=num_blocks,
            block_size=block_size,
            kv_heads=description.kv_heads,
            head_dim=description.head_dim,
            contiguous=contiguous,
            num_host_blocks=num_host_blocks,
        )
        self.cost = _cost(description, parameters)
        self.computed = (0.0, 0.0)
        self._clock = clock
        self._result: Result | None = None

    @classmethod
    def load(
        cls,
        description: Description,
        weights: Weights,
        *,
        num_blocks: int,
        block_size: int,
        contiguous: bool = False,
        num_host_blocks: int = 0,
        on_tensor: Callable[[int, int], None] | None = None,
    ) -> "ReferenceExecutor":
        """Reads all weights, which takes seconds, and builds an executor. `on_tensor(done, total)` follows the reading."""
        parameters = Parameters.read(description, weights, on_tensor=on_tensor)
        return cls(
            description,
            parameters,
            num_blocks=num_blocks,
            block_size=block_size,
            contiguous=contiguous,
            num_host_blocks=num_host_blocks,
        )

    def launch(self, plan: Plan) -> None:
        assert self._result is None, "the last plan has not been collected"
        began = self._clock()
        for move in plan.moves:
            self._kv.move(move)
        possible = [work for work in plan.work if self._has_embeddings(work)]
        foreign = [work for work in plan.work if not (work.pad or self._has_embeddings(work))]
        logits = self.logits(possible)
        drawing = [work for work in possible if work.draws and not work.pad]
        rows: list[Row] = []
        failed = [(work.seq_id, f"a token is none of the model's {self._description.vocab}") for work in foreign]
        for work, scores in zip(drawing, logits, strict=True):
            if not np.isfinite(scores).all():
                failed.append((work.seq_id, "the model's logits are not finite numbers"))
                continue
            try:
                rows.append(_drawn(work, scores))
            except NothingAllowed as error:
                failed.append((work.seq_id, str(error)))
        self.computed = (began, self._clock())
        self._result = Result(plan.step, tuple(rows), tuple(failed), self.computed[1] - began)

    def collect(self) -> Result:
        result = self._result
        assert result is not None, "nothing was launched"
        self._result = None
        return result

    @property
    def threads(self) -> None:
        """The matrix library chooses them."""

    @property
    def isa(self) -> None:
        """The matrix library chooses it."""

    def limits(self) -> None:
        """The matrix library has threads of its own, on which nothing else can run."""

    def close(self) -> None:
        """Nothing to do: memory goes with the object."""

    def logits(self, work: Sequence[Work]) -> Floats:
        """Computes rows and stores their keys and values. Logits [rows that draw, vocab] of the last positions."""
        if not work:
            return np.empty((0, self._description.vocab), dtype=np.float32)
        batch = self._batch(tuple(work))
        # Broken numbers show in the logits of their own row, so they need no warnings on the way.
        with np.errstate(all="ignore"):
            hidden = self._hidden(batch)
            last = [end - 1 for row, (_, end) in zip(batch.work, batch.bounds, strict=True) if row.draws and not row.pad]
            return _linear(self._norm(hidden[last], self._tensors["norm"]), self._head)

    def _batch(self, work: tuple[Work, ...]) -> _Batch:
        for row in work:
            self._check(row)
        ends = np.cumsum([len(row.tokens) for row in work], dtype=np.int64).tolist()
        bounds = tuple(zip([0, *ends[:-1]], ends, strict=True))
        ranges = [np.arange(row.start, row.start + len(row.tokens), dtype=np.int64) for row in work]
        stored = [np.arange(begin, end) for row, (begin, end) in zip(work, bounds, strict=True) if not row.pad]
        slots = [self._kv.slots(row.blocks, positions) for row, positions in zip(work, ranges, strict=True) if not row.pad]
        tokens = [np.asarray(row.tokens, dtype=np.int64) for row in work]
        return _Batch(work, bounds, _joined(tokens), _joined(ranges), _joined(stored), _joined(slots))

    def _check(self, row: Work) -> None:
        assert len(row.tokens) > 0, f"{row.seq_id}: a row without tokens"
        assert self._has_embeddings(row), f"{row.seq_id}: a token id outside the vocabulary"
        if row.pad:
            return
        assert row.start + len(row.tokens) <= len(row.blocks) * self._kv.block_size, f"{row.seq_id}: too few blocks"
        assert 0 <= min(row.blocks) <= max(row.blocks) < self._kv.num_blocks, f"{row.seq_id}: no such block"

    def _has_embeddings(self, row: Work) -> bool:
        return min(row.tokens, default=0) >= 0 and max(row.tokens, default=0) < self._description.vocab

    def _hidden(self, batch: _Batch) -> Floats:
        """The residual stream [tokens, hidden] after the last layer."""
        description = self._description
        turns: dict[Rope, rotary.Turn] = {}
        x = self._tensors["embed"][batch.tokens] * np.float32(description.embedding_scale)
        for index, layer in enumerate(description.layers):
            if layer.rope not in turns:
                turns[layer.rope] = rotary.turn(layer.rope, description.head_dim, batch.positions)
            x = x + self._attention(index, layer, x, turns[layer.rope], batch)
            x = x + self._mlp(index, x)
        return x

    def _attention(self, index: int, layer: Layer, x: Floats, turn: rotary.Turn, batch: _Batch) -> Floats:
        """What the attention of one layer adds to the residual stream [tokens, hidden]."""
        weights, head_dim = self._layers[index], self._description.head_dim
        normed = self._norm(x, weights["attn_norm"])
        queries, keys, values = (
            _linear(normed, weights[name], weights.get(f"{name}_bias")).reshape(len(x), -1, head_dim)
            for name in ("q", "k", "v")
        )
        if self._description.qk_norm:
            queries, keys = self._norm(queries, weights["q_norm"]), self._norm(keys, weights["k_norm"])
        queries, keys = rotary.rotate(queries, turn), rotary.rotate(keys, turn)
        self._kv.write(index, batch.slots, keys[batch.stored], values[batch.stored])
        mixed = np.empty_like(queries)
        for row, (begin, end) in zip(batch.work, batch.bounds, strict=True):
            if row.pad:
                seen, first = (keys[begin:end], values[begin:end]), row.start
            else:
                first = 0 if layer.window is None else max(0, row.start - layer.window + 1)
                seen = self._kv.read(index, row.blocks, first, row.start + len(row.tokens))
            mask = _mask(row.start - first, end - begin, layer.window)
            mixed[begin:end] = attend(queries[begin:end], *seen, mask, scale=self._description.attention_scale)
        out = _linear(mixed.reshape(len(x), -1), weights["o"], weights.get("o_bias"))
        return self._norm(out, weights["post_attn_norm"]) if self._description.sandwich else out

    def _mlp(self, index: int, x: Floats) -> Floats:
        """What the MLP of one layer adds to the residual stream [tokens, hidden]."""
        weights = self._layers[index]
        normed = self._norm(x, weights["mlp_norm"])
        gate = _linear(normed, weights["gate"], weights.get("gate_bias"))
        up = _linear(normed, weights["up"], weights.get("up_bias"))
        out = _linear(_ACTIVATIONS[self._description.activation](gate) * up, weights["down"], weights.get("down_bias"))
        return self._norm(out, weights["post_mlp_norm"]) if self._description.sandwich else out

    def _norm(self, x: Floats, weight: Floats) -> Floats:
        """Root mean square norm over the last axis (Zhang and Sennrich, 2019)."""
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(self._description.norm_eps)) * weight


def _drawn(work: Work, logits: Floats) -> Row:
    tokens = tuple(sampler.draw(logits, draw, work.end) for draw in work.draws)
    logprobs = tuple(
        sampler.logprobs(logits, token, draw.sampling.logprobs)
        for token, draw in zip(tokens, work.draws, strict=True)
        if draw.sampling.logprobs is not None
    )
    return Row(work.seq_id, tokens, logprobs)


def attend(queries: Floats, keys: Floats, values: Floats, mask: NDArray[np.bool_], *, scale: float) -> Floats:
    """Attention of one row: queries [n, heads, head_dim] over keys and values [context, kv_heads, head_dim].

    `mask` [n, context] says which query sees which key. Consecutive query heads share a key head (Ainslie et al., "GQA", 2023).
    """
    n, heads, head_dim = queries.shape
    context, kv_heads, _ = keys.shape
    grouped = queries.reshape(n, kv_heads, heads // kv_heads, head_dim).transpose(1, 2, 0, 3).reshape(kv_heads, -1, head_dim)
    scores = np.matmul(grouped, keys.transpose(1, 2, 0)) * np.float32(scale)
    scores = scores.reshape(kv_heads, -1, n, context)
    scores = np.where(mask, scores, np.float32(-np.inf))
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    scores = scores / scores.sum(axis=-1, keepdims=True)
    mixed = np.matmul(scores.reshape(kv_heads, -1, context), values.transpose(1, 0, 2))
    return mixed.reshape(heads, n, head_dim).transpose(1, 0, 2)


def _mask(start: int, n: int, window: int | None) -> NDArray[np.bool_]:
    """Which of the keys 0 to start + n - 1 each query at start to start + n - 1 sees: itself, and the window before it."""
    behind = np.arange(start, start + n)[:, None] - np.arange(start + n)[None, :]
    return behind >= 0 if window is None else (behind >= 0) & (behind < window)


def _linear(x: Floats, weight: Floats, bias: Floats | None = None) -> Floats:
    product = x @ weight.T
    return product if bias is None else product + bias


def _joined(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _silu(x: Floats) -> Floats:
    return x / (np.float32(1) + np.exp(-x))


def _gelu_tanh(x: Floats) -> Floats:
    """The tanh approximation (Hendrycks and Gimpel, 2016)."""
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
    return np.float32(0.5) * x * (np.float32(1) + np.tanh(inner))


def _gelu(x: Floats) -> Floats:
    """The exact one. NumPy has no error function, so this goes element by element; no supported model asks for it often."""
    erf = np.vectorize(math.erf, otypes=[np.float32])(x * np.float32(math.sqrt(0.5)))
    return np.float32(0.5) * x * (np.float32(1) + erf)


_ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {"silu": _silu, "gelu_tanh": _gelu_tanh, "gelu": _gelu}


def _cost(description: Description, parameters: Parameters) -> ModelCost:
    tensors = parameters.tensors
    body = sum(tensor.nbytes for name, tensor in tensors.items() if name not in ("embed", "head"))
    return model_cost(
        description,
        body_bytes=body,
        head_bytes=tensors["embed" if description.tied else "head"].nbytes,
        token_bytes=tensors["embed"].nbytes // description.vocab,
        position_bytes=2 * description.kv_heads * description.head_dim * 4,
    )
